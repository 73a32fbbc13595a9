"""Loops over real loaders, datasets that know what was read from them, and what should have been."""

import contextlib

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from starprof.control.engine.batches import Batches
from starprof.control.engine.batches.source import STEADY
from starprof.hook import steps
from starprof.hook.boundary import Guard

PATCHED = [(_BaseDataLoaderIter, "__init__"), (_BaseDataLoaderIter, "_reset"), (_BaseDataLoaderIter, "__next__")]


@contextlib.contextmanager
def installed(errors=0):
    """Batches in place of torch as it was, and torch as it was afterwards."""
    before = [getattr(holder, name) for holder, name in PATCHED]
    batches, guard = Batches(), Guard()
    try:
        batches.install(guard)
        yield batches
        assert guard.errors == errors
    finally:
        steps.taker = None
        for (holder, name), original in zip(PATCHED, before, strict=True):
            setattr(holder, name, original)


class Counted(Dataset):
    """Items 0 ... n-1; how often each was read, in whatever process, is in `reads`."""

    def __init__(self, n, bad=()):
        self.reads = torch.zeros(n, dtype=torch.int32).share_memory_()
        self.bad = set(bad)

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        if index in self.bad:
            raise ValueError(f"item {index} is broken")
        return index


class Stream(IterableDataset):
    """The same as a stream; with workers, each has every second item. It may have no length."""

    def __init__(self, n):
        self.reads = torch.zeros(n, dtype=torch.int32).share_memory_()

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.reads), every):
            self.reads[index] += 1
            yield index


class Loop:
    """A training loop over an iterable: `skips` says how many iterations are missed after which executed one."""

    def __init__(self, batches, skips=None, per_sync=1):
        self.batches, self.skips, self.per_sync = batches, skips or {}, per_sync
        self.seen = []
        self.micro = 0

    def epoch(self, iterable):
        for batch in iterable:
            self.one(batch)

    def one(self, batch):
        self.seen.append(batch)
        self.micro += 1
        if self.micro % self.per_sync == 0:
            self.batches.mark_sync()
            self.batches.skip(self.skips.get(self.batches.executed, 0))


def numbers(seen):
    """The items of batches, flat."""
    return [int(x) for batch in seen for x in (batch.reshape(-1) if isinstance(batch, torch.Tensor) else [batch])]


def warm(batches, loop=None, n=STEADY):
    """A loop of which the batches per synchronisation are known."""
    loop = loop or Loop(batches)
    loop.epoch(DataLoader(Counted(n), batch_size=1))
    return loop


def expected(length, skips, epochs=1, ahead=0):
    """Positions seen in each epoch, and what is left over, by a loop over `length` batches.

    `ahead` of them are always loading and are used before what is behind them is passed over. Each epoch begins with an
    iteration of its own.
    """
    seen, executed, pending = [], 0, 0
    for _ in range(epochs):
        undispatched = list(range(length))
        loading = [undispatched.pop(0) for _ in range(min(ahead, length))]
        first = executed
        while True:
            if pending and executed >= STEADY and executed > first:
                for queue in (undispatched, loading):
                    passed = min(pending, len(queue))
                    del queue[:passed]
                    pending -= passed
            queue = loading or undispatched
            if not queue:
                break
            seen.append(queue.pop(0))
            if ahead and undispatched:
                loading.append(undispatched.pop(0))
            executed += 1
            pending += skips.get(executed, 0)
    return seen, pending
