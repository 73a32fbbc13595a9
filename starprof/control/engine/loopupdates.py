"""Updates as the engine makes them: through what the user's loop does, and the whole state of it."""

from __future__ import annotations

from torch.nn import Module

from starprof.control.engine.state import State
from starprof.control.engine.updating import Updating


class LoopUpdates:
    """See `roles.Updates`."""

    def __init__(self, updating: Updating, model: Module) -> None:
        """Make updates of this model as its loop does."""
        self._updating = updating
        self._model = model
        self.hyper = updating.hyper
        self.scale = updating.scale
        self.replay = updating.replay
        self.own = updating.own
        self.local = updating.local
        self.iteration_over = updating.epoch_ended
        self.keep_pace = updating.keep_pace
        self.skip_own = updating.skip_own

    def state(self) -> bytes:
        """See `roles.Updates`."""
        return self._state().save()

    def load(self, state: bytearray) -> None:
        """See `roles.Updates`."""
        self._updating.expect_beside(self._state().load(state))
        self._updating.forget_scale()

    def _state(self) -> State:
        return State(self._model, self._updating.optimizers, self._updating.others)
