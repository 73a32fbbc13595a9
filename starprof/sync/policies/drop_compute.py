"""DropCompute: everybody stops computing after a while, and what was computed counts by its samples."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Policy


class DropCompute(Policy):
    """Synchronous steps in which a worker stops accumulating micro-batches after `tau_s` seconds."""

    name = "drop-compute"

    def __init__(self, workers: Iterable[int], tau_s: float, *, version: int = 0) -> None:
        """Stop after `tau_s`; a worker computes one micro-batch at least."""
        if not tau_s > 0:
            raise ValueError(f"the time to compute must be positive, not {tau_s} s")
        super().__init__(workers, version=version)
        self.tau_s = tau_s

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        draft.stop_after_s = self.tau_s
        if self.members and len(self.waiting) == len(self.members):
            taken = self._take(self.members, draft)
            total = sum(g.samples for g in taken)
            self._apply(taken, [g.samples / total for g in taken], draft)
