"""The backward pass: `torch.autograd.backward`, which `Tensor.backward` calls too."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import torch

from starprof.hook.gpuclock import GPU_BACKWARD
from starprof.hook.phases import BACKWARD
from starprof.hook.session import Hook


def install(hook: Hook) -> None:
    """Wrap `torch.autograd.backward`."""
    recorder, arrival, roots = hook.recorder, hook.arrival, hook.roots

    def enter(_args: Any, _kwargs: Any) -> int | None:
        if recorder.depth:
            return None  # checkpointing with re-entrant autograd: part of the pass around it
        me = get_ident()
        if recorder.owner != me:
            if not recorder.owner:
                if not recorder.activate():
                    return None
            elif recorder.backwards:
                return None
            # The group may have been made in one thread and the loop run in another.
            recorder.owner = me
        if roots.evaluating:
            roots.evaluate(begins=False)
        token = recorder.machine.enter(BACKWARD)
        if not recorder.started:
            recorder.begin_step_again()
        recorder.depth = 1
        recorder.backwards += 1
        recorder.micro_batches += 1
        recorder.sync_point = False
        if recorder.gpu is not None:
            recorder.gpu.begin(GPU_BACKWARD)
        return token

    def leave(token: int, _result: Any) -> None:
        recorder.depth = 0
        if recorder.gpu is not None:
            recorder.gpu.end(GPU_BACKWARD)
        recorder.machine.leave(token)
        arrival.end_of_backward()

    hook.wrap(torch.autograd, "backward", enter, leave)
