"""Where a series changes its level, and how sure the place is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Floats

PENALTY = 4.0
MIN_SEGMENT = 4
MAX_POINTS = 2_500
INTERVAL_COST = 8.0


@dataclass(frozen=True, slots=True)
class Segment:
    """Stretch [start, end) with one level."""

    start: int
    end: int
    level: float

    @property
    def length(self) -> int:
        """Steps in it."""
        return self.end - self.start


def segments(values: Floats, sigma: float, memory: float) -> list[Segment]:
    """Split a series into stretches of equal level at the cuts with the least squared error and penalty.

    Args:
        values: shape (S,), no NaN.
        sigma: noise from step to step.
        memory: see `noise.Noise`; correlated noise drifts, so a change must be worth more.
    """
    block = -(-len(values) // MAX_POINTS)
    usable = len(values) // block * block
    coarse = values[:usable].reshape(-1, block).mean(axis=1)
    if len(coarse) < 2 * MIN_SEGMENT:
        return [Segment(0, len(values), float(values.mean()))]
    penalty = PENALTY * sigma**2 * memory / block * np.log(len(coarse)) + 1e-12
    if not _worth_splitting(coarse, penalty):
        return [Segment(0, len(values), float(values.mean()))]
    cuts = [cut * block for cut in _cheapest_cuts(coarse, penalty)]
    edges = [0, *cuts, len(values)]
    if block > 1:
        edges = [
            0,
            *(_refine(values, edges[i], edges[i + 1], edges[i + 2], block) for i in range(len(edges) - 2)),
            len(values),
        ]
    return [Segment(a, b, float(values[a:b].mean())) for a, b in pairwise(edges) if b > a]


def _worth_splitting(values: Floats, penalty: float) -> bool:
    """Whether one or two cuts (the best stretch against the rest) could pay their penalty: a bound, cheap to get."""
    n = len(values)
    total = np.r_[0.0, np.cumsum(values - values.mean())]
    # A stretch [a, b) against the rest gains (total[b] - total[a])^2 * n / (length * (n - length)).
    high, low = int(np.argmax(total)), int(np.argmin(total))
    swing = float(total[high] - total[low])
    return swing**2 / max(1, min(abs(high - low), n - abs(high - low))) >= 0.25 * penalty


def _cheapest_cuts(values: Floats, penalty: float) -> list[int]:
    """Cuts with the least sum of squared distances from the stretches' means, plus a penalty for each cut.

    Optimal partitioning (Jackson et al. 2005): the best partition up to every end is the best one up to its last cut
    plus the stretch after it. Exact; time grows with n², memory with n.
    """
    n = len(values)
    total = np.r_[0.0, np.cumsum(values - values.mean())]
    lengths = np.arange(n, 0, -1, dtype=np.float64)
    score = np.full(n + 1, np.inf)
    score[0] = 0.0
    cut_before = np.zeros(n + 1, np.int64)
    for end in range(MIN_SEGMENT, n + 1):
        starts = end - MIN_SEGMENT + 1
        sums = total[end] - total[:starts]
        # A stretch's squared error is the sum of its squares, the same however it is cut, minus sum²/length.
        candidates = score[:starts] - sums * sums / lengths[n - end : n - end + starts]
        best = int(candidates.argmin())
        score[end], cut_before[end] = candidates[best] + penalty, best
    cuts, at = [], int(cut_before[n])
    while at > 0:
        cuts.append(at)
        at = int(cut_before[at])
    return cuts[::-1]


def _refine(values: Floats, before: int, cut: int, after: int, block: int) -> int:
    """Best place of a cut within one block of the coarse one."""
    left, right = float(values[before:cut].mean()), float(values[cut:after].mean())
    return _profile(values, left, right, max(before + 1, cut - 2 * block), min(after - 1, cut + 2 * block))[0]


def onset(
    values: Floats, start: int, before: float, after: float, sigma: float, memory: float
) -> tuple[int, tuple[int, int]]:
    """First step at the new level and the interval in which it surely lies.

    Args:
        values: shape (S,).
        start: rough place.
        before: level before.
        after: level after.
        sigma: noise from step to step.
        memory: see `noise.Noise`.
    """
    reach = 10 + int(30 * memory)
    return _profile(
        values, before, after, max(1, start - reach), min(len(values) - 1, start + reach), (sigma**2) * memory
    )


def _profile(
    values: Floats, left: float, right: float, first: int, last: int, unit: float = 0.0
) -> tuple[int, tuple[int, int]]:
    """Cut in [first, last] with the least squared error, and the cuts that are nearly as good."""
    part = values[first:last]
    error = np.r_[0.0, np.cumsum((part - left) ** 2 - (part - right) ** 2)]
    best = int(np.argmin(error))
    near = np.flatnonzero(error <= error[best] + INTERVAL_COST * unit)
    return first + best, (first + int(near[0]), first + int(near[-1]))
