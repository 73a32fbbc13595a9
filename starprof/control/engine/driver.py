"""Drives one model through native steps and rounds: between DDP's patches, the watchers of the loop, and the engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from torch.nn import Module

from starprof.control.engine.batches import Batches
from starprof.control.engine.engine import Engine
from starprof.control.engine.loopscan import collective_in
from starprof.control.engine.losses import LossLooks
from starprof.control.engine.refusals import NATIVE_STEPS, Seen, UserCollectives, of_collectives, reasons
from starprof.control.engine.updating import Updating
from starprof.control.engine.updating.operations import STEPS
from starprof.control.engine.waiting import LostError
from starprof.errors import StarprofError
from starprof.hook.boundary import Guard, describe_error

LOOK_AGAIN_STEPS = 64
"""Native steps from one look at a loop that can't go into rounds to the next."""


class BrokenError(StarprofError):
    """Something of ours failed where going on would leave this rank with other parameters than the others."""


class Patches(Protocol):
    """What sits in the framework that reduces the model's gradients."""

    def rounds_begin(self, model: Any) -> None:
        """It does not reduce over all ranks any more, before the next forward pass."""
        ...

    def native_again(self, model: Any) -> None:
        """It does again."""
        ...


class RankDriver:
    """See the module; `starprof.control.engine.ddp` calls it.

    Attributes:
        guard: of all that is ours in this process.
        updating: how the loop makes its updates.
        seen: what native steps have shown.
        native: DDP reduces itself.
        refused: why rounds are not possible, as far as was seen; None before anything is known.
        accelerators: whether models on GPUs may go into rounds.
        waiting: surrounds whatever waits for other ranks.
        on_step: called at the end of every step in rounds with the engine.
        losses: tells the coordinator the loss now and then; None where nobody asked for it.
    """

    def __init__(
        self,
        model: Module,
        guard: Guard,
        patches: Patches,
        batches: Batches,
        collectives: UserCollectives,
        updating: Updating,
        enrol: Callable[[RankDriver], Engine],
        on_refused: Callable[[RankDriver, list[str]], None],
    ) -> None:
        """Watch native steps; `enrol` makes the engine once the loop is known to allow rounds."""
        self._model = weakref.ref(model)
        self.updating = updating
        self.seen = Seen()
        self.native = True
        self.refused: list[str] | None = None
        self.accelerators = False
        self.waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.on_step: Callable[[Engine], None] = lambda _engine: None
        self.losses: LossLooks | None = None
        self.guard = guard
        self._patches = patches
        self._batches = batches
        self._collectives = collectives
        self._enrol = enrol
        self._on_refused = on_refused
        self._engine: Engine | None = None
        self._look_at = NATIVE_STEPS
        self._epoch = 0
        self._broken: BaseException | None = None
        self._off = False

    @property
    def model(self) -> Any:
        """The model that it drives, which it does not keep alive."""
        model = self._model()
        assert model is not None, "nobody trains a model that is gone"
        return model

    # What DDP's patches call.

    def before_step(self) -> None:
        """See `ddp.Driver`."""
        self.check()
        engine = self._engine
        if engine is None or self._off:
            return
        if self.native:
            self._safely(engine.before_step)
        elif engine.due:
            with self.waiting():
                self._safely(engine.before_step)

    def before_backward(self, roots: Any) -> None:
        """See `ddp.Driver`."""
        if self.losses is not None and not self._off:
            self.losses.before_backward(roots)

    def after_backward(self) -> None:
        """See `ddp.Driver`."""
        self.check()
        if self._off:
            return
        self._safely(self._see)
        engine = self._engine
        if engine is None:
            self.guard.attempt(self._consider)
            return
        if self.losses is not None:
            self.losses.after_step(engine.version)
        if not self.refused:
            self._safely(self._judge_again)
        if self.native:
            self._safely(engine.native_done)
        else:
            self._safely(lambda: self._synchronise(engine))

    # What the loop's watchers call; they swallow what is raised, so it is raised again at the next step.

    def epoch_ended(self) -> None:
        """The loader is at its end: all ranks come together."""
        self.updating.epoch_ended()
        if self.refused and self.seen.may_call:
            self._look_at = min(self._look_at, self.seen.synchronisations + 1)
        if self._engine is not None and not self.native:
            self._safely(lambda: self._meet(left_over=True))

    def before_collective(self, name: str) -> None:
        """The user's own code is about to wait for all ranks."""
        if self._engine is not None and not self.native and not self._off:
            self._safely(lambda: self._meet_inside(name))

    def finish(self) -> None:
        """The training is over."""
        if self._engine is not None and not self._off:
            self._off = True
            self.guard.attempt(self._engine.done)
            self.updating.restore()

    # Its parts.

    def _see(self) -> None:
        """A synchronising backward pass is over, native or not."""
        self._batches.mark_sync()
        self.updating.learn()
        self.seen.synchronisations += 1
        called = self._collectives.take() if self.seen.synchronisations > 1 else self._forgotten()
        # What comes between two epochs, such as an evaluation by all, comes there on every rank.
        self.seen.steps_with_collectives += bool(called) and self._batches.epoch == self._epoch
        if self._batches.epoch != self._epoch:
            self._epoch = self._batches.epoch
            self.seen.epochs += 1
        if self.seen.synchronisations == 1:
            self._batches.on_fetch = self._look_into
        for name, times in called.items():
            self.seen.collectives[name] = self.seen.collectives.get(name, 0) + times
        self.seen.steps += any(operation.kind in STEPS for operation in self.updating.recorded)

    def _look_into(self, frame: FrameType) -> None:
        """The next batch of the training loop was fetched there."""
        self._batches.on_fetch = None
        self.seen.may_call = collective_in(frame)

    def _forgotten(self) -> dict[str, int]:
        """What was called before the first synchronisation was the set-up's."""
        self._collectives.take()
        return {}

    def _consider(self) -> None:
        """Whether rounds are possible: looked at now and then, the same number of native steps on all ranks."""
        if self.seen.synchronisations < self._look_at:
            return
        refused = self._judged()
        if refused is None:
            self._look_at = self.seen.synchronisations + 1
            return
        if refused != self.refused:
            self.refused = refused
            if refused:
                self._on_refused(self, refused)
        self._look_at += LOOK_AGAIN_STEPS  # also where the others can't be reached
        if refused:
            return
        engine = self._enrol(self)
        # What was called in an iteration shows when somebody hands in the next one's gradient; it must not be missed.
        engine.keeps_last = bool(self.seen.may_call or self.seen.steps_with_collectives or self.seen.counted_together)
        engine.before_step()
        engine.native_done()
        self._engine = engine

    def _judged(self) -> list[str] | None:
        """Why rounds are not possible, as far as was seen; None: that was too little."""
        patient = self._look_at < LOOK_AGAIN_STEPS
        if self.seen.steps < NATIVE_STEPS or (patient and not self.updating.ready and self.updating.refusal is None):
            return None
        self.seen.batches, self.seen.updating = self._batches.refusal, self.updating.refusal
        self.seen.counted_together = self._batches.steps.steady
        refused = self._reasons()
        if not refused and not self.updating.ready:
            refused = ["the loop makes its updates in another way each time"]
        return refused

    def _reasons(self) -> list[str]:
        return reasons(self.model, self.updating.optimizers, self.seen, accelerators=self.accelerators)

    def _synchronise(self, engine: Engine) -> None:
        with self.waiting():
            engine.synchronise()
        self.on_step(engine)

    def _judge_again(self) -> None:
        """What the loop does may change after it was judged; then the job goes back to native steps.

        Raises:
            BrokenError: in rounds it has made an update in another way than the other ranks.
        """
        if self.updating.deviated:
            raise BrokenError(f"{self.updating.refusal}; this rank can't go on with the others")
        self.seen.updating = self.updating.refusal
        if self.seen.updating is None and not self.seen.steps_with_collectives:
            return
        self.seen.counted_together = self._batches.steps.steady
        self._refuse([*of_collectives(self.seen), *filter(None, [self.seen.updating])])

    def _refuse(self, found: list[str]) -> None:
        if found and self._engine is not None:
            self.refused = found
            self._on_refused(self, found)
            self._engine.refuse("; ".join(found))

    def _meet_inside(self, name: str) -> None:
        """In the middle of an iteration its own update comes before those that are made at the meeting."""
        if self._batches.epoch == self._epoch and not self.refused:
            self._collective_in_rounds(name)
        self.updating.complete_own()
        self._meet(left_over=False, place=name)

    def _collective_in_rounds(self, name: str) -> None:
        """The loop calls a collective that natively it may not have called yet."""
        seen = replace(self.seen, counted_together=self._batches.steps.steady)
        seen.collectives, seen.steps_with_collectives = {name: 1}, 1
        self._refuse(list(of_collectives(seen)))

    def _meet(self, *, left_over: bool, place: str = "") -> None:
        engine = self._engine
        assert engine is not None
        if left_over:
            engine.counts.iterations -= self._batches.left_over
            self._batches.forget()
        with self.waiting():
            # Before a collective everybody has to make this iteration, or its collective would be missed.
            engine.meet(engine.counts.iterations - (not left_over), place)

    def check(self) -> None:
        """What failed where nobody could be told is told here.

        Raises:
            BrokenError: see there.
            LostError: see there.
        """
        if self._broken is not None:
            raise self._broken

    def _safely(self, ours: Callable[[], None]) -> None:
        """In native steps a failure of ours ends control; in rounds it must not pass unseen.

        Raises:
            LostError: nothing has been heard of the others for too long.
            BrokenError: see there.
        """
        try:
            ours()
            self._follow()
        except (LostError, BrokenError) as error:
            self._broken = error
            raise
        except Exception as error:
            if self.native:
                self.guard.swallow(error)
                self.finish()
                return
            self._broken = BrokenError(
                f"synchronisation in rounds failed, and this rank can't go on with the others: {describe_error(error)}"
            )
            raise self._broken from error
        except BaseException:
            # Ctrl-C while waiting: whoever catches it can't go on with half a round.
            if not self.native:
                self._broken = BrokenError("the wait for other ranks was interrupted; this rank can't go on with them")
            raise

    def _follow(self) -> None:
        """Tell DDP when rounds begin or end."""
        if self._engine is None or self.native == self._engine.native:
            return
        self.native = self._engine.native
        if self.native:
            self._patches.native_again(self.model)
        else:
            self._engine.begin_rounds()
            self._patches.rounds_begin(self.model)
