"""Which ranks are late, surely and persistently; nothing yet about kind, cause or cost.

A rank is a candidate when its mean lateness over some window of steps (all dyadic windows with half overlap, from
`min_slow_steps` to the whole run) is large enough and either
* exceeds what noise AND the constant differences between healthy ranks explain (slow compared with its peers), or
* exceeds its own level before or after by more than noise explains (became slow, or recovered).
Noise is corrected for its memory and for the number of ranks and windows looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.changepoint import Segment, onset, segments
from starprof.analysis.noise import Noise, window_starts, window_widths
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import normal_upper_quantile

MIN_PAST_STEPS = 8
ONSET_IS_START = 4
WINDOWS_PER_INTERVAL = 12
CONTINUES_AT = 0.5
MIN_MEMORIES = 2.0
SMALL_BESIDE_RISE = 0.25


@dataclass(frozen=True)
class LateInterval:
    """A rank that is late over [start, end).

    Attributes:
        row: row of the rank.
        start: first late step's column.
        end: column after the last one.
        onset: columns between which the onset surely lies.
        base: the rank's lateness when it is not late (0 when chronic), share of the healthy step.
        level: its mean lateness in the interval, capped per step.
        z: (level - base) in standard errors.
        late_windows: share of the interval's windows in which the rank is late.
    """

    row: int
    start: int
    end: int
    onset: tuple[int, int]
    base: float
    level: float
    z: float
    late_windows: float

    @property
    def excess(self) -> float:
        """Lateness that is new, share of the healthy step."""
        return self.level - self.base


def least_steps(noise: Noise, settings: Settings) -> int:
    """Shortest slowness that counts as persistent: longer than one excursion of noise that has a memory."""
    return max(settings.min_slow_steps, int(np.ceil(MIN_MEMORIES * noise.memory)))


def normal_z(ranks: int, windows: int, settings: Settings) -> float:
    """Standard errors that normal noise alone exceeds nowhere, but for the agreed false-alarm rate."""
    return normal_upper_quantile(settings.false_alarm_rate / max(1, ranks * windows))


def noise_z(ranks: int, windows: int, settings: Settings) -> float:
    """The same for noise that nothing is known about."""
    return normal_z(ranks, windows, settings) + settings.noise_margin_z


def candidates(lateness: Floats, noise: Noise, settings: Settings) -> Bools:
    """Ranks worth looking at, shape (R,).

    Args:
        lateness: share of the healthy step, capped, no NaN, shape (R, S).
        noise: see `measure_noise`.
        settings: thresholds.
    """
    ranks, steps = lateness.shape
    total = np.concatenate([np.zeros((ranks, 1)), np.cumsum(lateness, axis=1)], axis=1)
    widths = window_widths(steps, least_steps(noise, settings))
    count = sum(len(window_starts(steps, w)) for w in widths)
    normal = normal_z(ranks, count, settings)
    found = np.zeros(ranks, bool)
    for width in widths:
        first = window_starts(steps, width)
        z = normal + noise.margin(normal, width, settings.noise_margin_z)
        mean = (total[:, first + width] - total[:, first]) / width
        variance = (noise.sigma**2 * noise.memory)[:, None]
        bar = np.sqrt(z**2 * variance / width + noise.spread_bar**2)
        late = mean >= np.maximum(bar, settings.min_lateness)
        for length, past in (
            (first, total[:, first]),
            (steps - first - width, total[:, -1:] - total[:, first + width]),
        ):
            other = past / np.maximum(length, 1)
            both = 1.0 / width + 1.0 / np.maximum(length, 1)
            error = (normal + noise.margin(normal, 1.0 / both, settings.noise_margin_z)) * np.sqrt(variance * both)
            rose = mean - np.maximum(other, 0.0) >= np.maximum(error, settings.min_lateness)
            late |= rose & (length >= MIN_PAST_STEPS) & (mean >= settings.min_lateness)
        found |= late.any(axis=1)
    return found


def late_intervals(row: int, lateness: Floats, noise: Noise, settings: Settings, ranks: int) -> list[LateInterval]:
    """Split one candidate's lateness into stretches and keep those in which it is late by the rules.

    Args:
        row: the rank's row.
        lateness: its capped lateness, shape (S,).
        noise: see `measure_noise`.
        settings: thresholds.
        ranks: number of ranks, for the correction.
    """
    parts = segments(lateness, float(noise.sigma[row]), noise.memory)
    base = _base(parts, noise, settings)
    late: list[list[Segment]] = []
    for part in parts:
        if part.level - base < settings.min_lateness:
            continue
        if late and late[-1][-1].end == part.start:
            late[-1].append(part)
        else:
            late.append([part])
    late = _bridged(late, lateness, base)
    found = [_interval(row, lateness, run, parts, base, noise) for run in late]
    z = normal_z(ranks, max(1, len(lateness) // settings.min_slow_steps), settings)
    return [part for part in found if _is_late(part, noise, z, settings)]


def _bridged(late: list[list[Segment]], lateness: Floats, base: float) -> list[list[Segment]]:
    """Join late stretches with only a short lull between them in which the rank stays late on average."""
    joined: list[list[Segment]] = []
    for run in late:
        if joined:
            start, end = joined[-1][0].start, run[-1].end
            lull = run[0].start - joined[-1][-1].end
            level = float(lateness[start:end].mean()) - base
            between = float(lateness[joined[-1][-1].end : run[0].start].mean()) - base
            if lull <= 0.1 * (end - start) and between >= CONTINUES_AT * level:
                joined[-1] += run
                continue
        joined.append(list(run))
    return joined


def _base(parts: list[Segment], noise: Noise, settings: Settings) -> float:
    """The rank's own usual level: its lowest stretch that is long enough.

    It counts if it lies within healthy differences, or is so small beside what the rank rose to that the rise is what
    happened: joined to one slowness, the two would have neither its onset nor its size.
    """
    total = parts[-1].end
    long_enough = [p.level for p in parts if p.length >= min(max(MIN_PAST_STEPS, 0.05 * total), total)]
    lowest, highest = min(long_enough, default=0.0), max(long_enough, default=0.0)
    tolerated = max(settings.min_lateness, noise.spread_bar, SMALL_BESIDE_RISE * highest)
    return max(0.0, lowest) if lowest < tolerated else 0.0


def _interval(
    row: int, lateness: Floats, run: list[Segment], parts: list[Segment], base: float, noise: Noise
) -> LateInterval:
    start, end = run[0].start, run[-1].end
    if start <= ONSET_IS_START:
        start, bounds = 0, (0, 0)
    else:
        start, bounds = _between(next(p for p in parts if p.end == start), run[0], row, lateness, noise)
    if end < len(lateness):
        after = next(p for p in parts if p.start == end)
        end = max(start + 1, _between(run[-1], after, row, lateness, noise)[0])
    inside = lateness[start:end]
    level = float(inside.mean())
    pieces = np.array_split(inside, max(1, min(WINDOWS_PER_INTERVAL, len(inside) // 4)))
    late = np.mean([piece.mean() - base >= 0.3 * (level - base) for piece in pieces])
    z = (level - base) / noise.error_of_mean(row, len(inside))
    return LateInterval(row, start, end, bounds, base, level, float(z), float(late))


def _between(a: Segment, b: Segment, row: int, lateness: Floats, noise: Noise) -> tuple[int, tuple[int, int]]:
    """Where one stretch becomes the next, and between which steps that surely lies; looked for in these two only.

    Beyond them the level is another one: of a short slowness the end would be found at its beginning.
    """
    own = lateness[a.start : b.end]
    cut, (low, high) = onset(own, b.start - a.start, a.level, b.level, float(noise.sigma[row]), noise.memory)
    return a.start + cut, (a.start + low, a.start + high)


def _is_late(part: LateInterval, noise: Noise, z: float, settings: Settings) -> bool:
    """The rules once more, for the interval itself."""
    length = part.end - part.start
    if length < least_steps(noise, settings) or part.excess < settings.min_lateness:
        return False
    # Its bounds were chosen where noise is highest: of a heavy tail, one excursion.
    if part.z < z + noise.margin(z, length, settings.excursion_margin_z):
        return False
    if part.late_windows < settings.min_late_windows:
        return False
    has_past = part.start > 0
    return has_past or part.level >= noise.spread_bar
