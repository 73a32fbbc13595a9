"""A deadline: a round takes whoever is there in time."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft
from starprof.sync.policies.fresh_rounds import FreshRounds


class Deadline(FreshRounds):
    """A round closes when everybody is there, or some time after its first gradient, if enough are there by then."""

    name = "deadline"
    drops = True

    def __init__(
        self, workers: Iterable[int], after_s: float, *, least: int = 1, staleness_cap: int = 0, version: int = 0
    ) -> None:
        """Close `after_s` seconds after the first gradient of a round, with no fewer than `least`."""
        if not after_s >= 0 or least < 1:
            raise ValueError(f"a deadline needs a time of at least 0 s and at least 1 gradient: {after_s} s, {least}")
        super().__init__(workers, staleness_cap=staleness_cap, version=version)
        self.after_s = after_s
        self.least = least
        self._due_s: float | None = None

    def _closes(self, at_s: float, draft: Draft) -> list[int]:
        if not self.waiting:
            self._due_s = None
            return []
        if self._due_s is None:
            self._due_s = at_s + self.after_s
        needed = min(self.least, len(self.members)) if at_s >= self._due_s else len(self.members)
        if len(self.waiting) >= needed:
            self._due_s = None
            return list(self.waiting)
        draft.wake_at_s = self._due_s if at_s < self._due_s else None
        return []
