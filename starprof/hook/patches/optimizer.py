"""The optimizer's step, whose end is the boundary between two training steps.

With several optimizers one is the anchor: the first that steps. A training step goes from one step of the anchor
to the next. Another one takes over when the anchor is gone, or has not stepped while others did `PATIENCE` times.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from threading import get_ident
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from starprof.hook.boundary import uncompiled
from starprof.hook.gpuclock import GPU_OPTIMIZER
from starprof.hook.identity import in_process_group
from starprof.hook.phases import OPTIMIZER, UNACCOUNTED
from starprof.hook.roots import framework_of
from starprof.hook.session import Hook
from starprof.model.rundata import MOMENTUM

PATIENCE = 64


class StepBoundary:
    """Sees every optimizer step of the process."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._recorder = hook.recorder
        self._known: dict[int, weakref.ref[Any]] = {}
        self._anchor = 0
        self._met: set[int] = set()
        self._others = 0
        self._around = UNACCOUNTED
        self._quiet = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Steps in here end no training step: they make up for updates that came in the middle of one."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def left_out(self, optimizer: Any) -> None:
        """The loop's own step of this optimizer was left out, and ends a training step all the same."""
        if self._recorder.owner == get_ident() and self.ends_step(optimizer):
            self._recorder.finish_step()

    def watch(self, optimizer: Any) -> None:
        """Make this one the anchor."""
        self._know(optimizer)
        self._anchor = id(optimizer)
        self._others = 0

    def _know(self, optimizer: Any) -> None:
        """Its id stands for it until it is freed."""
        key = id(optimizer)
        if key not in self._known:
            self._known[key] = weakref.ref(optimizer, lambda _reference: self._gone(key))

    def _gone(self, key: int) -> None:
        self._known.pop(key, None)
        self._met.discard(key)
        if self._anchor == key:
            self._anchor = 0

    def before(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Pre-hook of every optimizer."""
        recorder = self._recorder
        if self._quiet or (recorder.owner != get_ident() and (recorder.owner or not recorder.activate())):
            return
        if id(optimizer) not in self._met:
            with uncompiled():
                self._meet(optimizer)
        around = recorder.machine.enter(OPTIMIZER)
        # After an exception in a step there was no post-hook: the phase is still ours.
        self._around = UNACCOUNTED if around == OPTIMIZER else around
        if recorder.gpu is not None:
            recorder.gpu.begin(GPU_OPTIMIZER)

    def after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Post-hook of every optimizer."""
        recorder = self._recorder
        if self._quiet or recorder.owner != get_ident():
            return
        if recorder.gpu is not None:
            recorder.gpu.end(GPU_OPTIMIZER)
        recorder.machine.leave(self._around)
        if self.ends_step(optimizer):
            recorder.finish_step()

    def ends_step(self, optimizer: Any) -> bool:
        """Whether this optimizer is the anchor (it may become it here)."""
        if self._recorder.explicit:
            return False
        if self._anchor != id(optimizer):
            self._others += 1
            if self._anchor and self._others < PATIENCE:
                return False
            self.watch(optimizer)
        self._others = 0
        return True

    def _meet(self, optimizer: Any) -> None:
        """First step of an optimizer: its parameters and the models around them."""
        self._know(optimizer)
        self._met.add(id(optimizer))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        hook, recorder = self._hook, self._recorder
        hook.roots.learn(parameters)
        recorder.framework = framework_of(hook.roots.modules(), in_process_group())
        if recorder.framework not in ("fsdp1", "fsdp2"):
            hook.arrival.track(parameters)
        recorder.detail["parameters"] = recorder.detail.get("parameters", 0) + sum(p.numel() for p in parameters)
        recorder.detail["optimizers"] = len(self._met)
        momentum = momentum_of(optimizer)
        if momentum is not None:
            recorder.detail[MOMENTUM] = max(momentum, recorder.detail.get(MOMENTUM, 0.0))


def momentum_of(optimizer: Any) -> float | None:
    """The most of its parameter groups, also of what a schedule will raise it to; None: it has nothing of it.

    A number on a device is left alone, reading it would wait for the device.
    """
    found = []
    for group in optimizer.param_groups:
        betas = group.get("betas")
        told = [
            group.get("momentum"),
            group.get("max_momentum"),
            betas[0] if isinstance(betas, (tuple, list)) else None,
        ]
        found += [float(value) for value in told if isinstance(value, Real)]
    found = [value for value in found if 0.0 <= value < 1.0]
    return max(found, default=None)


def install(hook: Hook) -> StepBoundary:
    """Register the step hooks; a step that GradScaler skips (inf or nan) is a boundary all the same."""
    boundary = StepBoundary(hook)
    register_optimizer_step_pre_hook(hook.guard.callback(boundary.before))
    register_optimizer_step_post_hook(hook.guard.callback(boundary.after))
    recorder = hook.recorder

    def enter(args: Any, kwargs: Any) -> Any:
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        token = recorder.enter(OPTIMIZER)
        return None if token is None or not isinstance(optimizer, Optimizer) else (token, recorder.step, optimizer)

    def leave(token: Any, _result: Any) -> None:
        around, step, optimizer = token
        recorder.machine.leave(around)
        if recorder.step == step and boundary.ends_step(optimizer):
            recorder.finish_step()

    hook.wrap(torch.amp.GradScaler, "step", enter, leave)
    return boundary
