"""Constant differences between workers: groups that stand apart from the rest in the whole run, and mere variety."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.workers.fleet import Fleet

MIN_GAP = 0.06
MIN_EXCESS = 0.08
"""Least distance between neighbours across the gap, and of a slow group from the rest, as logarithms."""
SURE_GAP, SURE_GAP_OF_FEW = 0.69, 0.875
"""No healthy fleet reaches this (twice; 2.4 times among three or two): in workers that differ by 20 % (standard
deviation) less than one in a thousand fleets has such a gap anywhere."""
FEW = 3
PLAIN_GAP = 0.405
"""From here on (1.5 times) the lower bars apply: less than 4 in a thousand fleets with 20 %, none with 10 %."""
LEAST_DEVIATION = 0.01
MIN_FAST_SHARE = 0.25
MAX_WINDOWS = 10
MIN_WINDOW_SAMPLES = 8
FEW_SAMPLES = 16
MIN_WINDOW_SHARE = 0.4
APART_SHARE = 0.9
VARIETY = 0.1

_WORKERS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64)
_BARS = (1204.0, 73.0, 27.7, 17.2, 11.4, 9.3, 6.5, 5.2, 3.9, 3.1, 2.8, 2.35)
_PLAIN_BARS = (110.0, 22.4, 12.3, 8.4, 6.6, 5.4, 4.1, 3.5, 2.8, 2.2, 2.0, 1.7)
"""Widest gap over the deviation inside both sides that one in a thousand, or in a hundred, fleets of normal levels
exceeds (simulated)."""


@dataclass(frozen=True)
class Group:
    """Workers that are slower than the rest from the first sample to the last.

    Attributes:
        rows: the workers.
        reference: the faster ones.
        excess: mean distance to those, as a logarithm.
        gap: distance between the fastest of the slow and the slowest of the fast.
    """

    rows: tuple[int, ...]
    reference: tuple[int, ...]
    excess: float
    gap: float


@dataclass(frozen=True)
class Levels:
    """Levels of the workers, as logarithms, events left out.

    Attributes:
        levels: of the whole run against the fleet, shape (R,).
        windows: of each part of the run, shape (R, W), NaN = not seen.
        groups: slow ones, the slowest first; their references leave out all slow workers.
    """

    levels: Floats
    windows: Floats
    groups: tuple[Group, ...]

    @property
    def varied(self) -> bool:
        """Workers differ constantly by more than they wander, although nobody stands apart."""
        width = self.windows.shape[1]
        seen = self.windows[~np.isnan(self.windows).all(axis=1)]
        wander = float(np.median(np.nanstd(seen, axis=1))) if width > 1 and len(seen) else 0.0
        return bool(np.ptp(self.levels) >= max(VARIETY, 4.0 * wander / np.sqrt(width)))


def levels_of(fleet: Fleet, late: Bools) -> Levels:
    """Levels and slow groups.

    Args:
        fleet: the workers.
        late: cells in an event, which do not count, shape (R, S).
    """
    windows = _windows(fleet, late)
    windows = windows - _fleet_of(windows)
    rare = np.isnan(windows).all(axis=1)
    levels = np.full(len(windows), np.nan)
    levels[~rare] = np.nanmedian(windows[~rare], axis=1)
    # Seen now and then only: no part of the run tells its level, all of it may.
    levels[rare] = np.nanmedian(fleet.logs[rare], axis=1)
    rest = np.arange(len(levels))
    slow: list[Ints] = []
    while (group := _apart(levels, windows, rest)) is not None:
        slow.append(group)
        rest = np.setdiff1d(rest, group)
    groups = tuple(_group(levels, rows, rest) for rows in slow)
    return Levels(levels, windows, groups)


def _windows(fleet: Fleet, late: Bools) -> Floats:
    """Median of each worker in each part of the run, shape (R, W)."""
    samples = fleet.shape[1]
    count = samples if samples < FEW_SAMPLES else min(MAX_WINDOWS, max(1, samples // MIN_WINDOW_SAMPLES))
    usual = np.where(late, np.nan, fleet.logs)
    # A worker that is late in all samples that it has is judged by those.
    never = np.isnan(usual).all(axis=1)
    usual[never] = fleet.logs[never]
    result = np.full((len(usual), count), np.nan)
    for i, piece in enumerate(np.array_split(usual, count, axis=1)):
        # What is left of a window beside an event is its ramp, not the usual level.
        seen = (~np.isnan(piece)).mean(axis=1) >= MIN_WINDOW_SHARE
        result[seen, i] = np.nanmedian(piece[seen], axis=1)
    return result


def _fleet_of(windows: Floats) -> Floats:
    """What the fleet did from window to window, by the workers that were there all the time, shape (W,)."""
    always = ~np.isnan(windows).any(axis=1)
    if always.sum() < 2:
        return np.zeros(windows.shape[1])
    movement = windows[always] - windows[always].mean(axis=1, keepdims=True)
    fleet: Floats = np.median(movement, axis=0)
    return fleet


def _apart(levels: Floats, windows: Floats, rows: Ints) -> Ints | None:
    """The workers above the widest gap, when that is no chance and holds in the whole run; None otherwise."""
    if len(rows) < 2:
        return None
    ordered = rows[np.argsort(levels[rows], kind="stable")]
    gaps = np.diff(levels[ordered])
    least = 1 if len(rows) == 2 else max(2, int(np.ceil(MIN_FAST_SHARE * len(rows))))
    if least > len(gaps):
        return None
    cut = least + int(np.argmax(gaps[least - 1 :]))
    fast, slow, gap = ordered[:cut], ordered[cut:], float(gaps[cut - 1])
    excess = float(levels[slow].mean() - levels[fast].mean())
    if gap < MIN_GAP or excess < MIN_EXCESS or not _always_apart(windows[fast], windows[slow], gap):
        return None
    if gap >= (SURE_GAP if len(rows) > FEW else SURE_GAP_OF_FEW):
        return slow
    return slow if len(rows) >= FEW and gap >= _bar(len(rows), gap) * _inside(levels, fast, slow) else None


def _bar(workers: int, gap: float) -> float:
    bars = _PLAIN_BARS if gap >= PLAIN_GAP else _BARS
    return float(np.exp(np.interp(np.log(workers), np.log(_WORKERS), np.log(bars))))


def _inside(levels: Floats, fast: Ints, slow: Ints) -> float:
    """Standard deviation inside the two sides, pooled."""
    squares = sum(float(((levels[side] - levels[side].mean()) ** 2).sum()) for side in (fast, slow))
    return max(LEAST_DEVIATION, float(np.sqrt(squares / (len(fast) + len(slow) - 2))))


def _always_apart(fast: Floats, slow: Floats, gap: float) -> bool:
    """Whether every slow worker is slower than every fast one, by half the gap, in nearly all parts of the run."""
    highest = np.where(np.isnan(fast), -np.inf, fast).max(axis=0)
    lowest = np.where(np.isnan(slow), np.inf, slow).min(axis=0)
    both = np.isfinite(highest) & np.isfinite(lowest)
    return bool(both.any() and (lowest[both] - highest[both] >= 0.5 * gap).mean() >= APART_SHARE)


def _group(levels: Floats, rows: Ints, rest: Ints) -> Group:
    return Group(
        rows=tuple(int(r) for r in np.sort(rows)),
        reference=tuple(int(r) for r in np.sort(rest)),
        excess=float(levels[rows].mean() - np.median(levels[rest])),
        gap=float(levels[rows].min() - levels[rest].max()),
    )
