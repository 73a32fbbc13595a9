"""Passing over batches of every kind of data loader."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from batches_play import Counted, Loop, Stream, expected, installed, numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

import starprof
from starprof.hook import steps

SKIPS = st.dictionaries(st.integers(1, 25), st.integers(1, 12), max_size=6)


@pytest.fixture
def batches():
    with installed() as made:
        yield made


def test_nothing_is_patched_unless_asked_for():
    before = _BaseDataLoaderIter.__next__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter._reset
    import starprof.control.engine.batches  # noqa: F401

    assert (_BaseDataLoaderIter.__next__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter._reset) == before
    with installed():
        assert _BaseDataLoaderIter.__next__ is not before[0]


@settings(max_examples=150, deadline=None)
@given(length=st.integers(0, 40), skips=SKIPS, epochs=st.integers(1, 3))
def test_exactly_the_missed_batches_are_passed_over_and_never_loaded(length, skips, epochs):
    with installed() as batches:
        data = Counted(length)
        loop = Loop(batches, skips)
        loader = DataLoader(data, batch_size=1)
        for _ in range(epochs):
            loop.epoch(loader)
        seen, pending = expected(length, skips, epochs)
        assert numbers(loop.seen) == seen
        assert data.reads.tolist() == [seen.count(i) for i in range(length)]
        assert batches.left_over == pending
        assert batches.loaded_skips == 0
        assert batches.iterations + batches.left_over == batches.executed + sum(
            n for at, n in skips.items() if at <= batches.executed
        )


@settings(max_examples=12, deadline=None)
@given(length=st.integers(0, 30), skips=SKIPS, persistent=st.booleans(), prefetch=st.integers(1, 3))
def test_with_workers_what_is_loading_is_used_and_later_batches_are_passed_over(length, skips, persistent, prefetch):
    with installed() as batches:
        data = Counted(length)
        loop = Loop(batches, skips)
        loader = DataLoader(data, batch_size=1, num_workers=2, prefetch_factor=prefetch, persistent_workers=persistent)
        for _ in range(2):
            loop.epoch(loader)
        seen, pending = expected(length, skips, 2, ahead=2 * prefetch)
        assert numbers(loop.seen) == seen
        assert batches.left_over == pending
        assert int(data.reads.sum()) == len(seen) + batches.loaded_skips
        assert batches.iterations == batches.executed + batches.skipped


def test_with_workers_loaded_batches_are_dropped_only_where_the_epoch_ends(batches):
    data = Counted(20)
    loop = Loop(batches, {4: 6, 8: 6})
    loop.epoch(DataLoader(data, batch_size=1, num_workers=1, prefetch_factor=2))
    # Two are always loading: 4 and 5 at the first skip, 14 and 15 at the second, when only four are left behind them.
    assert numbers(loop.seen) == [0, 1, 2, 3, 4, 5, 12, 13]
    assert (batches.skipped, batches.loaded_skips) == (12, 2)
    assert data.reads.tolist() == [int(i in (0, 1, 2, 3, 4, 5, 12, 13, 14, 15)) for i in range(20)]


def test_workers_that_answer_in_any_order(batches):
    data = Counted(40)
    loop = Loop(batches, {4: 5, 9: 3})
    loop.epoch(DataLoader(data, batch_size=1, num_workers=2, in_order=False))
    assert len(loop.seen) == len(set(numbers(loop.seen))) == 32
    assert data.reads.tolist() == [int(i in numbers(loop.seen)) for i in range(40)]
    assert batches.loaded_skips == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_streams_are_drawn_and_dropped(batches, workers, persistent):
    data = Stream(24)
    loop = Loop(batches, {4: 5})
    loader = DataLoader(
        data, batch_size=2, num_workers=workers, persistent_workers=persistent and workers > 0, prefetch_factor=None
    )
    loop.epoch(loader)
    order = numbers(DataLoader(Stream(24), batch_size=2, num_workers=workers))
    assert numbers(loop.seen) == order[:8] + order[18:]
    assert batches.loaded_skips == 5
    assert data.reads.tolist() == [1] * 24
    loop.epoch(loader)
    assert len(loop.seen) == 7 + 12


def test_a_stream_that_ends_while_it_is_passed_over(batches):
    loop = Loop(batches, {4: 9})
    loop.epoch(DataLoader(Stream(10), batch_size=None))
    assert numbers(loop.seen) == [0, 1, 2, 3]
    assert (batches.skipped, batches.left_over, batches.loaded_skips) == (6, 3, 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_no_size(batches, workers):
    data = Counted(12)
    loop = Loop(batches, {3: 2})
    loop.epoch(DataLoader(data, batch_size=None, num_workers=workers))
    seen, _ = expected(12, {3: 2}, ahead=2 * workers)
    assert numbers(loop.seen) == seen


def test_samplers_of_the_users_own(batches):
    class Backwards(SequentialSampler):
        def __iter__(self):
            return reversed(range(len(self.data_source)))

    data = Counted(14)
    loop = Loop(batches, {3: 2})
    loop.epoch(DataLoader(data, batch_sampler=BatchSampler(Backwards(data), 2, drop_last=False)))
    assert numbers(loop.seen) == [13, 12, 11, 10, 9, 8, 3, 2, 1, 0]
    assert data.reads[4:8].tolist() == [0] * 4


def test_a_distributed_sampler_passes_over_its_own_shard(batches):
    data = Counted(32)
    sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True, seed=3)
    loop = Loop(batches, {3: 4})
    sampler.set_epoch(5)
    loop.epoch(DataLoader(data, batch_size=2, sampler=sampler))
    shard = list(sampler)
    assert numbers(loop.seen) == shard[:6] + shard[14:]


def drawn(skips, **kind):
    """Batches of two shuffled epochs, and a random number afterwards."""
    with installed() as batches:
        torch.manual_seed(7)
        loop = Loop(batches, skips)
        loader = DataLoader(Counted(16), batch_size=2, shuffle=True, **kind)
        loop.epoch(loader)
        loop.epoch(loader)
        return numbers(loop.seen), float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_random_numbers_of_an_epoch_stay_as_they_were(workers):
    all_of_them, after = drawn({}, num_workers=workers)
    some, after_some = drawn({4: 3}, num_workers=workers)
    assert after == after_some
    assert some[-16:] == all_of_them[-16:]
    assert set(some[:-16]) < set(all_of_them[:16])


def test_augmentation_does_not_notice(batches):
    class Augmented(Counted):
        def __getitem__(self, index):
            super().__getitem__(index)
            return torch.rand(())

    torch.manual_seed(1)
    loop = Loop(batches, {3: 4})
    generator = torch.Generator().manual_seed(2)
    iterator = iter(DataLoader(Augmented(12), batch_size=1, generator=generator))
    state = torch.get_rng_state()
    loop.epoch(iterator)
    torch.set_rng_state(state)
    assert [float(x) for x in loop.seen] == [float(torch.rand(())) for _ in range(8)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_item_is_an_error_only_if_it_is_loaded(batches, workers):
    loop = Loop(batches, {3: 4})
    # 3 ... 6 are passed over without workers, 5 ... 8 behind two that are loading.
    loop.epoch(DataLoader(Counted(20, bad=[3 if workers == 0 else 8]), batch_size=1, num_workers=workers))
    assert len(loop.seen) == 16


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_dataset_come_as_always(batches, workers):
    loop = Loop(batches, {3: 2})
    with pytest.raises(ValueError, match="item 9 is broken"):
        loop.epoch(DataLoader(Counted(20, bad=[9]), batch_size=1, num_workers=workers))
    assert batches.executed == 7


def test_errors_of_a_batch_that_is_loaded_to_be_passed_over_come_as_always(batches):
    data = Counted(12, bad=[10])
    loop = Loop(batches, {9: 4})
    iterator = iter(DataLoader(data, batch_size=1, num_workers=1, prefetch_factor=2))
    with pytest.raises(ValueError, match="item 10 is broken"):
        loop.epoch(iterator)
    # As without us, the loop may go on behind the broken one.
    loop.epoch(iterator)
    assert numbers(loop.seen) == list(range(9))
    assert (batches.skipped, batches.left_over) == (3, 1)


def test_errors_of_the_users_sampler_come_as_always(batches):
    def indices():
        yield from range(6)
        raise RuntimeError("no more")

    loop = Loop(batches, {3: 8})
    with pytest.raises(RuntimeError, match="no more"):
        loop.epoch(DataLoader(Counted(10), batch_sampler=([i] for i in indices())))
    assert batches.skipped == 3


def test_a_loader_can_be_pickled_after_it_was_used(batches):
    loader = DataLoader(Counted(6), batch_size=2)
    Loop(batches).epoch(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert numbers(again) == list(range(6))
    assert vars(loader).keys() == vars(again).keys()
    assert not any("starprof" in name for name in vars(loader))


class Nested(Counted):
    """An item is what a loader inside of the worker gives."""

    def __getitem__(self, index):
        inner = iter(DataLoader(Counted(4), batch_size=1))
        assert steps.taker is None
        assert not any("starprof" in name for name in vars(inner))
        return sum(numbers(inner)) + index


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_see_nothing_of_it(batches, context):
    loop = Loop(batches, {3: 2})
    loop.epoch(DataLoader(Nested(9), batch_size=1, num_workers=1, multiprocessing_context=context))
    assert numbers(loop.seen) == [6 + i for i in (0, 1, 2, 3, 4, 7, 8)]


DEADLY = """
import atexit
import os
from batches_play import Counted, DataLoader, Loop, installed, numbers

class Deadly(Counted):
    def __getitem__(self, index):
        if index == 6:
            os._exit(1)
        return super().__getitem__(index)

with installed() as batches:
    loop = Loop(batches, {3: 30})

    def report():
        os.write(1, (str(numbers(loop.seen)) + chr(10)).encode())

    def report_at_last():
        try:
            report()
        except RuntimeError:  # the worker's end is told by a signal, which may come as late as now
            report()

    atexit.register(report_at_last)
    loop.epoch(DataLoader(Deadly(20), batch_size=1, num_workers=1, prefetch_factor=4))
"""

NOTICED = r"worker .* exited unexpectedly|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError"


def test_a_worker_that_dies_is_an_error_as_always():
    """In a process that the error ends: torch has several ways to notice, one out of a signal handler at any moment.

    So a second error may even come while the first one is being printed.
    """
    folders = [str(Path(__file__).parent), str(Path(starprof.__file__).parents[1])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", DEADLY]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert re.search(NOTICED, done.stderr), done.stderr
    assert "AssertionError" not in done.stderr
    seen = json.loads(done.stdout.splitlines()[0])
    assert seen == list(range(len(seen)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs an accelerator")
@pytest.mark.parametrize("persistent", [False, True])
def test_pinned_memory(batches, persistent):
    loop = Loop(batches, {3: 4, 6: 20})
    loader = DataLoader(Counted(20), batch_size=1, num_workers=2, pin_memory=True, persistent_workers=persistent)
    loop.epoch(loader)
    loop.epoch(loader)
    assert all(batch.is_pinned() for batch in loop.seen)
    assert numbers(loop.seen) == expected(20, {3: 4, 6: 20}, 2, ahead=4)[0]
