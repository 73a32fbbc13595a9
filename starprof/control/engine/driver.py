"""Drives one model through native steps and rounds: between DDP's patches, the watchers of the loop, and the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.nn.parallel import DistributedDataParallel

from starprof.control.engine.ddp import DdpPatches
from starprof.control.engine.engine import Engine, LostError
from starprof.control.journal import ControlJournal
from starprof.errors import StarprofError
from starprof.hook.boundary import Guard, describe_error

ENROL_AFTER = 2
"""Native steps before control begins: DDP rebuilds its buckets in the second one, and optimizers show at the first."""


class Watchers(Protocol):
    """What watches the user's loop."""

    def synchronised(self) -> None:
        """A synchronising backward pass is over, native or not."""
        ...


class BrokenError(StarprofError):
    """Something of ours failed where going on would leave this rank with other parameters than the others."""


class RankDriver:
    """See the module; `starprof.control.engine.ddp` calls it.

    Attributes:
        native: DDP reduces itself.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        patches: DdpPatches,
        guard: Guard,
        enrol: Callable[[DistributedDataParallel], tuple[Engine, Watchers] | None],
    ) -> None:
        """Watch until the model is enrolled.

        Args:
            model: that it drives.
            patches: around the model.
            guard: takes what goes wrong while nothing depends on it.
            enrol: makes the engine once the loop is known; None: this loop stays native.
        """
        self._model = model
        self._patches = patches
        self._guard = guard
        self._enrol = enrol
        self._engine: Engine | None = None
        self._watchers: Watchers | None = None
        self._steps = 0
        self._off = False
        self.native = True
        self.waiting: Callable[[], Any] = _nothing
        self.waited: Callable[[Any], None] = _ignored
        self.journal: ControlJournal | None = None
        self.rank_step: Callable[[], int] = lambda: self._steps

    def before_step(self) -> None:
        """See `ddp.Driver`."""
        if self._engine is not None and self.native and not self._off:
            self._safely(self._engine.before_step)
            self._follow()

    def after_backward(self) -> None:
        """See `ddp.Driver`."""
        if self._off:
            return
        self._steps += 1
        if self._engine is None:
            if self._steps == ENROL_AFTER:
                self._guard.attempt(self._begin)
            return
        self._safely(self._synchronised)
        self._follow()

    def meet(self, index: int) -> None:
        """The training thread stands where all ranks come together."""
        if self._engine is not None and not self.native:
            self._wait(lambda engine: engine.meet(index))
            self._follow()

    def finish(self) -> None:
        """The training is over."""
        if self._engine is not None and not self._off:
            self._off = True
            self._guard.attempt(self._engine.done)

    def _begin(self) -> None:
        enrolled = self._enrol(self._model)
        if enrolled is None:
            self._off = True
            return
        self._engine, self._watchers = enrolled
        self._watchers.synchronised()
        self._engine.before_step()
        self._engine.native_done()

    def _synchronised(self) -> None:
        assert self._engine is not None
        assert self._watchers is not None
        self._watchers.synchronised()
        if self.native:
            self._engine.native_done()
        else:
            self._wait(Engine.synchronise)

    def _wait(self, what: Callable[[Engine], None]) -> None:
        assert self._engine is not None
        token = self.waiting()
        try:
            what(self._engine)
        finally:
            self.waited(token)

    def _follow(self) -> None:
        """Tell DDP when rounds begin or end."""
        assert self._engine is not None
        if self.native and not self._engine.native:
            self._patches.rounds_begin(self._model)
        elif not self.native and self._engine.native:
            self._patches.native_again(self._model)
        self.native = self._engine.native

    def _safely(self, ours: Callable[[], None]) -> None:
        """In native steps a failure of ours ends control; in rounds it must not pass unseen.

        Raises:
            LostError: nothing has been heard of the others for too long.
            BrokenError: see there.
        """
        try:
            ours()
        except LostError:
            raise
        except Exception as error:
            if self.native:
                self._guard.swallow(error)
                self._off = True
                return
            raise BrokenError(
                f"synchronisation in rounds failed, and this rank can't go on with the others: {describe_error(error)}"
            ) from error


def _nothing() -> None:
    return None


def _ignored(_token: Any) -> None:
    return None
