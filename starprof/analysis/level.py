"""Rises of a whole series: everybody's own time (uniform slowness) or the transfer (the network)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.changepoint import Segment, onset, segments
from starprof.analysis.detect import MIN_PAST_STEPS, noise_z
from starprof.analysis.job.drift import MAX_RECORDS, without_drift
from starprof.analysis.noise import measure_noise, without_steps
from starprof.analysis.regimes import TIMES
from starprof.analysis.settings import Settings

SPIKE_CAP = 6.0
SETTLING_SHARE = 0.25
FEW_CHANGES, MANY_CHANGES = 3, 9


@dataclass(frozen=True)
class Rise:
    """Stretch [start, end) in which a series lies above its past.

    Attributes:
        before: level of the past, microseconds.
        level: level in the stretch, microseconds.
        z: the rise in standard errors.
    """

    start: int
    end: int
    onset: tuple[int, int]
    before: float
    level: float
    z: float


def rises(values: Floats, unit_us: float, settings: Settings) -> list[Rise]:
    """Find lasting rises over the lowest earlier or later level.

    Args:
        values: microseconds, shape (S,), no NaN.
        unit_us: healthy step time; the rise must be `min_shift` of it.
        settings: thresholds.
    """
    relative = np.clip(values / unit_us, None, np.median(values) / unit_us + SPIKE_CAP)
    found = _rises(relative, unit_us, settings, FEW_CHANGES)
    if not found and len(values) <= MAX_RECORDS:
        # A level that comes and goes looks like noise with a long memory while only few changes are taken out of it.
        found = _rises(relative, unit_us, settings, MANY_CHANGES)
    return found


def _rises(relative: Floats, unit_us: float, settings: Settings, changes: int) -> list[Rise]:
    """The same with noise from which some changes of level are taken out; of many only what no drift explains."""
    residual = without_steps(relative[None, :], changes)
    noise = measure_noise(residual, residual, settings)
    sigma, memory = float(max(noise.sigma[0], 1e-4)), noise.memory
    parts = segments(relative, sigma, memory)
    if changes > FEW_CHANGES:
        parts = without_drift(relative, parts)
    enough = [p for p in parts if p.length >= MIN_PAST_STEPS]
    if len(enough) < 2:
        return []
    base = min(enough, key=lambda part: part.level)
    high: list[list[Segment]] = []
    for part in parts:
        if part.level - base.level < settings.min_shift:
            continue
        if high and high[-1][-1].end == part.start and _one_regime(high[-1][-1], part, base, settings):
            high[-1].append(part)
        else:
            high.append([part])
    found = [_rise(relative, run, parts, base, sigma, memory, unit_us) for run in high]
    steps = len(relative)
    z = noise_z(1, max(1, steps // settings.min_slow_steps), settings)
    return [r for r in found if r.end - r.start >= settings.min_slow_steps and r.z >= z and not _settling(r, steps)]


def _one_regime(first: Segment, second: Segment, base: Segment, settings: Settings) -> bool:
    """Neighbours whose rise over the past differs by less than a factor of two, or that are too short to tell."""
    low, high = sorted((first.level - base.level, second.level - base.level))
    return high < TIMES * low or min(first.length, second.length) < settings.min_slow_steps


def _settling(rise: Rise, steps: int) -> bool:
    """A job that gets faster in its first part was warming up, not slow."""
    return rise.start == 0 and rise.end <= SETTLING_SHARE * steps


def _rise(
    values: Floats, run: list[Segment], parts: list[Segment], base: Segment, sigma: float, memory: float, unit_us: float
) -> Rise:
    start, end = run[0].start, run[-1].end
    bounds = (start, start)
    if start > 0:
        before = next(p.level for p in parts if p.end == start)
        start, bounds = onset(values, start, before, run[0].level, sigma, memory)
    if end < len(values):
        after = next(p.level for p in parts if p.start == end)
        end = max(start + 1, onset(values, end, run[-1].level, after, sigma, memory)[0])
    level = float(values[start:end].mean())
    error = sigma * np.sqrt(memory * (1.0 / (end - start) + 1.0 / base.length))
    return Rise(start, end, bounds, base.level * unit_us, level * unit_us, float((level - base.level) / error))
