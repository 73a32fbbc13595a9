"""Which batches are the training loop's, how many make an iteration, and where an epoch ends."""

import itertools
import os
import threading

import pytest
import torch
from batches_play import Counted, Loop, Stream, expected, installed, numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import starprof
from starprof.control.engine.batches import Tally
from starprof.control.engine.batches.source import STEADY


@pytest.fixture
def batches():
    with installed() as made:
        yield made


def loader(n, **kind):
    return DataLoader(Counted(n), batch_size=1, **kind)


class Ends:
    """What `on_epoch_end` and `abandoned` said, and what was known then."""

    def __init__(self, batches):
        self.told = []
        batches.on_epoch_end = lambda: self.told.append(("end", batches.executed, batches.this_epoch))
        batches.abandoned = lambda: self.told.append(("abandoned", batches.executed, batches.this_epoch))

    @property
    def short(self):
        return [what[:2] for what in self.told]


# Why not.


def test_before_the_first_step_nothing_is_known(batches):
    assert batches.refusal == "no step has synchronised yet"
    assert batches.per_sync == 0


def test_a_loop_without_a_source_is_refused(batches):
    for _ in range(10):
        batches.mark_sync()
    assert "no DataLoader and no starprof.steps" in batches.refusal


def test_a_loader_read_by_another_thread_is_refused(batches):
    batches.mark_sync()
    data = loader(20)
    for _ in range(5):
        thread = threading.Thread(target=lambda: next(iter(data)))
        thread.start()
        thread.join()
        batches.mark_sync()
    assert "no DataLoader" in batches.refusal


def test_the_first_steps_are_learnt_from(batches):
    loop = Loop(batches)
    for batch in loader(STEADY):
        assert batches.refusal is not None
        loop.one(batch)
    assert batches.refusal is None
    assert batches.per_sync == 1


def test_a_number_of_micro_batches_that_varies_is_refused_until_it_has_long_been_the_same(batches):
    stream = iter(loader(200))
    for micro_batches in [4, 4, 4]:
        numbers(itertools.islice(stream, micro_batches))
        batches.mark_sync()
    assert batches.refusal is None
    for micro_batches in [6, 6, 6]:
        numbers(itertools.islice(stream, micro_batches))
        batches.mark_sync()
    assert batches.refusal == "the batches per synchronisation vary: 4, then 6"
    for _ in range(3):
        numbers(itertools.islice(stream, 6))
        batches.mark_sync()
    assert batches.refusal is None
    assert batches.per_sync == 6


@pytest.mark.parametrize("pattern", [(1, 2), (3, 3, 2), (1, 0), (2, 2, 2, 1)])
def test_a_pattern_of_micro_batches_is_refused(batches, pattern):
    stream = iter(loader(400))
    for micro_batches in pattern * 20:
        numbers(itertools.islice(stream, micro_batches))
        batches.mark_sync()
    assert batches.refusal is not None


# What an iteration is.


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(4, 20), per_sync=st.integers(1, 4), skips=st.dictionaries(st.integers(3, 12), st.integers(1, 4))
)
def test_with_accumulated_gradients_whole_iterations_are_passed_over(length, per_sync, skips):
    with installed() as batches:
        loop = Loop(batches, skips, per_sync)
        data = loader(length * per_sync)
        for _ in range(3):
            loop.epoch(data)
        seen, pending = expected(length, skips, 3)
        assert numbers(loop.seen) == [p * per_sync + k for p in seen for k in range(per_sync)]
        assert batches.left_over == pending
        assert batches.per_sync == per_sync


def accumulate(batches, epochs, length, per_sync, at_end, skips):
    """A loop over epochs that `per_sync` does not divide."""
    seen, held = [], 0
    data = loader(length)
    for _ in range(epochs):
        if at_end != "cross":
            held = 0
        for position, batch in enumerate(data):
            seen.append(int(batch))
            held += 1
            if held == per_sync or (at_end == "flush" and position == length - 1):
                held = 0
                batches.mark_sync()
                batches.skip(skips.get(batches.executed, 0))
    return seen


@pytest.mark.parametrize(
    ("at_end", "per_epoch", "left_over", "fourth"),
    [("flush", 5, 0, 4), ("restart", 4, 1, 8), ("cross", 4.5, 1, 6)],
)
def test_what_a_loop_does_with_the_tail_of_an_epoch_is_learnt(batches, at_end, per_epoch, left_over, fourth):
    """Eighteen batches, four to an iteration: after one iteration of the third epoch, the next four are missed."""
    ends = []
    batches.on_epoch_end = lambda: ends.append(batches.left_over)
    seen = accumulate(batches, 4, 18, 4, at_end, {int(2 * per_epoch) + 1: 4})
    assert seen == [*range(18), *range(18), 0, 1, 2, 3, 0, 1, 2, 3, *range(fourth, 18)]
    assert ends[2] == left_over
    assert batches.refusal is None


# Which loaders are the loop's.


@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_evaluation_in_between_is_neither_counted_nor_passed_over(batches, every):
    ends = Ends(batches)
    evaluation = Counted(4)
    evaluation_loader = DataLoader(evaluation, batch_size=1)
    loop, evaluations = Loop(batches, {6: 3, 7: 2}), 0
    for batch in loader(20):
        loop.one(batch)
        if batches.executed % every == 0:
            assert numbers(evaluation_loader) == [0, 1, 2, 3]
            evaluations += 1
    assert numbers(loop.seen) == expected(20, {6: 3, 7: 2})[0]
    assert evaluation.reads.tolist() == [evaluations] * 4
    assert ends.short == [("end", 15)]


def test_a_look_at_some_of_an_evaluations_batches_after_each_step(batches):
    ends = Ends(batches)
    evaluation_loader = loader(9)
    loop = Loop(batches, {6: 3})
    for batch in loader(20):
        loop.one(batch)
        assert numbers(itertools.islice(evaluation_loader, 2)) == [0, 1]
    assert numbers(loop.seen) == expected(20, {6: 3})[0]
    assert ends.short == [("end", 17)]


def test_an_evaluation_before_and_after_each_epoch(batches):
    ends = Ends(batches)
    evaluation_loader, data = loader(5), loader(8)
    loop = Loop(batches, {4: 2, 7: 3})
    numbers(itertools.islice(evaluation_loader, 2))
    for _ in range(3):
        loop.epoch(data)
        assert numbers(evaluation_loader) == [0, 1, 2, 3, 4]
    assert numbers(loop.seen) == expected(8, {4: 2, 7: 3}, 3)[0]
    assert [what for what, _ in ends.short] == ["end"] * 3


def two_loaders(skips, length, strict, first, second):
    """What two epochs of a loop over two loaders at once see, the two datasets' reads, and the batches."""
    with installed() as batches:
        one, two = Counted(length), Counted(length)
        first_loader, second_loader = DataLoader(one, batch_size=1, **first), DataLoader(two, batch_size=1, **second)
        loop = Loop(batches, skips)
        ends = Ends(batches)
        for _ in range(2):
            pairs = zip(first_loader, second_loader, strict=strict)
            loop.epoch(int(a) * 100 + int(b) for a, b in pairs)
        assert [what for what, _ in ends.short] == (["end", "end"] if length else [])
        assert batches.iterations == (2 * length)
        return loop.seen, (one.reads + two.reads).tolist(), batches


TWO = given(st.integers(0, 25), st.dictionaries(st.integers(1, 15), st.integers(1, 5)), st.booleans())


@settings(max_examples=100, deadline=None)
@TWO
def test_two_loaders_of_one_loop_stay_in_step(length, skips, strict):
    seen, reads, batches = two_loaders(skips, length, strict, {}, {})
    positions, pending = expected(length, skips, 2)
    assert seen == [101 * i for i in positions]
    assert batches.left_over == pending
    assert sum(reads) == 2 * len(seen)
    assert batches.loaded_skips == 0


@settings(max_examples=6, deadline=None)
@TWO
def test_two_loaders_that_load_equally_far_ahead_stay_in_step(length, skips, strict):
    seen, _, batches = two_loaders(skips, length, strict, {"num_workers": 1}, {"num_workers": 1})
    positions, pending = expected(length, skips, 2, ahead=2)
    assert seen == [101 * i for i in positions]
    assert batches.left_over == pending


@settings(max_examples=6, deadline=None)
@TWO
def test_two_loaders_that_load_ahead_or_not_stay_in_step(length, skips, strict):
    seen, _, batches = two_loaders(skips, length, strict, {"num_workers": 1}, {})
    positions, pending = expected(length, skips, 2)
    assert seen == [101 * i for i in positions]
    assert batches.left_over == pending


@pytest.mark.parametrize("lengths", [(10, 10), (10, 14), (14, 10)])
def test_two_loaders_that_end_one_after_the_other_end_one_epoch(batches, lengths):
    ends = Ends(batches)
    one, two = loader(lengths[0]), loader(lengths[1])
    for _ in range(3):
        Loop(batches).epoch(a + b for a, b in zip(one, two, strict=False))
    assert ends.short == [("end", 10), ("end", 20), ("end", 30)]


def test_a_new_loader_for_each_epoch(batches):
    ends = Ends(batches)
    loop = Loop(batches, {5: 2, 9: 4})
    for _ in range(4):
        loop.epoch(loader(10))
    # In the second epoch three steps are needed to know the new loader: the skips wait as long.
    assert batches.iterations == 40
    assert len(ends.told) == 4
    assert numbers(loop.seen)[:8] == [0, 1, 2, 3, 4, 7, 8, 9]
    assert batches.skipped == 6


def test_a_loader_read_one_batch_ahead(batches):
    def ahead(source):
        iterator = iter(source)
        held = next(iterator)
        for following in iterator:
            yield held
            held = following
        yield held

    loop = Loop(batches, {5: 2})
    data = loader(10)
    for _ in range(3):
        loop.epoch(ahead(data))
    assert batches.refusal is None
    assert numbers(loop.seen) == [0, 1, 2, 3, 4, 5, 8, 9, *range(10), *range(10)]


def test_an_iterator_that_was_there_before_us():
    early = iter(loader(10))
    next(early)
    with installed() as batches:
        ends = Ends(batches)
        loop = Loop(batches, {4: 2})
        loop.epoch(early)
        assert numbers(loop.seen) == [1, 2, 3, 4, 7, 8, 9]
        assert ends.short == [("end", 7)]


def test_a_look_at_the_data_is_no_iteration(batches):
    ends = Ends(batches)
    data = loader(12)
    loop = Loop(batches, {4: 2, 8: 1})
    next(iter(data))
    for batch in data:
        assert int(next(iter(data))) == 0
        loop.one(batch)
    assert numbers(loop.seen) == expected(12, {4: 2, 8: 1})[0]
    assert ends.short == [("end", 9)]


# Where an epoch ends.


def test_the_end_of_an_epoch_is_told_before_the_loop_learns_of_it(batches):
    ends = Ends(batches)
    loop = Loop(batches, {4: 3})
    data = loader(10)
    iterator = iter(data)
    for batch in iterator:
        assert ends.told == []
        loop.one(batch)
    assert ends.told == [("end", 7, Tally(executed=7, skipped=3))]
    with pytest.raises(StopIteration):
        next(iterator)
    assert len(ends.told) == 1
    loop.epoch(data)
    assert ends.told[1] == ("end", 17, Tally(executed=10))
    assert batches.epoch == 2
    assert batches.total == Tally(executed=17, skipped=3)
    assert batches.total.coverage == 0.85


def test_epochs_of_one_step_end_too(batches):
    ends = Ends(batches)
    data = loader(1)
    for _ in range(6):
        Loop(batches).epoch(data)
    assert ends.short == [("end", n) for n in range(1, 7)]


def test_what_an_epoch_has_no_room_for_is_left_over(batches):
    data = loader(8)
    loop = Loop(batches, {5: 5})
    loop.epoch(data)
    assert (batches.left_over, batches.iterations) == (2, 8)
    loop.epoch(data)
    assert (batches.left_over, batches.iterations) == (0, 16)
    assert numbers(loop.seen) == [0, 1, 2, 3, 4, 0, 3, 4, 5, 6, 7]


def test_what_is_left_over_can_be_forgotten(batches):
    data = loader(8)
    loop = Loop(batches, {5: 5})
    batches.on_epoch_end = batches.forget
    loop.epoch(data)
    assert (batches.left_over, batches.iterations) == (0, 10)
    loop.epoch(data)
    assert numbers(loop.seen)[5:] == list(range(8))


def test_every_epoch_begins_with_an_iteration_of_its_own(batches):
    ends = Ends(batches)
    data = loader(5)
    loop = Loop(batches, {5: 10})
    for _ in range(4):
        loop.epoch(data)
    assert numbers(loop.seen) == [*range(5), 0, 0, 0, 3, 4]
    assert [tally for _, _, tally in ends.told] == [Tally(5), Tally(1, 4), Tally(1, 4), Tally(3, 2)]


def test_an_evaluation_on_the_training_data_misses_nothing(batches):
    data = loader(8)
    loop = Loop(batches, {5: 5})
    loop.epoch(data)
    assert next(iter(data)) == 0
    assert numbers(data) == list(range(8))
    loop.epoch(data)
    assert numbers(loop.seen) == [0, 1, 2, 3, 4, 0, 3, 4, 5, 6, 7]


def test_skips_ordered_before_the_loop_is_known_wait_until_it_is(batches):
    loop = Loop(batches, {1: 4})
    loop.epoch(loader(12))
    assert numbers(loop.seen) == [0, 1, 2, *range(7, 12)]


def test_nothing_is_passed_over_for_nothing(batches):
    loop = Loop(batches, {4: 0, 5: -3})
    loop.epoch(loader(10))
    assert batches.skipped == 0
    assert numbers(loop.seen) == list(range(10))


@pytest.mark.parametrize("kind", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_a_loop_that_is_left_early_shows_when_its_loader_is_read_again(batches, kind):
    ends = Ends(batches)
    data = loader(10, **kind)
    loop = Loop(batches)
    loop.epoch(itertools.islice(data, 6))
    assert ends.told == []
    iterator = iter(data)
    first = next(iterator)
    assert ends.told == [("abandoned", 6, Tally(6))]
    loop.one(first)
    loop.epoch(iterator)
    assert ends.short == [("abandoned", 6), ("end", 16)]
    assert numbers(loop.seen) == [*range(6), *range(10)]


def test_two_loaders_left_early_are_one_epoch(batches):
    ends = Ends(batches)
    one, two = loader(10), loader(10)
    for _ in range(2):
        Loop(batches).epoch(itertools.islice((a + b for a, b in zip(one, two, strict=True)), 5))
    Loop(batches).epoch(a + b for a, b in zip(one, two, strict=True))
    assert ends.short == [("abandoned", 5), ("abandoned", 10), ("end", 20)]


def test_a_pass_that_is_kept_though_the_loop_has_left_it(batches):
    data = loader(20)
    kept = iter(data)
    loop = Loop(batches, {10: 2})
    loop.epoch(itertools.islice(kept, 5))
    loop.epoch(data)
    assert numbers(loop.seen) == [*range(5), *range(5), *range(7, 20)]


def test_persistent_workers_over_epochs(batches):
    data = loader(10, num_workers=2, persistent_workers=True)
    skips = {4: 3, 9: 6, 14: 1}
    loop = Loop(batches, skips)
    for _ in range(3):
        loop.epoch(data)
    assert numbers(loop.seen) == expected(10, skips, 3, ahead=4)[0]


def test_streams_without_a_length_can_be_left_and_begun_again(batches):
    ends = Ends(batches)
    data = DataLoader(Stream(10), batch_size=2)
    loop = Loop(batches)
    loop.epoch(itertools.islice(data, 3))
    loop.epoch(data)
    assert ends.short == [("abandoned", 3), ("end", 8)]


# What else happens in a process.


def test_errors_of_ours_do_not_reach_the_loop():
    with installed(errors=3) as batches:
        failures = []

        def broken():
            failures.append(1)
            raise OSError("the coordinator is gone")

        batches.on_epoch_end = batches.abandoned = broken
        loop = Loop(batches)
        data = loader(5)
        loop.epoch(data)
        loop.epoch(itertools.islice(data, 4))
        loop.epoch(data)
        assert len(failures) == 3
        assert batches.epoch == 3


def test_a_forked_child_sees_nothing_of_it(batches):
    loop = Loop(batches, {4: 3})
    iterator = iter(loader(10))
    loop.epoch(itertools.islice(iterator, 4))
    batches.on_epoch_end = lambda: os._exit(1)
    child = os.fork()
    if child == 0:
        rest = numbers(iterator)
        os._exit(0 if rest == list(range(4, 10)) and batches.executed == 0 else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    batches.on_epoch_end = None
    loop.epoch(iterator)
    assert numbers(loop.seen) == [0, 1, 2, 3, 7, 8, 9]


def compiled_graphs(with_batches):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(1, 1), backend=backend)

    def train(batches=None):
        loop = Loop(batches, {4: 2}) if batches else None
        for batch in loader(10):
            model(batch.float().reshape(1, 1)).sum().backward()
            if loop:
                loop.one(batch)
        return loop

    if with_batches:
        with installed() as batches:
            assert len(train(batches).seen) == 8
    else:
        train()
    return len(graphs)


def test_a_compiled_model_is_compiled_as_often():
    assert compiled_graphs(True) == compiled_graphs(False)


def test_a_loop_that_is_itself_compiled_still_reads_all_batches():
    with installed() as batches:
        model = torch.nn.Linear(1, 1)

        @torch.compile(backend="eager")
        def train(data):
            total = 0
            for batch in data:
                total += model(batch.float().reshape(1, 1)).sum() * 0 + batch.sum()
            return total

        assert int(train(loader(5))) == 10
        assert batches.executed == 0


EPOCH = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["same loader", "same loader", "new loader", "steps", "ahead"]),
        "leave_after": st.none() | st.integers(1, 12),
        "evaluate_every": st.none() | st.integers(1, 5),
        "look": st.booleans(),
    }
)


def read_ahead(batches):
    held = None
    for batch in batches:
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


@settings(max_examples=200, deadline=None)
@given(
    length=st.integers(1, 15),
    epochs=st.lists(EPOCH, min_size=1, max_size=6),
    skips=st.dictionaries(st.integers(1, 40), st.integers(1, 20), max_size=6),
)
def test_whatever_the_loop_looks_like_each_batch_is_seen_or_passed_over_once(length, epochs, skips):
    with installed() as batches:
        data, evaluation = Counted(length), Counted(3)
        same, evaluation_loader = DataLoader(data, batch_size=1), DataLoader(evaluation, batch_size=1)
        loop = Loop(batches, skips)
        looks = evaluations = 0
        for epoch in epochs:
            if epoch["look"]:
                looks += len(numbers([next(iter(same))]))
            chosen = DataLoader(data, batch_size=1) if epoch["kind"] == "new loader" else same
            made = {"steps": lambda c: (b for _, b in starprof.steps(c)), "ahead": read_ahead}.get(epoch["kind"], iter)
            first, iterations = len(loop.seen), batches.iterations
            for batch in itertools.islice(made(chosen), epoch["leave_after"]):
                loop.one(batch)
                if epoch["evaluate_every"] and batches.executed % epoch["evaluate_every"] == 0:
                    assert numbers(evaluation_loader) == [0, 1, 2]
                    evaluations += 1
            seen = numbers(loop.seen[first:])
            assert seen == sorted(set(seen))
            passed = batches.iterations - iterations
            assert passed >= len(seen)
            if epoch["leave_after"] is None:
                assert passed == length
        ordered = sum(n for at, n in skips.items() if at <= batches.executed)
        assert batches.iterations + batches.left_over == batches.executed + ordered
        assert evaluation.reads.tolist() == [evaluations] * 3
        assert int(data.reads.sum()) - looks >= len(loop.seen)
        assert batches.loaded_skips == 0
