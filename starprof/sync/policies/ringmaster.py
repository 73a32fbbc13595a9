"""Ringmaster ASGD: asynchronous, but gradients of too much delay are discarded."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import ALONE_HOLDS_FOR, Draft, Gradient, Policy, shared


class Ringmaster(Policy):
    """Each gradient is applied on arrival unless R or more updates came since its parameters."""

    name = "ringmaster"
    drops = True
    holds_for = ALONE_HOLDS_FOR

    def __init__(self, workers: Iterable[int], r: int, *, version: int = 0) -> None:
        """Discard from a delay of `r` updates on."""
        if r < 1:
            raise ValueError(f"r must be at least 1, not {r}")
        super().__init__(workers, version=version)
        self.r = r

    @property
    def leaves_out(self) -> bool:
        """Nobody waits for another one."""
        return len(self.members) > 1

    @property
    def max_staleness(self) -> int:
        """Delays below R pass."""
        return self.r - 1

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self.version - gradient.version < self.r:
            self._apply([gradient], shared(1, len(self.members)), draft)
        else:
            draft.dropped.append(gradient)
        draft.release.append(gradient.worker)

    def _settle(self, at_s: float, draft: Draft) -> None:
        """Everything happens on arrival."""
