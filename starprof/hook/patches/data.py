"""Waiting for the data loader: `next` on its iterator, and making the iterator (it starts the workers)."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from starprof.hook.batch import batch_size
from starprof.hook.phases import DATA_WAIT
from starprof.hook.session import Hook
from starprof.model.columns import INT_NULL


def install(hook: Hook) -> None:
    """Wrap `_BaseDataLoaderIter.__next__` and `DataLoader.__iter__`."""
    recorder = hook.recorder

    def enter(_args: Any, _kwargs: Any) -> int | None:
        token = recorder.enter(DATA_WAIT)
        # Before anything is trained, a batch may be a look at the data: the step begins with the last one.
        if token is not None and recorder.backwards == 0 and recorder.machine.current == DATA_WAIT:
            recorder.begin_step_again()
        return token

    def leave(token: int, batch: Any) -> None:
        machine = recorder.machine
        for_training = machine.current == DATA_WAIT
        machine.leave(token)
        if for_training and batch is not None:
            samples, tokens = batch_size(batch)
            if samples is not None:
                recorder.samples = samples + max(recorder.samples, 0)
            if tokens is not None:
                recorder.tokens = tokens + max(recorder.tokens, 0)

    assert INT_NULL < 0  # so that max() starts an unknown count at 0
    hook.wrap(_BaseDataLoaderIter, "__next__", enter, leave)
    hook.wrap(DataLoader, "__iter__", *hook.span(DATA_WAIT))
