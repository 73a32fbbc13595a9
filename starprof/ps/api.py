"""What a training script calls: `starprof.ps.wrap`."""

from __future__ import annotations

import atexit
import contextlib
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from starprof.errors import UsageError
from starprof.hook import identity
from starprof.hook.phases import BLOCKED
from starprof.ps.find import Wish, found, world_size
from starprof.ps.spec import HALVES
from starprof.ps.worker.worker import PATIENCE_S, Worker, quiet_close


def wrap(
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    mode: str = "ssgd",
    shards: int = 1,
    clip_norm: float = 0.0,
    half: str = "",
    server: str | None = None,
    state: str | None = None,
    patience_s: float = PATIENCE_S,
    **options: Any,
) -> Worker:
    """Train a model on a parameter server: `optimizer.step()` hands the gradients in and takes the parameters.

    To be called by all workers, before the loop. All begin with the parameters of the first one. Where no server is
    running (`starprof ps serve`), the first worker starts one, which ends with the job.

    Args:
        model: the plain module, in no wrapper that reduces gradients.
        optimizer: whose step it becomes; the server runs it, with the hyper-parameters that it has here at each step.
        mode: of synchronisation at the start.
        shards: processes that the parameters are spread over, where the server is started here.
        clip_norm: each update's gradient is clipped to this norm, over all shards; 0: it is not.
        half: type that gradients are sent in, float16 or bfloat16; "": their own.
        server: HOST:PORT of a server's head that is running; None: what STARPROF_PS says, else the job's own.
        state: folder of what must outlive the shards' processes; None: one of the job's own, gone when it is over.
        patience_s: a server that can't be reached for so long is given up with an error.
        options: of the mode, such as `m=3`.

    Returns:
        The worker: its `version`, and `pull()` for the newest parameters.

    Raises:
        StarprofError: the optimizer or the model is none for a parameter server, or there is no server.
    """
    if half not in ("", *HALVES):
        raise UsageError(f"gradients can't be sent as {half!r}; there are {' and '.join(HALVES)}")
    rank, world = identity.global_rank(), world_size()
    wish = Wish(mode, dict(options), shards, clip_norm, state)
    address, secret = found(wish, rank, world, server)
    worker = Worker(model, optimizer, rank, address, secret, half=half, patience_s=patience_s)
    worker.begin()
    replace_step(optimizer, worker)
    atexit.register(quiet_close, worker)
    forget = weakref.WeakMethod(worker.forget)
    os.register_at_fork(after_in_child=lambda: _call(forget))
    return worker


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    ours = method()
    if ours is not None:
        ours()


def replace_step(optimizer: Optimizer, worker: Worker) -> None:
    """From now on the optimizer's step is the worker's."""
    waiting = _waiting()

    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with waiting():
            worker.step()
        self._opt_called = True  # schedulers made before `wrap` look for it
        return loss

    # Hooks of optimizers, the recording's among them, are called as around any step; schedulers wrap a bound method.
    hooked: Any = Optimizer.profile_hook_step(step)
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        hooked._wrapped_by_lr_sched = True
    optimizer.step = types.MethodType(hooked, optimizer)


def _waiting() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Records, where the job is recorded, that a worker waits for others."""
    from starprof.hook.install import install

    installed = install()
    if installed is None:
        return contextlib.nullcontext
    recorder, guard = installed.hook.recorder, installed.hook.guard

    @contextlib.contextmanager
    def waiting() -> Any:
        token = guard.attempt(recorder.enter, BLOCKED)
        try:
            yield
        finally:
            if token is not None:
                guard.attempt(recorder.machine.leave, token)

    return waiting
