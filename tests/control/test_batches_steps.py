"""`starprof.steps`: the loops that have no data loader of their own, or one inside."""

import itertools
from collections.abc import Sequence

import pytest
from batches_play import Counted, Loop, Stream, expected, installed, numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

import starprof


@pytest.fixture
def batches():
    with installed() as made:
        yield made


class Read(Sequence):
    """A sequence that knows what was asked for."""

    def __init__(self, n):
        self.read = []
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        self.read.append(index)
        return -index


def pairs(loop):
    return [(step, int(item)) for step, item in loop.seen]


# Without control.


def test_without_control_it_is_enumerate():
    assert list(starprof.steps("abc")) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(starprof.steps(iter("abc"), start=5)) == [(5, "a"), (6, "b"), (7, "c")]
    assert type(iter(starprof.steps([]))) is enumerate


def test_it_has_a_length_where_the_iterable_has_one():
    assert len(starprof.steps(range(7), start=3)) == 7
    with pytest.raises(TypeError, match=r"'generator' has no len\(\)"):
        len(starprof.steps(x for x in "abc"))
    assert list(starprof.steps(x for x in "a")) == [(0, "a")]


def test_it_can_be_gone_through_again():
    steps = starprof.steps([1, 2])
    assert list(steps) == list(steps)


# Under control.


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["range", "list", "tuple", "sequence", "dataset", "generator", "set"]),
    length=st.integers(0, 25),
    skips=st.dictionaries(st.integers(1, 20), st.integers(1, 9), max_size=5),
    epochs=st.integers(1, 3),
)
def test_the_number_of_a_step_counts_what_was_passed_over(kind, length, skips, epochs):
    make = {
        "range": lambda: range(length),
        "list": lambda: list(range(length)),
        "tuple": lambda: tuple(range(length)),
        "sequence": lambda: Read(length),
        "dataset": lambda: Ended(length),
        "generator": lambda: (i for i in range(length)),
        "set": lambda: dict.fromkeys(range(length)),
    }[kind]
    with installed() as batches:
        loop = Loop(batches, skips)
        for _ in range(epochs):
            loop.epoch(starprof.steps(make()))
        seen, pending = expected(length, skips, epochs)
        assert [step for step, _ in loop.seen] == seen
        assert [abs(item) for _, item in loop.seen] == seen
        assert batches.left_over == pending
        assert (batches.loaded_skips == 0) or kind in ("generator", "set")


class Ended(Counted):
    """A dataset that Python can iterate over, by index."""

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return super().__getitem__(index)


def test_items_that_are_passed_over_are_not_read(batches):
    items = Read(12)
    loop = Loop(batches, {4: 5})
    loop.epoch(starprof.steps(items, start=100))
    assert items.read == [0, 1, 2, 3, 9, 10, 11]
    assert pairs(loop)[4:] == [(109, -9), (110, -10), (111, -11)]


def test_items_of_a_generator_are_drawn_and_dropped(batches):
    loop = Loop(batches, {4: 5})
    loop.epoch(starprof.steps(i for i in range(12)))
    assert pairs(loop)[4:] == [(9, 9), (10, 10), (11, 11)]
    assert batches.loaded_skips == 5


def test_indices_of_a_sampler_load_nothing(batches):
    loop = Loop(batches, {4: 5})
    loop.epoch(starprof.steps(RandomSampler(range(12))))
    assert [step for step, _ in loop.seen] == [0, 1, 2, 3, 9, 10, 11]
    assert batches.loaded_skips == 0


def test_a_list_that_grows_while_it_is_gone_through(batches):
    items = [0]
    for step, _ in starprof.steps(items):
        if step < 5:
            items.append(step + 1)
        batches.mark_sync()
    assert batches.executed == 6


def test_what_cannot_be_gone_through_is_an_error_as_always(batches):
    with pytest.raises(TypeError, match="not iterable"):
        iter(starprof.steps(5))


def test_errors_of_the_iterable_come_as_always(batches):
    def items():
        yield from range(5)
        raise RuntimeError("no more")

    loop = Loop(batches, {4: 5})
    with pytest.raises(RuntimeError, match="no more"):
        loop.epoch(starprof.steps(items()))
    assert batches.skipped == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_around_a_loader_the_loader_passes_over_its_batches(batches, workers):
    data = Counted(20)
    skips = {4: 5, 6: 2}
    loop = Loop(batches, skips)
    loop.epoch(starprof.steps(DataLoader(data, batch_size=1, num_workers=workers)))
    seen = expected(20, skips)[0]
    assert [step for step, _ in loop.seen] == seen
    assert [int(batch) for _, batch in loop.seen] == expected(20, skips, ahead=2 * workers)[0]
    assert int(data.reads.sum()) == len(seen)
    assert batches.loaded_skips == 0
    assert batches.skipped == 7


def test_around_a_generator_that_makes_an_item_of_two_batches(batches):
    def both(data):
        iterator = iter(data)
        yield from zip(iterator, iterator, strict=False)

    data = Counted(40)
    loop = Loop(batches, {5: 3})
    loop.epoch(starprof.steps(both(DataLoader(data, batch_size=1))))
    assert [step for step, _ in loop.seen] == [0, 1, 2, 3, 4, *range(8, 20)]
    assert [int(first) for _, (first, _) in loop.seen] == [0, 2, 4, 6, 8, *range(16, 40, 2)]
    assert data.reads[10:16].tolist() == [0] * 6


def test_around_a_loader_an_epoch_ends_once_and_what_is_left_goes_into_the_next(batches):
    ends = []
    batches.on_epoch_end = lambda: ends.append(batches.left_over)
    data = DataLoader(Counted(10), batch_size=1)
    loop = Loop(batches, {7: 5})
    for _ in range(3):
        loop.epoch(starprof.steps(data))
    assert ends == [2, 0, 0]
    assert [step for step, _ in loop.seen] == [*range(7), 0, *range(3, 10), *range(10)]
    assert [int(batch) for _, batch in loop.seen] == [*range(7), 0, *range(3, 10), *range(10)]


def test_beside_a_loader_both_stay_in_step(batches):
    iterator = iter(DataLoader(Counted(20), batch_size=1))
    loop = Loop(batches, {5: 3, 8: 4})
    for step, _ in starprof.steps(range(20)):
        loop.one((step, next(iterator)))
    seen = expected(20, {5: 3, 8: 4})[0]
    assert pairs(loop) == [(i, i) for i in seen]


def test_beside_a_stream(batches):
    iterator = iter(DataLoader(Stream(20), batch_size=1))
    loop = Loop(batches, {5: 3})
    for step, _ in starprof.steps(range(20)):
        loop.one((step, next(iterator)))
    assert pairs(loop) == [(i, i) for i in expected(20, {5: 3})[0]]
    assert batches.loaded_skips == 3


def test_a_loop_without_end_and_without_a_loader(batches):
    loop = Loop(batches, {5: 100})
    loop.epoch(itertools.islice(starprof.steps(itertools.count()), 8))
    assert [step for step, _ in loop.seen] == [0, 1, 2, 3, 4, 105, 106, 107]


def test_an_epoch_left_early_shows_in_the_next(batches):
    abandoned = []
    batches.abandoned = lambda: abandoned.append(batches.this_epoch.executed)
    for _ in range(3):
        Loop(batches).epoch(itertools.islice(starprof.steps(range(100)), 6))
    assert abandoned == [6, 6]
    assert numbers([step for step, _ in starprof.steps(range(2))]) == [0, 1]
