"""Synchronous SGD: everybody waits for everybody."""

from __future__ import annotations

from starprof.sync.policies.base import Draft, Policy, mean


class Ssgd(Policy):
    """A step along the mean of all workers' gradients, once all are there."""

    name = "ssgd"

    @property
    def short_of(self) -> int:
        """All who are not there."""
        return len(self.members) - len(self.waiting)

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self.members and len(self.waiting) == len(self.members):
            taken = self._take(self.members, draft)
            self._apply(taken, mean(len(taken)), draft)
