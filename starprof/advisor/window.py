"""The last step times of all ranks, in fixed memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from starprof.advisor.events import StepTime
from starprof.analysis.arrays import Floats

KEPT = 400
"""Steps of each rank."""

OPEN = 64
"""Steps of which some rank has not told yet."""


class Window:
    """Of one attempt of a job.

    Attributes:
        ranks: in order.
        newest_s: when the newest record's step ended.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = tuple(sorted(ranks))
        self.newest_s = -np.inf
        self._of = {rank: deque[StepTime](maxlen=KEPT) for rank in self.ranks}
        self._open: dict[int, dict[int, StepTime]] = {}
        self._whole: deque[dict[int, StepTime]] = deque(maxlen=KEPT)
        self._done = -1

    def add(self, record: StepTime) -> tuple[StepTime, ...] | None:
        """Take a record in; all ranks' records of a step, in their order, once the last of them has come."""
        if record.rank not in self._of:
            return None
        own = self._of[record.rank]
        if own and record.step <= own[-1].step:
            return None  # it came twice
        own.append(record)
        self.newest_s = max(self.newest_s, record.at_s)
        if record.step <= self._done:
            return None
        step = self._open.setdefault(record.step, {})
        step[record.rank] = record
        if len(step) < len(self.ranks):
            while len(self._open) > OPEN:
                del self._open[min(self._open)]
            return None
        self._done = record.step
        for number in [n for n in self._open if n <= record.step]:
            del self._open[number]
        self._whole.append(step)
        return tuple(step[rank] for rank in self.ranks)

    def of(self, rank: int, since_s: float, most: int = KEPT) -> list[StepTime]:
        """The newest records of a rank of steps that ended after that, oldest first."""
        found: list[StepTime] = []
        for record in reversed(self._of[rank]):
            if record.at_s <= since_s or len(found) == most:
                break
            found.append(record)
        return found[::-1]

    def newest_of(self, rank: int) -> StepTime | None:
        """The last record of a rank."""
        own = self._of[rank]
        return own[-1] if own else None

    def native(self, since_s: float, most: int = 200) -> Floats:
        """Steps of all ranks that ended after that: own time plus what the reduction takes, seconds, shape (W, N)."""
        rows = [step for step in self._whole if min(r.at_s for r in step.values()) > since_s][-most:]
        times = np.empty((len(rows), len(self.ranks)))
        for at, step in enumerate(rows):
            transfer = min(r.blocked_s for r in step.values())
            times[at] = [step[rank].own_s + transfer for rank in self.ranks]
        return times

    def durations(self, since_s: float, most: int = 200) -> Floats:
        """Of native steps of all ranks that ended after that, seconds, shape (W,)."""
        rows = [step for step in self._whole if min(r.at_s for r in step.values()) > since_s][-most:]
        return np.array([np.median([r.dur_s for r in step.values()]) for step in rows])

    def rounds(self, since_s: float, transfer_s: float, most: int = 100) -> Floats | None:
        """Own times of ranks that don't wait for each other, put side by side as if they did; None: not enough."""
        own = [[r.own_s for r in self.of(rank, since_s, most)] for rank in self.ranks]
        if min(map(len, own)) < 2:
            return None
        rows = max(map(len, own))
        return np.array([np.resize(values, rows) for values in own]).T + transfer_s

    def pace(self, since_s: float, without: Sequence[int]) -> Floats:
        """Durations of the steps of the rank that goes ahead, seconds."""
        best = max((self.of(rank, since_s) for rank in self.ranks if rank not in without), key=len, default=[])
        return np.array([r.dur_s for r in best])
