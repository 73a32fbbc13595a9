"""What the user's loop does between two synchronisations: noted, checked for what isn't known, or left out."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from starprof.control.engine.dtensors import replicated
from starprof.control.engine.state import Untaken, kind_of
from starprof.control.engine.updating.changes import Changes, Finding
from starprof.control.engine.updating.history import History
from starprof.control.engine.updating.hyper import Borrowed, Hyper, marks, same
from starprof.control.engine.updating.operations import (
    CLIPS,
    READS_GRADIENTS,
    STEPS,
    Captured,
    Kind,
    Operation,
    capture,
)
from starprof.control.engine.updating.parts import Parts
from starprof.control.engine.updating.wrapping import Call
from starprof.hook.boundary import Guard

CHECK_EVERY = 64
"""Native steps from one check for unknown code to the next, once the loop is known."""


class Mode(Enum):
    """What becomes of the operations that the user's loop calls."""

    ASIDE = "not part of an iteration, or nobody asked yet"
    OWN = "they are noted"
    SKIP = "they are left out"
    REPLAY = "they are the engine's"


@dataclass(slots=True)
class Window:
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


class Watch:
    """Looks at every operation that the user calls (`wrapping.Observer`).

    Attributes:
        parts: what updates touch.
        history: of the loop.
        known: what the loop does in every iteration; the last that was settled.
        borrowed: hyper-parameters that are set for an update of other ranks.
        window: the current one.
        mode: what to do.
        deviated: in rounds the loop has made an update in another way than it is known to.
        beside: schedules and averages that were used between epochs.
        untaken: states of such that another rank had, and this one has not used yet.
        on_left_out: called in the place of an optimizer's step that is left out.
        wrap: called with an optimizer that was met late.
    """

    def __init__(self, guard: Guard, parts: Parts) -> None:
        """Nothing was seen yet."""
        self._guard = guard
        self.parts = parts
        self.history = History()
        self.known: tuple[Operation, ...] = ()
        self.borrowed = Borrowed()
        self.window: Window | None = None
        self.mode = Mode.ASIDE
        self.deviated = False
        self.beside: list[weakref.ref[Any]] = []
        self.untaken: Untaken = []
        self.on_left_out: Callable[[Optimizer], None] | None = None
        self.wrap: Callable[[Optimizer], None] = lambda _optimizer: None
        self._changes = Changes()
        self._findings: list[tuple[Finding, Operation]] = []
        self._inside: Operation | None = None
        self._captured = Captured(parts)
        self._thread = get_ident()
        self._iterations = 0

    # Windows.

    def open(self) -> None:
        """A synchronising backward pass is over in this thread."""
        self.close()
        self.hear()
        self._thread = get_ident()
        self._inside = None
        self._iterations += 1
        history = self.history
        # What is refused stays so: there is nothing to look for any more, and looking reads every gradient.
        checked = history.refusal is None and (history.settled is None or self._iterations % CHECK_EVERY == 0)
        self.window = Window(checked=checked)
        self.mode = Mode.OWN
        self.expect()

    def close(self) -> None:
        """An iteration is over."""
        self.borrowed.give_back()
        window, self.window = self.window, None
        self.mode = Mode.ASIDE
        if window is None:
            return
        if window.checked and self._changes.of_parameters(self.parts.parameters):
            self.history.refuse(
                "code that starprof doesn't know changes parameters outside of the optimizer's step, or makes the step "
                "(a compiled one?); it can't be replayed"
            )
        sequence = tuple(window.operations)
        if window.rounds and sequence != self.known:
            self.history.refuse("the loop's updates are made in another way than before rounds began")
            self.deviated = True
        self.history.add(sequence)
        self.known = self.history.settled or self.known

    def expect(self) -> None:
        """From here on only known operations may change gradients, parameters and hyper-parameters."""
        window = self.window
        if window is None or not window.checked:
            self._changes.forget()
            return
        self._changes.note(self.parts.parameters, checksums=not window.rounds)
        window.hyper = marks(self.parts.optimizers)

    def hear(self, *, wait: bool = False) -> None:
        """What was found about earlier changes, as far as it is there; with `wait` all of it."""
        for finding, operation in [found for found in self._findings if wait or found[0].is_there]:
            self._findings.remove((finding, operation))
            if finding:
                self._refuse_change("changes gradients through .data", operation)

    def leave_out(self, window: Window, operations: tuple[Operation, ...]) -> None:
        """These are not to be made when the user's loop comes to them."""
        window.checked = False
        window.steps_left = 0
        window.left_out = Counter(operations)
        self._changes.forget()
        self.mode = Mode.SKIP

    # What the wrappers tell.

    def begin(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """See `wrapping.Observer`."""
        if self.mode is Mode.REPLAY or self._inside is not None or self._guard.off or get_ident() != self._thread:
            return None
        if self.mode is Mode.ASIDE:
            if kind in (Kind.SCHEDULE, Kind.AVERAGE):
                self._guard.attempt(self._note_beside, kind, args, kwargs)
            return None
        if self.parts.on_cuda and torch.cuda.is_current_stream_capturing():
            self.history.refuse(f"{kind.value} is captured in a CUDA graph; it can't be replayed by its name")
            return None
        call = Call(args, kwargs)
        try:
            if kind in (Kind.UNSCALE, Kind.SCALED_STEP):
                self._meet(args[1] if len(args) > 1 else kwargs.get("optimizer"))
            if kind in CLIPS:
                _keep_tensors(call)
            call.operation = self._captured.of(kind, call.args, call.kwargs)
            if call.operation is not None and self.window is not None:
                self._begun(call, call.operation, self.window)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._guard.swallow(error)
            self.history.refuse(f"{kind.value} could not be watched: {type(error).__name__}")
            # What is to change nothing must not, even so.
            call.left_out = self.mode is Mode.SKIP
        return call

    def end(self, call: Call) -> None:
        """See `wrapping.Observer`."""
        if call.operation is not None:
            self._inside = None
            self._guard.attempt(self._ended, call.operation)

    def _meet(self, optimizer: Any) -> None:
        """A scaler works on an optimizer before that one's first step of all."""
        if isinstance(optimizer, Optimizer) and not self.parts.has(optimizer) and self.parts.concerns(optimizer):
            self._add(optimizer)

    def _add(self, optimizer: Optimizer) -> None:
        """Its hyper-parameters count from here on: what they were at the backward pass was not looked at."""
        self.parts.add(optimizer)
        self.wrap(optimizer)
        if self.window is not None and self.window.hyper is not None:
            self.window.hyper = [*self.window.hyper, *marks([optimizer])]

    def _begun(self, call: Call, operation: Operation, window: Window) -> None:
        left = window.left_out[operation] if window.left_out else 0
        if left > 0 or (self.mode is Mode.SKIP and operation.kind in READS_GRADIENTS):
            call.left_out = True
            window.left_out[operation] = max(0, left - 1)
        elif self.mode is Mode.OWN and window.checked and operation.kind in READS_GRADIENTS:
            self._check(window, operation)
        window.operations.append(operation)
        if call.left_out:
            self._answer(call, operation)
        else:
            self._inside = operation

    def _ended(self, operation: Operation) -> None:
        window = self.window
        if window is None:
            return
        if operation.kind in STEPS and window.steps_left:
            window.steps_left -= 1
            if not window.steps_left:
                self.borrowed.give_back()
        self.expect()

    def _answer(self, call: Call, operation: Operation) -> None:
        """In the place of an operation: the norm of no gradients, or word of a step that is not made."""
        if operation.kind is Kind.CLIP_NORM:
            parameter = self.parts.at(operation.places[:1])[0]
            zero = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
            call.result = replicated(zero, parameter)
        elif operation.kind in STEPS and self.on_left_out is not None:
            for optimizer in self.parts.optimizers:
                if operation.of(optimizer):
                    self.on_left_out(optimizer)

    def _note_beside(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if capture(kind, args, kwargs, self.parts) is not None and all(ref() is not args[0] for ref in self.beside):
            self.beside.append(weakref.ref(args[0]))
            kind_here = kind_of(args[0])
            state = next((state for name, state in self.untaken if name == kind_here), None)
            if state is not None:
                self.untaken.remove((kind_here, state))
                args[0].load_state_dict(state)

    # What is refused.

    def _check(self, window: Window, operation: Operation) -> None:
        """Before a known operation: has anything unknown come before it?"""
        change = self._changes.of_gradients(self.parts.parameters)
        if change:
            self._refuse_change(change, operation)
        elif (finding := self._changes.behind_their_back(self.parts.parameters)) is not None:
            self._findings.append((finding, operation))
            self.hear()
        if operation.kind not in STEPS:
            return
        if window.hyper is not None and not same(window.hyper, marks(self.parts.optimizers)):
            self.history.refuse(
                f"hyper-parameters are set between the backward pass and {operation.name}; set them before the forward "
                "pass"
            )
        for optimizer in self.parts.optimizers:
            if self.parts.foreign(optimizer):
                self.history.refuse(
                    f"{type(optimizer).__name__} also trains parameters that are not the model's, which rounds don't "
                    "synchronise"
                )

    def _refuse_change(self, change: str, operation: Operation) -> None:
        self.history.refuse(
            f"code that starprof doesn't know {change} between the backward pass and {operation.name}; it can't be "
            "replayed"
        )

    def step_seen(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Any optimizer of the process steps; those that are wrapped are known."""
        if self.mode in (Mode.ASIDE, Mode.REPLAY) or get_ident() != self._thread or self.parts.has(optimizer):
            return
        name = type(optimizer).__name__
        if not self.parts.concerns(optimizer):
            self.history.refuse(f"{name} trains parameters outside of the model, which rounds don't synchronise")
            return
        # Made later than the others: its steps are seen from the next one on.
        if self.window is not None and self.window.rounds:
            self.history.refuse(f"{name} was made while rounds were on")
        self._add(optimizer)
        self.history.restart()
        self.window = None


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
