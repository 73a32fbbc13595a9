"""Drives one model through native steps and rounds: between DDP's patches, the watchers of the loop, and the engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from starprof.control.engine.batches import Batches
from starprof.control.engine.ddp import DdpPatches
from starprof.control.engine.engine import Engine, LostError
from starprof.control.engine.loopscan import collective_in
from starprof.control.engine.refusals import NATIVE_STEPS, Seen, UserCollectives, reasons
from starprof.control.engine.updating import Updating
from starprof.control.engine.updating.operations import STEPS
from starprof.errors import StarprofError
from starprof.hook.boundary import Guard, describe_error

LOOK_AGAIN_STEPS = 64
"""Native steps from one look at a loop that can't go into rounds to the next."""


class BrokenError(StarprofError):
    """Something of ours failed where going on would leave this rank with other parameters than the others."""


class RankDriver:
    """See the module; `starprof.control.engine.ddp` calls it.

    Attributes:
        updating: how the loop makes its updates.
        seen: what native steps have shown.
        native: DDP reduces itself.
        refused: why rounds are not possible, as far as was seen; None before anything is known.
        waiting: surrounds whatever waits for other ranks.
        on_step: called at the end of every step in rounds with the engine.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        guard: Guard,
        patches: DdpPatches,
        batches: Batches,
        collectives: UserCollectives,
        updating: Updating,
        enrol: Callable[[RankDriver], Engine],
        on_refused: Callable[[list[str]], None],
    ) -> None:
        """Watch native steps; `enrol` makes the engine once the loop is known to allow rounds."""
        self._model = weakref.ref(model)
        self.updating = updating
        self.seen = Seen()
        self.native = True
        self.refused: list[str] | None = None
        self.waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.on_step: Callable[[Engine], None] = lambda _engine: None
        self._guard = guard
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
    def model(self) -> DistributedDataParallel:
        """The model that it drives, which it does not keep alive."""
        model = self._model()
        assert model is not None, "nobody trains a model that is gone"
        return model

    # What DDP's patches call.

    def before_step(self) -> None:
        """See `ddp.Driver`."""
        self._check()
        if self._engine is not None and self.native and not self._off:
            self._safely(self._engine.before_step)

    def after_backward(self) -> None:
        """See `ddp.Driver`."""
        self._check()
        if self._off:
            return
        self._safely(self._see)
        engine = self._engine
        if engine is None:
            self._guard.attempt(self._consider)
        elif self.native:
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

    def before_collective(self) -> None:
        """The user's own code is about to wait for all ranks."""
        if self._engine is not None and not self.native and not self._off:
            self._safely(self._meet_inside)

    def finish(self) -> None:
        """The training is over."""
        if self._engine is not None and not self._off:
            self._off = True
            self._guard.attempt(self._engine.done)
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
        if self.seen.synchronisations < self._look_at or self.seen.steps < NATIVE_STEPS:
            return
        if not self.updating.ready and self.updating.refusal is None and self._look_at < LOOK_AGAIN_STEPS:
            self._look_at += 1
            return
        self.seen.batches, self.seen.updating = self._batches.refusal, self.updating.refusal
        self.seen.counted_together = self._batches.steps.steady
        refused = reasons(self.model, self.updating.optimizers, self.seen)
        if not refused and not self.updating.ready:
            refused = ["the loop makes its updates in another way each time"]
        if refused != self.refused:
            self.refused = refused
            if refused:
                self._on_refused(refused)
        if refused:
            self._look_at += LOOK_AGAIN_STEPS
            return
        engine = self._enrol(self)
        # What was called in an iteration shows when somebody hands in the next one's gradient; it must not be missed.
        engine.keeps_last = bool(self.seen.may_call or self.seen.steps_with_collectives)
        engine.before_step()
        engine.native_done()
        self._engine = engine

    def _synchronise(self, engine: Engine) -> None:
        with self.waiting():
            engine.synchronise()
        self.on_step(engine)

    def _meet_inside(self) -> None:
        """In the middle of an iteration its own update comes before those that are made at the meeting."""
        self.updating.complete_own()
        self._meet(left_over=False)

    def _meet(self, *, left_over: bool) -> None:
        engine = self._engine
        assert engine is not None
        if left_over:
            engine.counts.iterations -= self._batches.left_over
            self._batches.forget()
        with self.waiting():
            # Before a collective everybody has to make this iteration, or its collective would be missed.
            engine.meet(engine.counts.iterations - (not left_over))

    def _check(self) -> None:
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
        except LostError as error:
            self._broken = error
            raise
        except Exception as error:
            if self.native:
                self._guard.swallow(error)
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
            self._patches.rounds_begin(self.model)
