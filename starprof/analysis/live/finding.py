"""A late rank of a running job: the finding, and what a stretch of lateness says about its size, onset and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.changepoint import onset
from starprof.analysis.detect import ONSET_IS_START, WINDOWS_PER_INTERVAL
from starprof.analysis.live.rules import STAYS_LATE

Status = Literal["provisional", "confirmed", "withdrawn", "ended"]


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """A rank that is late now, or was.

    Attributes:
        status: provisional, confirmed, withdrawn (it was a one-off) or ended.
        onset_step: first late step; the job's first one when it was late ever since.
        onset_interval: steps between which the onset lies.
        seen_step: step with which it was first seen.
        changed_step: step with which it got this status.
        end_step: last late step, None while it lasts.
        lateness: mean lateness above the rank's past since the onset, share of the healthy step, capped per step.
        slowdown: the rank's own time over its peers' in the late steps.
        z: size in standard errors when it was last looked at.
        lost_us: time that the job's steps would have been shorter by, were only this rank on time.
        from_start: it was late from the first judged step on.
    """

    rank: int
    status: Status
    onset_step: int
    onset_interval: tuple[int, int]
    seen_step: int
    changed_step: int
    lateness: float
    slowdown: float
    z: float
    lost_us: float = 0.0
    end_step: int | None = None
    from_start: bool = False


def mean_of(series: Floats, unknown: float) -> float:
    """Mean of a stretch; `unknown` when less than half of it was recorded."""
    seen = ~np.isnan(series)
    return float(series[seen].mean()) if seen.sum() * 2 > len(series) else unknown


def late_share_of(series: Floats) -> float:
    """Share of the pieces of a late stretch in which the rank is late by a good part of the whole, as in `detect`."""
    known = series[~np.isnan(series)]
    pieces = np.array_split(known, max(1, min(WINDOWS_PER_INTERVAL, len(known) // 4)))
    return float(np.mean([piece.mean() >= STAYS_LATE * known.mean() for piece in pieces]))


def lost_us(own: float, excess: float, others: float) -> float:
    """How much longer one step was for a rank's excess; 0 where it has no record."""
    if np.isnan(own) or np.isnan(excess):
        return 0.0
    return float(max(own, others) - max(own - max(excess, 0.0), others))


def onset_of(series: Floats, past: float, sigma: float, memory: float) -> tuple[int, tuple[int, int]]:
    """Where a series that is late at its end left its past level, and the interval in which that surely lies."""
    length = np.arange(len(series), 0, -1)
    above = np.cumsum((series - past)[::-1])[::-1]
    at = int(np.argmax(np.where(above > 0, above, 0.0) ** 2 / length))
    if at <= ONSET_IS_START:
        return at, (0, at)
    level = float(series[at:].mean())
    return onset(series, at, past, level, sigma, memory)
