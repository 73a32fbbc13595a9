"""Replays the update that the user's loop makes, and makes the loop's own one change nothing."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from starprof.control.engine.state import Untaken
from starprof.control.engine.updating.hyper import Hyper, snapshot
from starprof.control.engine.updating.operations import PACED, STEPS, Kind, Operation
from starprof.control.engine.updating.parts import Parts, UpdatingError
from starprof.control.engine.updating.watch import Mode, Watch, Window
from starprof.control.engine.updating.wrapping import Wrapping
from starprof.hook.boundary import Guard
from starprof.hook.lateimport import after_import
from starprof.hook.patches.compilation import keep_out_of_graphs


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
        self._watch = Watch(guard, self._parts)
        self._watch.on_left_out = left_out
        self._wrapping = Wrapping(self._watch)
        self._watch.wrap = self._wrapping.optimizer
        self._quiet = quiet
        self._scale = 0.0
        self._rounds = False
        self._left_out = 0
        self._hook: Any = None

    def install(self) -> None:
        """Put the wrappers in."""
        self._wrapping.install()
        for optimizer in self._parts.optimizers:
            self._wrapping.optimizer(optimizer)
        self._hook = register_optimizer_step_pre_hook(self._guard.callback(self._watch.step_seen))
        after_import("torch._dynamo", lambda _module: self._guard.attempt(keep_out_of_graphs))
        watch = weakref.ref(self._watch)
        os.register_at_fork(after_in_child=lambda: _put_aside(watch()))

    def restore(self) -> None:
        """Take the wrappers off."""
        self._watch.mode = Mode.ASIDE
        self._watch.window = None
        self._watch.borrowed.give_back()
        self._wrapping.restore()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    # What the engine asks.

    @property
    def recorded(self) -> tuple[Operation, ...]:
        """What the loop did in its last whole iteration."""
        return self._watch.history.last or ()

    @property
    def refusal(self) -> str | None:
        """Why updates can't be replayed in this loop; asked now and then, it waits for what a device has to find."""
        self._watch.hear(wait=True)
        return self._watch.history.refusal

    @property
    def deviated(self) -> bool:
        """Whether the loop has made an update in rounds in another way than it is replayed elsewhere."""
        return self._watch.deviated

    @property
    def ready(self) -> bool:
        """Whether the loop is known well enough to replay what it does."""
        return self._watch.history.settled is not None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The model's, in the order that they were met in."""
        return self._parts.optimizers

    @property
    def others(self) -> list[Any]:
        """What else updates change: schedules, the scaler, averages; of the iteration first, then of the epoch."""
        targets = [operation.target for operation in self._watch.known if operation.kind is not Kind.STEP]
        alive = [target() for target in (*targets, *self._watch.beside) if target is not None]
        return list({id(target): target for target in alive if target is not None}.values())

    def hyper(self) -> Hyper:
        """The hyper-parameters of the update that comes next, if this rank makes it."""
        return snapshot(self._parts.optimizers)

    def scale(self) -> float:
        """The factor that gradients have in this rank's parameters just now: its loss scale."""
        scaler = self._scaler()
        if scaler is None:
            return 1.0
        scale = float(scaler.get_scale())
        self._left_out += scale < self._scale
        self._scale = scale
        return scale

    def scale_on_device(self) -> Tensor | None:
        """The same where it is, which nothing waits for; None: there is no loss scale."""
        scaler = self._scaler()
        return None if scaler is None else scaler._get_scale_async()

    @property
    def left_out(self) -> int | None:
        """Updates in rounds that the loss scaler has left out, as far as `scale` has seen it fall; None without one."""
        return None if self._scaler() is None else self._left_out

    def forget_scale(self) -> None:
        """The scale may be another rank's now: where it is lower, that is no update that was left out."""
        self._scale = 0.0

    def expect_beside(self, states: Untaken) -> None:
        """The state of what another rank's loop has used between epochs; this one's has it before its first use."""
        self._watch.untaken = states

    def unscale_factor(self) -> float:
        """What gradients are multiplied by to be the same thing on all ranks."""
        return 1.0 / self.scale()

    # What the engine tells.

    def learn(self) -> None:
        """A synchronising backward pass is over, native or not: an iteration's operations follow."""
        if not self._rounds:
            self.forget_scale()
        self._rounds = False
        self._watch.open()

    def epoch_ended(self) -> None:
        """The loader is at its end: what comes until the next synchronisation belongs to the epoch."""
        self._watch.close()

    def replay(self, put_gradients: Callable[[], None], hyper: Hyper, *, paced: bool = True) -> None:
        """Make an update as the user's loop does.

        Args:
            put_gradients: sets each parameter's gradient (a copy: clipping writes into it), times `scale()`.
            hyper: the hyper-parameters of the update.
            paced: an iteration of the training is complete with it, so schedules and averages move on.

        Raises:
            UpdatingError: it can't be made, and nothing was changed.
        """
        known = tuple(o for o in self._watch.known if paced or o.kind not in PACED)
        if not known:
            raise UpdatingError("how the training loop makes its updates is not known yet")

        def put() -> None:
            put_gradients()
            self._watch.borrowed.take(self._parts.optimizers, hyper)

        self._make(known, put)

    def own(self, hyper: Hyper, *, paced: bool = True) -> None:
        """The loop makes the next update itself: its gradients, times `scale()`, are in the parameters.

        Args:
            hyper: the hyper-parameters of the update.
            paced: see `replay`; if not, the loop's own calls of schedules and averages are left out.
        """
        window = self._in_rounds()
        if not paced:
            window.left_out = Counter(o for o in self._watch.known if o.kind in PACED)
        self._watch.borrowed.take(self._parts.optimizers, hyper)
        window.steps_left = _steps(self._watch.known)
        window.checked = True
        self._watch.expect()

    def complete_own(self) -> None:
        """Make what is left of the loop's own update now; the loop's own calls of it are left out.

        For a meeting in the middle of an iteration, where later updates are made: they must not come first.

        Raises:
            UpdatingError: the loop has done other things than it does.
        """
        window = self._watch.window
        if window is None or not window.rounds or self._watch.mode is not Mode.OWN:
            return
        made = tuple(window.operations)
        rest = self._watch.known[len(made) :]
        if made + rest != self._watch.known:
            raise UpdatingError("the training loop makes this update in another way than those before")
        self._make([operation for operation in rest if not window.left_out[operation]], lambda: None)
        self._watch.leave_out(window, rest)

    def local(self) -> None:
        """The loop makes the next update itself, with its own gradients, or its group's mean of them."""
        self._in_rounds()
        self._watch.expect()

    def keep_pace(self, iterations: int) -> None:
        """Move schedules on by iterations of the training that this loop has not made."""
        self.forget_scale()
        schedules = [operation for operation in self._watch.known if operation.kind is Kind.SCHEDULE]
        for _ in range(iterations):
            self._make(schedules, lambda: None)

    def skip_own(self) -> None:
        """Until the next synchronisation the loop's own operations change nothing."""
        self._watch.leave_out(self._in_rounds(), self._watch.known)

    def _make(self, operations: Sequence[Operation], put: Callable[[], None]) -> None:
        """Do these as the loop would; hyper-parameters are an update's until its last step is made."""
        calls = [operation.again(self._parts, self._wrapping.clip) for operation in operations]
        watch, steps = self._watch, _steps(operations)
        mode, watch.mode = watch.mode, Mode.REPLAY
        try:
            with self._quiet():
                put()
                for operation, call in zip(operations, calls, strict=True):
                    call()
                    steps -= operation.kind in STEPS
                    if not steps:
                        watch.borrowed.give_back()
        finally:
            watch.borrowed.give_back()
            watch.mode = mode

    def _scaler(self) -> GradScaler | None:
        return next((scaler for scaler in self._parts.scalers if scaler.is_enabled()), None)

    def _in_rounds(self) -> Window:
        window = self._watch.window
        if window is None:
            raise UpdatingError("there was no synchronisation: learn() comes first")
        window.rounds = self._rounds = True
        return window


def _steps(operations: Iterable[Operation]) -> int:
    return sum(operation.kind in STEPS for operation in operations)


def _put_aside(watch: Watch | None) -> None:
    """In a forked child nothing is watched."""
    if watch is not None:
        watch.mode = Mode.ASIDE
        watch.window = None
