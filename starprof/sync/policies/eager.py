"""Eager SGD: a partial collective that the first worker, or one drawn for each round, sets off."""

from __future__ import annotations

import random
from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Policy, shared


class Eager(Policy):
    """A round takes whatever is there when its initiator arrives; what is late counts in a later round.

    Solo: whoever comes first sets the round off. Majority: a worker drawn for the round does, so that on average half
    of them are there. The sum is divided by the number of workers: who is missing contributes nothing.
    """

    name = "eager"

    def __init__(self, workers: Iterable[int], *, majority: bool = True, seed: int = 0, version: int = 0) -> None:
        """Draw initiators from this seed, which all drivers of the same run share."""
        super().__init__(workers, version=version)
        self.majority = majority
        self._draw = random.Random(seed)  # noqa: S311 - which worker, not a secret
        self.initiator = self._drawn()

    @property
    def max_staleness(self) -> None:
        """A worker may be arbitrarily slow."""
        return

    def _drawn(self) -> int | None:
        return self._draw.choice(self.members) if self.majority and self.members else None

    def _join(self, worker: int, draft: Draft) -> None:
        super()._join(worker, draft)
        if self.initiator is None:
            self.initiator = self._drawn()

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        if worker == self.initiator:
            self.initiator = self._drawn()

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self.waiting and (self.initiator is None or self.initiator in self.waiting):
            taken = self._take(list(self.waiting), draft)
            self._apply(taken, shared(len(taken), len(self.members)), draft)
            self.initiator = self._drawn()
