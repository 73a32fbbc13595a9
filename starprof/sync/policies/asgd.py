"""Asynchronous SGD: nobody waits."""

from __future__ import annotations

from starprof.sync.policies.base import Draft, Policy, shared


class Asgd(Policy):
    """Each gradient is applied on arrival, with the N-th part of the learning rate."""

    name = "asgd"

    @property
    def max_staleness(self) -> None:
        """A worker may be arbitrarily slow."""
        return

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        for worker in list(self.waiting):
            self._apply(self._take([worker], draft), shared(1, len(self.members)), draft)
