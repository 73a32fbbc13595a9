"""Several slownesses of one rank, one after the other: a slow stretch whose level doubles (or halves) is two.

They may have two causes, and in any case two beginnings; joined, the first would hide behind the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.changepoint import Segment, onset, segments

TIMES = 2.0
"""By how much the excess must change to be another regime."""
CLEARLY_BETTER = 0.6
"""Error of levels over that of a straight rise, at most: a rise cut into levels has more."""
STRAIGHT = 0.1
"""Most that a straight rise may leave of the variance."""
MIN_RISE_STEPS = 24
MIN_Z = 8.0
"""Standard errors of the change: bursts that cluster are one slowness."""


@dataclass(frozen=True)
class Regime:
    """Stretch [start, end) of one level, and where its beginning surely lies."""

    start: int
    end: int
    onset: tuple[int, int]


def regimes(excess: Floats, memory: float, shortest: int) -> list[Regime]:
    """Split a slow stretch where its excess changes by `TIMES`.

    Args:
        excess: excess in the steps of the stretch in any unit, shape (S,); what is not above zero counts as little.
        memory: see `noise.Noise`.
        shortest: steps that a regime must last.

    Returns:
        Two or more regimes that cover the stretch, or none when it is one.
    """
    if len(excess) < 2 * shortest or not (excess > 0).any():
        return []
    level = float(np.median(excess[excess > 0]))
    logs = np.log(np.maximum(np.nan_to_num(excess, nan=0.0), 0.05 * level))
    sigma = float(np.std(np.diff(logs)) / np.sqrt(2.0)) + 1e-6
    parts = _long_enough(segments(logs, sigma, memory), shortest)
    parts = _different(logs, parts, sigma * np.sqrt(memory))
    if len(parts) < 2:
        return []
    cuts = [_cut(logs, a, b, sigma, memory) for a, b in pairwise(parts)]
    edges = [0, *(cut for cut, _ in cuts), len(excess)]
    if any(b - a < 1 for a, b in pairwise(edges)):
        cuts = [(part.start, (part.start, part.start)) for part in parts[1:]]
        edges = [0, *(cut for cut, _ in cuts), len(excess)]
    bounds = [(0, 0), *(interval for _, interval in cuts)]
    return [Regime(a, b, interval) for (a, b), interval in zip(pairwise(edges), bounds, strict=True)]


def _cut(logs: Floats, a: Segment, b: Segment, sigma: float, memory: float) -> tuple[int, tuple[int, int]]:
    """Where the level of one stretch becomes that of the next, looked for in these two only."""
    cut, (low, high) = onset(logs[a.start : b.end], b.start - a.start, a.level, b.level, sigma, memory)
    return a.start + cut, (a.start + low, a.start + high)


def fit_better_than_a_rise(excess: Floats, found: list[Regime]) -> bool:
    """Whether two or more levels fit a stretch clearly better than a straight line does."""
    if len(found) < 2:
        return False
    stepped = sum(float(excess[p.start : p.end].var()) * (p.end - p.start) for p in found)
    return stepped < CLEARLY_BETTER * _line(excess)[2]


def begin_of_rise(excess: Floats) -> int | None:
    """Where a straight rise that fits a stretch began, 0 or less (before it was seen); None when there is no such."""
    if len(excess) < MIN_RISE_STEPS:
        return None
    slope, first, error = _line(excess)
    if slope <= 0 or error > STRAIGHT * float(excess.var()) * len(excess):
        return None
    return min(0, round(-first / slope))


def _line(excess: Floats) -> tuple[float, float, float]:
    """(slope, value at the first step, squared error) of the best straight line."""
    index = np.arange(len(excess), dtype=np.float64)
    slope, first = np.polyfit(index, excess, 1)
    return float(slope), float(first), float(((excess - slope * index - first) ** 2).sum())


def _long_enough(parts: list[Segment], shortest: int) -> list[Segment]:
    """Give short stretches to the neighbour whose level is nearer."""
    parts = list(parts)
    while len(parts) > 1 and min(p.length for p in parts) < shortest:
        index = min(range(len(parts)), key=lambda i: parts[i].length)
        near = [i for i in (index - 1, index + 1) if 0 <= i < len(parts)]
        other = min(near, key=lambda i: abs(parts[i].level - parts[index].level))
        parts = _joined(parts, min(index, other))
    return parts


def _different(logs: Floats, parts: list[Segment], error: float) -> list[Segment]:
    """Join neighbours that differ too little, or not surely."""
    parts = [Segment(p.start, p.end, float(logs[p.start : p.end].mean())) for p in parts]
    while len(parts) > 1:
        changes = [abs(b.level - a.level) for a, b in pairwise(parts)]
        sure = [
            c / (error * np.sqrt(1.0 / a.length + 1.0 / b.length))
            for c, (a, b) in zip(changes, pairwise(parts), strict=True)
        ]
        weak = [i for i, (c, z) in enumerate(zip(changes, sure, strict=True)) if c < np.log(TIMES) or z < MIN_Z]
        if not weak:
            break
        parts = _joined(parts, min(weak, key=lambda i: changes[i]))
    return parts


def _joined(parts: list[Segment], index: int) -> list[Segment]:
    """The parts at `index` and after it as one."""
    a, b = parts[index], parts[index + 1]
    level = (a.level * a.length + b.level * b.length) / (a.length + b.length)
    return [*parts[:index], Segment(a.start, b.end, level), *parts[index + 2 :]]
