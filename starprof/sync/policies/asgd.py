"""Asynchronous SGD: nobody waits."""

from __future__ import annotations

from starprof.sync.policies.base import ALONE_HOLDS_FOR, Draft, Policy, shared


class Asgd(Policy):
    """Each gradient is applied on arrival, with the N-th part of the learning rate."""

    name = "asgd"
    holds_for = ALONE_HOLDS_FOR

    @property
    def leaves_out(self) -> bool:
        """Nobody waits for another one."""
        return len(self.members) > 1

    @property
    def max_staleness(self) -> None:
        """A worker may be arbitrarily slow."""
        return

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        for worker in list(self.waiting):
            self._apply(self._take([worker], draft), shared(1, len(self.members)), draft)
