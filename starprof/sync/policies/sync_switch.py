"""Sync-Switch: synchronous at first, asynchronous later."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Policy, mean, shared


class SyncSwitch(Policy):
    """Synchronous steps for the given number of updates, then each gradient on arrival."""

    name = "sync-switch"

    def __init__(self, workers: Iterable[int], switch_at: int, *, version: int = 0) -> None:
        """Become asynchronous at version `switch_at`."""
        if switch_at < 0:
            raise ValueError(f"can't switch at version {switch_at}")
        super().__init__(workers, version=version)
        self.switch_at = switch_at

    @property
    def max_staleness(self) -> None:
        """None in its second part."""
        return

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self.version >= self.switch_at:
            for worker in list(self.waiting):
                self._apply(self._take([worker], draft), shared(1, len(self.members)), draft)
        elif self.members and len(self.waiting) == len(self.members):
            taken = self._take(self.members, draft)
            self._apply(taken, mean(len(taken)), draft)
