"""Watches how the user's loop makes an update, replays it, and makes the loop's own one change nothing."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from starprof.control.engine.updating.changes import Changes
from starprof.control.engine.updating.history import History
from starprof.control.engine.updating.hyper import Borrowed, Hyper, same, snapshot
from starprof.control.engine.updating.operations import CLIPS, READS_GRADIENTS, STEPS, Kind, Operation, capture
from starprof.control.engine.updating.parts import Parts, UpdatingError
from starprof.control.engine.updating.wrapping import Call, Wrapping
from starprof.hook.boundary import Guard
from starprof.hook.lateimport import after_import
from starprof.hook.patches.compilation import keep_out_of_graphs

CHECK_EVERY = 64
"""Native steps from one check for unknown code to the next, once the loop is known."""


class _Mode(Enum):
    """What becomes of the operations that the user's loop calls."""

    ASIDE = "not part of an iteration, or nobody asked yet"
    OWN = "they are noted"
    SKIP = "they are left out"
    REPLAY = "they are ours"


@dataclass(slots=True)
class _Window:
    """From one synchronisation to the next.

    Attributes:
        operations: that the user's loop has called.
        rounds: its update was put there, or left out: it is no native step.
        checked: changes to gradients and parameters are looked for.
        hyper: as it was, and as known operations have left it.
        steps_left: until the update's hyper-parameters are given back.
        left_out: how often each operation is still to be left out.
    """

    operations: list[Operation] = field(default_factory=list)
    rounds: bool = False
    checked: bool = False
    hyper: Hyper | None = None
    steps_left: int = 0
    left_out: Counter[Operation] = field(default_factory=Counter)


class Updating:
    """The updates of one model.

    In native steps `learn` at each synchronisation is all. In rounds it is followed by any number of `replay`, and then
    by `own`, with the last update's gradients in place, or by `skip_own`.
    """

    def __init__(
        self,
        guard: Guard,
        model: Module,
        optimizers: Iterable[Optimizer],
        *,
        quiet: Callable[[], AbstractContextManager[Any]] = nullcontext,
        left_out: Callable[[Optimizer], None] | None = None,
    ) -> None:
        """Prepare; `install` makes it see.

        Args:
            guard: takes whatever goes wrong in here.
            model: whose parameters are synchronised.
            optimizers: of the model, as far as they are known; others are met at their first step.
            quiet: around every replay, for whoever else watches optimizers.
            left_out: called in the place of an optimizer's step that is left out.
        """
        self._guard = guard
        self._parts = Parts(model, optimizers)
        self._wrapping = Wrapping(self)
        self._changes = Changes()
        self._history = History()
        self._borrowed = Borrowed()
        self._quiet = quiet
        self._on_left_out = left_out
        self._known: tuple[Operation, ...] = ()
        self._window: _Window | None = None
        self._mode = _Mode.ASIDE
        self._inside: Operation | None = None
        self._thread = 0
        self._iterations = 0
        self._hook: Any = None

    def install(self) -> None:
        """Put the wrappers in."""
        self._wrapping.install()
        for optimizer in self._parts.optimizers:
            self._wrapping.optimizer(optimizer)
        self._hook = register_optimizer_step_pre_hook(self._guard.callback(self._step_seen))
        after_import("torch._dynamo", lambda _module: self._guard.attempt(keep_out_of_graphs))
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _put_aside(itself()))

    def restore(self) -> None:
        """Take the wrappers off."""
        self._mode = _Mode.ASIDE
        self._borrowed.give_back()
        self._wrapping.restore()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    # What the engine asks.

    @property
    def recorded(self) -> tuple[Operation, ...]:
        """What the loop did after the last synchronisation but one; empty before anything is known."""
        return self._history.last or ()

    @property
    def refusal(self) -> str | None:
        """Why updates can't be replayed in this loop."""
        return self._history.refusal

    @property
    def ready(self) -> bool:
        """Whether the loop is known well enough to replay what it does."""
        return self._history.settled is not None

    def hyper(self) -> Hyper:
        """The hyper-parameters of the update that comes next, if this rank makes it."""
        return snapshot(self._parts.optimizers)

    def scale(self) -> float:
        """The factor that gradients have in this rank's parameters just now: its loss scale."""
        scaler = next((scaler for scaler in self._parts.scalers if scaler.is_enabled()), None)
        return 1.0 if scaler is None else float(scaler.get_scale())

    def unscale_factor(self) -> float:
        """What gradients are multiplied by to be the same thing on all ranks."""
        return 1.0 / self.scale()

    # What the engine tells.

    def learn(self) -> None:
        """A synchronising backward pass is over, native or not: an iteration's operations follow."""
        self._close()
        self._thread = get_ident()
        self._iterations += 1
        checked = not self.ready or self._iterations % CHECK_EVERY == 0
        self._window = _Window(checked=checked)
        self._mode = _Mode.OWN
        self._expect()

    def epoch_ended(self) -> None:
        """The loader is at its end: what comes until the next synchronisation belongs to the epoch."""
        self._close()
        self._window = None
        self._mode = _Mode.ASIDE

    def replay(self, put_gradients: Callable[[], None], hyper: Hyper) -> None:
        """Make an update as the user's loop does.

        Args:
            put_gradients: sets each parameter's gradient (a copy: clipping writes into it), times `scale()`.
            hyper: the hyper-parameters of the update.

        Raises:
            UpdatingError: it can't be made, and nothing was changed.
        """
        if not self._known:
            raise UpdatingError("how the training loop makes its updates is not known yet")
        calls = [operation.again(self._parts, self._wrapping.clip) for operation in self._known]
        steps = self._steps()
        mode, self._mode = self._mode, _Mode.REPLAY
        try:
            with self._quiet():
                put_gradients()
                self._borrowed.take(self._parts.optimizers, hyper)
                for operation, call in zip(self._known, calls, strict=True):
                    call()
                    steps -= operation.kind in STEPS
                    if not steps:
                        self._borrowed.give_back()
        finally:
            self._borrowed.give_back()
            self._mode = mode

    def own(self, hyper: Hyper) -> None:
        """The loop makes the next update itself: its gradients, times `scale()`, are in the parameters."""
        window = self._in_rounds()
        self._borrowed.take(self._parts.optimizers, hyper)
        window.steps_left = self._steps()
        window.checked = True
        self._expect()

    def skip_own(self) -> None:
        """Until the next synchronisation the loop's own operations change nothing."""
        window = self._in_rounds()
        window.checked = False
        window.left_out = Counter(self._known)
        self._changes.forget()
        self._mode = _Mode.SKIP

    def _in_rounds(self) -> _Window:
        if self._window is None:
            raise UpdatingError("there was no synchronisation: learn() comes first")
        self._window.rounds = True
        return self._window

    def _steps(self) -> int:
        return sum(operation.kind in STEPS for operation in self._known)

    def _close(self) -> None:
        """An iteration is over."""
        self._borrowed.give_back()
        window = self._window
        if window is None:
            return
        if window.checked and self._changes.of_parameters(self._parts.parameters):
            self._history.refuse(
                "code that starprof doesn't know changes parameters outside of the optimizer's step, or makes the step "
                "(a compiled one?); it can't be replayed"
            )
        sequence = tuple(window.operations)
        if window.rounds and sequence != self._known:
            self._history.refuse("the loop's updates are made in another way than before rounds began")
        self._history.add(sequence)
        self._known = self._history.settled or self._known

    def _expect(self) -> None:
        """From here on only known operations may change gradients, parameters and hyper-parameters."""
        window = self._window
        if window is None or not window.checked:
            self._changes.forget()
            return
        self._changes.note(self._parts.parameters, checksums=not window.rounds)
        window.hyper = self.hyper()

    # What the wrappers tell.

    def begin(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """See `wrapping.Observer`."""
        guard = self._guard
        if self._mode not in (_Mode.OWN, _Mode.SKIP) or self._inside is not None or guard.off:
            return None
        if get_ident() != self._thread:
            return None
        call = Call(args, kwargs)
        try:
            if kind in CLIPS:
                _keep_tensors(call)
            call.operation = capture(kind, call.args, call.kwargs, self._parts)
            if call.operation is not None:
                self._begun(call, call.operation)
        except Exception as error:  # noqa: BLE001 - the boundary
            guard.swallow(error)
            self._history.refuse(f"{kind.value} could not be watched: {type(error).__name__}")
            # What is to change nothing must not, even so.
            call.left_out = self._mode is _Mode.SKIP and kind in READS_GRADIENTS
        return call

    def _begun(self, call: Call, operation: Operation) -> None:
        window = self._window
        assert window is not None
        if self._mode is _Mode.SKIP:
            left = window.left_out[operation]
            call.left_out = left > 0 or operation.kind in READS_GRADIENTS
            window.left_out[operation] = max(0, left - 1)
        if call.left_out:
            window.operations.append(operation)
            self._leave_out(call, operation)
            return
        if window.checked and operation.kind in READS_GRADIENTS:
            self._check(window, operation)
        window.operations.append(operation)
        self._inside = operation

    def end(self, call: Call) -> None:
        """See `wrapping.Observer`."""
        if call.operation is None:
            return
        self._inside = None
        self._guard.attempt(self._ended, call.operation)

    def _ended(self, operation: Operation) -> None:
        window = self._window
        if window is None:
            return
        if operation.kind in STEPS and window.steps_left:
            window.steps_left -= 1
            if not window.steps_left:
                self._borrowed.give_back()
        self._expect()

    def _check(self, window: _Window, operation: Operation) -> None:
        """Before a known operation: has anything unknown come before it?"""
        parameters = self._parts.parameters
        change = self._changes.of_gradients(parameters)
        if change:
            self._history.refuse(
                f"code that starprof doesn't know {change} between the backward pass and {operation.name}; it can't be "
                "replayed"
            )
        if operation.kind in STEPS:
            if window.hyper is not None and not same(window.hyper, self.hyper()):
                self._history.refuse(
                    f"hyper-parameters are set between the backward pass and {operation.name}; set them before the "
                    "forward pass"
                )
            self._look_for_foreign()

    def _look_for_foreign(self) -> None:
        for optimizer in self._parts.optimizers:
            if self._parts.foreign(optimizer):
                self._history.refuse(
                    f"{type(optimizer).__name__} also trains parameters that are not the model's, which rounds don't "
                    "synchronise"
                )

    def _leave_out(self, call: Call, operation: Operation) -> None:
        if operation.kind is Kind.CLIP_NORM:
            parameter = self._parts.at(operation.places[:1])[0]
            call.result = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        elif operation.kind in STEPS and self._on_left_out is not None:
            for optimizer in self._parts.optimizers:
                if operation.of(optimizer):
                    self._on_left_out(optimizer)

    def _step_seen(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Any optimizer of the process steps."""
        if self._mode in (_Mode.ASIDE, _Mode.REPLAY) or get_ident() != self._thread or self._parts.has(optimizer):
            return
        if self._parts.concerns(optimizer):
            # Made later than the others: its steps are seen from the next one on.
            self._parts.add(optimizer)
            self._wrapping.optimizer(optimizer)
            self._history.restart()
            if self._window is not None:
                self._window.checked = False
                if self._window.rounds:
                    self._history.refuse(f"{type(optimizer).__name__} was made while rounds were on")
            self._window = None
        else:
            self._history.refuse(
                f"{type(optimizer).__name__} trains parameters outside of the model, which rounds don't synchronise"
            )


def _keep_tensors(call: Call) -> None:
    """The tensors to clip as a list: a generator would be empty after we have looked at it."""
    given = call.args[0] if call.args else call.kwargs["parameters"]
    if isinstance(given, Tensor | list | tuple):
        return
    tensors = list(given)
    # torch warns of an empty generator, and of nothing else that is empty.
    kept: Any = tensors or (tensor for tensor in tensors)
    if call.args:
        call.args = (kept, *call.args[1:])
    else:
        call.kwargs = {**call.kwargs, "parameters": kept}


def _put_aside(updating: Updating | None) -> None:
    """In a forked child nothing is watched."""
    if updating is not None:
        updating._mode = _Mode.ASIDE
