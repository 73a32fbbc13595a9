"""Waiting for the data loader: `next` on its iterator, and making the iterator (it starts the workers)."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from starprof.hook.batch import batch_size
from starprof.hook.phases import DATA_WAIT
from starprof.hook.session import Hook


def install(hook: Hook) -> None:
    """Wrap `_BaseDataLoaderIter.__next__` and `DataLoader.__iter__`."""
    recorder = hook.recorder
    machine = recorder.machine

    def enter(_args: Any, _kwargs: Any) -> int | None:
        if get_ident() != recorder.owner:
            return None
        token = machine.enter(DATA_WAIT)
        # Before anything is trained, a batch may be a look at the data: the step begins with the last one.
        if not recorder.backwards and machine.current == DATA_WAIT:
            recorder.begin_step_again()
        return token

    def leave(token: int, batch: Any) -> None:
        for_training = machine.current == DATA_WAIT
        machine.leave(token)
        if for_training and batch is not None:
            recorder.count_batch(*batch_size(batch))

    hook.wrap(_BaseDataLoaderIter, "__next__", enter, leave)
    hook.wrap(DataLoader, "__iter__", *hook.span(DATA_WAIT))
