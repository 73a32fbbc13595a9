"""m-synchronous SGD: the first m of N make a round (arXiv 2602.03802), and modes that are special cases of it."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft
from starprof.sync.policies.fresh_rounds import FreshRounds


class MSync(FreshRounds):
    """A step along the mean of the first m gradients; the rest of that round is dropped."""

    name = "m-sync"
    drops = True

    def __init__(self, workers: Iterable[int], m: int, *, staleness_cap: int = 0, version: int = 0) -> None:
        """Rounds of `m`, or of all where fewer workers are left."""
        if m < 1:
            raise ValueError(f"m must be at least 1, not {m}")
        super().__init__(workers, staleness_cap=staleness_cap, version=version)
        self.m = m

    @property
    def short_of(self) -> int:
        """Of the m that it takes."""
        return min(self.m, len(self.members)) - len(self.waiting)

    def _closes(self, at_s: float, draft: Draft) -> list[int]:  # noqa: ARG002
        enough = self.members and len(self.waiting) >= min(self.m, len(self.members))
        return list(self.waiting)[: self.m] if enough else []


class MSyncFold(MSync):
    """As m-sync, but a late gradient goes into the round under way, unless it is staler than the cap."""

    name = "m-sync-fold"

    def __init__(self, workers: Iterable[int], m: int, *, staleness_cap: int = 8, version: int = 0) -> None:
        """See the class."""
        super().__init__(workers, m, staleness_cap=staleness_cap, version=version)


class Backup(MSync):
    """Backup workers: with b more workers than gradients are needed, the last b of each round are dropped."""

    name = "backup"

    def __init__(self, workers: Iterable[int], b: int, *, version: int = 0) -> None:
        """Of all workers `b` are spare."""
        everybody = set(workers)
        if not 0 <= b < len(everybody):
            raise ValueError(f"b must be at least 0 and less than the {len(everybody)} workers, not {b}")
        super().__init__(everybody, len(everybody) - b, version=version)


class Lgc(MSync):
    """The fastest k make a step, late gradients count in the next one, all divided by the number of workers."""

    name = "lgc"

    def __init__(self, workers: Iterable[int], k: int, *, version: int = 0) -> None:
        """Rounds of the fastest `k`."""
        super().__init__(workers, k, staleness_cap=1, version=version)
