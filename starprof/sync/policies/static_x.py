"""Static x-order: a step whenever x gradients are there, from anyone (K-async; arXiv 2512.09685)."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Policy, shared


class StaticX(Policy):
    """The x that came first make a step and go on; a late gradient is never lost, it counts for a later step.

    The sum is divided by the number of workers: with x of N the learning rate is in effect x/N of the user's.
    """

    name = "static-x"

    def __init__(self, workers: Iterable[int], x: int, *, version: int = 0) -> None:
        """Steps of `x` gradients, or of all where fewer workers are left."""
        if x < 1:
            raise ValueError(f"x must be at least 1, not {x}")
        super().__init__(workers, version=version)
        self.x = x
        self._all_fresh = x >= len(self.members)

    @property
    def max_staleness(self) -> int | None:
        """With x = N all along nothing is ever late."""
        return 0 if self._all_fresh else None

    def _join(self, worker: int, draft: Draft) -> None:
        super()._join(worker, draft)
        self._all_fresh &= self.x >= len(self.members)

    @property
    def leaves_out(self) -> bool:
        """Whoever is late, for the moment; with x = N nobody is."""
        return self.x < len(self.members)

    @property
    def short_of(self) -> int:
        """Of the x that it takes."""
        return min(self.x, len(self.members)) - len(self.waiting)

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        while self.members and len(self.waiting) >= min(self.x, len(self.members)):
            taken = self._take(list(self.waiting)[: self.x], draft)
            self._apply(taken, shared(len(taken), len(self.members)), draft)
