"""The shape of slowness in time: chronic, transient, periodic, trend, and single spikes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints, medians_of_first, row_medians
from starprof.analysis.detect import LateInterval
from starprof.analysis.noise import MAD_TO_SIGMA
from starprof.analysis.settings import Settings
from starprof.model.verdict import FindingKind

MIN_HITS = 4
REGULAR_SHARE = 0.8
EXPECTED_SHARE = 0.7
QUIET_BETWEEN = 0.25
RAMP_GAIN = 0.7
RAMP_TRIALS = 60
MIN_RAMP_STEPS = 24


@dataclass(frozen=True)
class Shape:
    """Kind of a late interval, the steps that carry it, and its period for a periodic one."""

    kind: FindingKind
    start: int
    end: int
    onset: tuple[int, int]
    hits: Bools
    period: int | None = None


def robust_sigma(values: Floats) -> Floats:
    """Standard deviation per row, shape (R,), from the steps below the median only: late steps must not hide."""
    ordered = np.sort(values, axis=1)  # NaN goes last
    middle = medians_of_first(ordered, np.sum(~np.isnan(ordered), axis=1))
    below = medians_of_first(ordered, np.sum(ordered <= middle[:, None], axis=1))
    sigma: Floats = MAD_TO_SIGMA * (middle - below)
    return sigma


def spikes(lateness: Floats, settings: Settings, height: float = 1.0) -> Bools:
    """Single steps in which a rank is much later (by `height` of the usual bar) than its noise explains, (R, S)."""
    return above_usual(lateness) > height * spike_bars(lateness, settings)[:, None]


def above_usual(lateness: Floats) -> Floats:
    """Lateness above the rank's own median, 0 where not recorded, shape (R, S)."""
    return np.nan_to_num(lateness - row_medians(lateness)[:, None], nan=0.0)


def spike_bars(lateness: Floats, settings: Settings) -> Floats:
    """How far above its median a rank's step must lie to be a spike, shape (R,)."""
    bars: Floats = np.maximum(settings.min_spike, settings.spike_z * robust_sigma(lateness))
    return bars


def period_of(columns: Ints) -> int | None:
    """Period in steps of hits at the given columns, None when they are not regular.

    Every distance must be the period, or twice it when a hit was missed, within one step for long periods.
    """
    if len(columns) < MIN_HITS:
        return None
    distance = np.diff(columns)
    period = int(np.median(distance))
    if period < 2:
        return None
    slack = 0 if period < 10 else max(1, round(0.05 * period))
    multiple = np.clip(np.rint(distance / period), 1, 2)
    regular = np.mean(np.abs(distance - multiple * period) <= slack)
    expected = (columns[-1] - columns[0]) / period + 1
    return period if regular >= REGULAR_SHARE and len(columns) / expected >= EXPECTED_SHARE else None


def periodic_bounds(columns: Ints, period: int, steps: int, hidden: int) -> tuple[int, int]:
    """Begin and end of periodic slowness: the run's own where the hit before or after could not have been seen.

    Args:
        columns: hits.
        period: steps between them.
        steps: number of columns.
        hidden: steps of the run before the first column.
    """
    start = 0 if -hidden <= columns[0] - period < 0 else int(columns[0])
    return start, steps if columns[-1] + period >= steps else int(columns[-1]) + 1


def shape_of(
    part: LateInterval, lateness: Floats, capped: Floats, sigma: float, hidden: int, settings: Settings
) -> Shape:
    """Name the shape of a late interval.

    Args:
        part: the interval.
        lateness: the rank's lateness, share of the healthy step, shape (S,).
        capped: the same, capped.
        sigma: its noise from step to step.
        hidden: steps of the run before the first column.
        settings: thresholds.
    """
    inside = np.zeros(len(lateness), bool)
    inside[part.start : part.end] = True
    over = np.nan_to_num(lateness, nan=0.0) - part.base
    high = inside & (over > max(settings.min_spike, 0.3 * float(np.percentile(over[inside], 98))))
    columns = np.flatnonzero(high)
    quiet = float(over[inside & ~high].sum()) <= QUIET_BETWEEN * float(over[inside].sum())
    period = period_of(columns) if quiet and high.sum() <= 0.6 * inside.sum() else None
    if period is not None:
        start, end = periodic_bounds(columns, period, len(lateness), hidden)
        first = int(columns[0])
        return Shape("periodic", start, end, (max(0, first - period + 1), first), high, period)
    ramp = _ramp_start(capped, part, sigma) if np.median(over[inside]) < settings.lateness_cap else None
    if ramp is not None:
        inside[ramp : part.end] = True
        return Shape("trend", ramp, part.end, (ramp, max(ramp, part.start)), inside)
    kind: FindingKind = "chronic" if part.start == 0 or part.end == len(lateness) else "transient"
    return Shape(kind, part.start, part.end, part.onset, inside)


def _ramp_start(values: Floats, part: LateInterval, sigma: float) -> int | None:
    """Start of a steady rise that lasts to the end of the interval, when that fits clearly better than a level."""
    end = part.end
    if end - part.start < MIN_RAMP_STEPS:
        return None
    series = values[:end]
    index = np.arange(end)
    best, best_start = np.inf, 0
    for start in np.unique(np.linspace(0, max(1, part.start), RAMP_TRIALS).astype(int)):
        rise = np.clip(index - start, 0, None).astype(np.float64)
        slope = float(rise @ (series - part.base)) / max(float(rise @ rise), 1.0)
        error = float(((series - part.base - slope * rise) ** 2).sum())
        if slope > 0 and error < best:
            best, best_start = error, int(start)
    level = np.where(index >= part.start, part.level, part.base)
    step_error = float(((series - level) ** 2).sum())
    noise = sigma**2 * end
    better = step_error - best > max(0.2 * noise, 10 * sigma**2)
    return best_start if best < RAMP_GAIN * step_error and better else None
