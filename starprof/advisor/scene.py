"""What is known of the ranks of one attempt: their times, who is late, and whether a good moment has come."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from starprof.advisor.events import Proposal, StepTime
from starprof.advisor.window import Window
from starprof.analysis.live.detector import OnlineDetector
from starprof.model.rundata import RankInfo

RELEASE = 0.15
"""Who was late is so until less than this above the others: `starprof.decision.choice.stragglers` has the same."""

RECOVERED_STEPS, RECOVERED_S = 8, 3.0
"""And for at least so long."""

QUIET_S = 3.0
BUSY_SHARE = 0.1
"""A step of which this part is a checkpoint or an evaluation is no time to act."""

PAYS = 0.97
BLOCK = 30
"""Steps of which it is asked whether the mode still pays."""


class Scene:
    """Of one attempt.

    Attributes:
        window: step times.
        before_s: durations of the native steps before the job was moved.
    """

    def __init__(self, ranks: Sequence[RankInfo]) -> None:
        """Watch these ranks."""
        self.infos = tuple(sorted(ranks, key=lambda info: info.rank))
        self.window = Window(info.rank for info in self.infos)
        self.before_s: list[float] = []
        self._detector = OnlineDetector(self.infos) if len(self.infos) > 1 else None
        self._places = {info.rank: _place(info, self.infos) for info in self.infos}
        self._ends: dict[int, float] = {}

    def place(self, rank: int) -> str:
        """Where a rank runs: its host, and which one there where it has several."""
        return self._places[rank]

    def step(self, record: StepTime, *, native: bool) -> None:
        """Take a record in."""
        whole = self.window.add(record)
        if whole is None or not native or self._detector is None:
            return
        last = self._detector.last_step
        if last is not None and record.step <= last:
            return
        self._ends[record.step] = max(r.at_s for r in whole)
        while len(self._ends) > 2000:
            del self._ends[min(self._ends)]
        own, blocked = (
            [1e6 * value for value in values] for values in zip(*((r.own_s, r.blocked_s) for r in whole), strict=True)
        )
        self._detector.observe(record.step, own, blocked)

    def late(self) -> tuple[int, ...]:
        """Ranks that are late now, surely."""
        if self._detector is None:
            return ()
        return tuple(sorted(f.rank for f in self._detector.findings if f.status == "confirmed"))

    def late_since_s(self, ranks: Collection[int]) -> float:
        """When all of them were late first, as far as is remembered."""
        if self._detector is None:
            return -np.inf
        onsets = [f.onset_step for f in self._detector.findings if f.rank in ranks and f.status == "confirmed"]
        before = [self._ends.get(onset - 1, -np.inf) for onset in onsets]
        return max(before, default=-np.inf)

    def not_quiet(self, late: Collection[int], now_s: float) -> str:
        """Why this is no moment to act; "" when it is one."""
        for rank in self.window.ranks:
            last = self.window.newest_of(rank)
            if last is None:
                return f"rank {rank} has not made a step yet"
            if last.busy_s > BUSY_SHARE * last.dur_s:
                return f"rank {rank} saves or evaluates"
            if rank not in late and now_s - last.at_s > max(QUIET_S, 5 * last.dur_s):
                return f"rank {rank} has made no step for {now_s - last.at_s:.1f} s: it may save or evaluate"
        return ""

    def recovered(self, late: Collection[int], since_s: float, now_s: float) -> bool:
        """Whether those who were late are as quick as the others, and have been for a while."""
        others = [r.own_s for rank in self.window.ranks if rank not in late for r in self._recent(rank, since_s)]
        if not others:
            return False
        limit = (1.0 + RELEASE) * float(np.median(others))
        for rank in late:
            recent = self.window.of(rank, max(since_s, now_s - 3 * RECOVERED_S))
            if len(recent) < RECOVERED_STEPS or recent[-1].at_s - recent[0].at_s < RECOVERED_S:
                return False
            # Most of what it did lately; the first part may still be of the fault.
            lately = [r.own_s for r in recent if r.at_s >= recent[-1].at_s - RECOVERED_S]
            if len(lately) < RECOVERED_STEPS or float(np.percentile(lately, 80)) > limit:
                return False
        return True

    def not_paying(self, made: Proposal, since_s: float) -> str:
        """Why native steps would be quicker as things are now; "" where they would not be."""
        pace = self.window.pace(since_s, made.ranks)
        if len(pace) < BLOCK:
            return ""
        slowest_s = max(
            float(np.mean([r.own_s for r in self._recent(rank, since_s)] or [np.inf])) for rank in self.window.ranks
        )
        # Without what the reduction takes, in favour of native steps.
        native_s = slowest_s
        now_s = float(pace[-BLOCK:].mean()) / made.progress
        if native_s < PAYS * now_s:
            return f"native steps would take {native_s:.3g} s, and as much progress takes {now_s:.3g} s in {made.mode}"
        return ""

    def _recent(self, rank: int, since_s: float) -> list[StepTime]:
        return self.window.of(rank, since_s, BLOCK)


def _place(info: RankInfo, infos: Sequence[RankInfo]) -> str:
    here = [other for other in infos if other.host == info.host]
    if len(here) == 1:
        return info.host
    local = info.local_rank if info.local_rank is not None else [o.rank for o in here].index(info.rank)
    return f"{info.host}/{local}"
