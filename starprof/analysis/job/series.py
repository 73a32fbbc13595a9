"""One series of step times: its levels, its single slow records, and whether it rises all along.

All of it works on logarithms, so that noise is a share of the level, and heights and shifts are factors. Single slow
records are cut down before levels are looked for, and levels are only those that last: neither is taken for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.ndimage import median_filter

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.changepoint import MAX_POINTS, Segment, onset, segments
from starprof.analysis.detect import noise_z
from starprof.analysis.job.drift import no_drift, without_drift
from starprof.analysis.noise import MAD_TO_SIGMA, memory_of, without_steps
from starprof.analysis.settings import Settings

LOCAL_WINDOW = 9
"""Records of the running median: up to four slow ones in a row are spikes, five are a level."""
MIN_LEVEL_RECORDS = 5
MIN_SPIKE = float(np.log(1.2))
SPIKE_SIGMAS = 6.0
FEW_RECORDS = 4.0
LOWER_TAIL_FACTOR = 1.5
"""Noise that throws records this far down throws them up as well: a spike must be this much higher."""
LOWER_TAIL_SHARE = 0.005
MIN_LEVEL = float(np.log(1.02))
BASE_SHARE = 0.2
MEMORY_BIAS = 1.0
MIN_SIGMA = 1e-4
LONG_SERIES = 60
MAX_PHI = 0.97
PHI_MARGIN = 2.0
TREND_GAIN = 2.0
TREND_TRIALS = 60
MIN_TREND_RECORDS = 40
MIN_TREND = float(np.log(1.03))


@dataclass(frozen=True)
class Noise:
    """Scatter of the records around their level, in logarithms.

    Attributes:
        sigma: standard deviation from record to record.
        memory: variance of a mean of n records is sigma^2 * memory / n.
    """

    sigma: float
    memory: float

    def error(self, first: int, second: int) -> float:
        """Standard error of the difference of the means of two stretches of these lengths."""
        return self.sigma * float(np.sqrt(self.memory * (1.0 / max(first, 1) + 1.0 / max(second, 1))))


@dataclass(frozen=True)
class Stretch:
    """Records [start, end) that lie above the base level.

    Attributes:
        onset: columns between which the first record at this level surely lies.
        height: how far above the base, in logarithms.
        z: the height in standard errors.
    """

    start: int
    end: int
    onset: tuple[int, int]
    height: float
    z: float


@dataclass(frozen=True)
class Trend:
    """A steady rise from `start` to the end, by `height` in logarithms."""

    start: int
    height: float
    z: float


@dataclass(frozen=True)
class Shape:
    """What a series does.

    Attributes:
        noise: of the records around the levels.
        local: running median in logarithms, shape (S,).
        spikes: records far above their neighbours, shape (S,).
        base: lowest lasting level, in logarithms.
        level: level of each record, shape (S,).
        slow: lasting stretches above the base, in order.
        trend: a steady rise, instead of levels.
    """

    noise: Noise
    local: Floats
    spikes: Bools
    base: float
    level: Floats
    slow: tuple[Stretch, ...]
    trend: Trend | None


def shape_of(values: Floats, settings: Settings) -> Shape:
    """Levels, spikes and trend of a series.

    Args:
        values: natural logarithms, no NaN, shape (S,), S >= MIN_LEVEL_RECORDS.
        settings: for the agreed false-alarm rate.
    """
    local = median_filter(values, size=min(LOCAL_WINDOW, len(values)), mode="mirror")
    above = values - local
    bar = spike_bar(above)
    spikes = above > bar
    capped = np.where(np.abs(above) > bar, local, values)
    noise = noise_of(capped)
    z = noise_z(1, max(1, len(values) // MIN_LEVEL_RECORDS), settings)
    changes = _lasting(capped, segments(capped, noise.sigma, noise.memory), noise, z, 0.0)
    trend = _trend(capped, changes, noise, z)
    if trend is not None:
        ramp = _ramp(len(capped), trend.start) * trend.height
        base = float((capped - ramp).mean())
        return Shape(noise, local, spikes, base, base + ramp, (), trend)
    parts = without_drift(capped, _lasting(capped, changes, noise, z, MIN_LEVEL))
    base = _base(parts)
    level = np.concatenate([np.full(p.length, p.level) for p in parts])
    return Shape(noise, local, spikes, base, level, _slow(capped, parts, base, noise, z), None)


def spike_bar(above: Floats) -> float:
    """Height above the running median from which on a record is a spike.

    Six standard deviations, from the records below the median only; and more than noise reaches downwards.
    """
    below = -above[above <= 0]
    sigma = MAD_TO_SIGMA * float(np.median(below[below > 0])) if (below > 0).any() else 0.0
    sigma *= 1.0 + FEW_RECORDS / float(np.sqrt(len(above)))
    allowed = int(LOWER_TAIL_SHARE * len(above)) + 1
    lowest = float(np.sort(below)[-allowed - 1]) if len(below) > allowed else 0.0
    return max(MIN_SPIKE, SPIKE_SIGMAS * sigma, LOWER_TAIL_FACTOR * lowest)


def noise_of(capped: Floats) -> Noise:
    """Noise of a series without its spikes, whatever its levels: the smaller of two cautious estimates.

    What is left when a few level changes are taken out is too much where there are many of them; differences of
    neighbours hardly see level changes at all, but tell little of noise that drifts.
    """
    residual = without_steps(capped[None, :])
    memory = memory_of(residual)
    # Taking out level changes takes correlated noise's own excursions with them.
    memory = min(memory * (1.0 + MEMORY_BIAS * memory * 4.0 / len(capped)), len(capped) / 4)
    without = Noise(max(float(np.std(residual)), MIN_SIGMA), max(memory, 1.0))
    by_neighbours = _noise_of_differences(capped)
    return min((n for n in (without, by_neighbours) if n is not None), key=lambda n: n.sigma**2 * n.memory)


def _noise_of_differences(values: Floats) -> Noise | None:
    """An AR(1) process with the robust variances of the differences over one and over a few records.

    Var(x[i + k] - x[i]) = 2 sigma^2 (1 - phi^k); phi is taken two standard errors too high.
    """
    lag = 4 if len(values) >= LONG_SERIES else 2
    if len(values) < MIN_LEVEL_RECORDS + lag:
        return None
    near, far = (_robust_variance(values[k:] - values[:-k]) for k in (1, lag))
    if near <= MIN_SIGMA**2:
        return None
    tried = np.linspace(0.0, MAX_PHI, 98)
    ratio = (1.0 - tried**lag) / (1.0 - tried)
    phi = float(np.interp(far / near, ratio, tried)) + PHI_MARGIN / float(np.sqrt(len(values)))
    phi = min(phi, MAX_PHI)
    return Noise(float(np.sqrt(near / (2.0 * (1.0 - phi)))), (1.0 + phi) / (1.0 - phi))


def _robust_variance(differences: Floats) -> float:
    return float((MAD_TO_SIGMA * np.median(np.abs(differences))) ** 2)


def _lasting(values: Floats, parts: list[Segment], noise: Noise, z: float, least: float) -> list[Segment]:
    """Join stretches that are too short, or whose levels differ by too little, with the neighbour most like them."""
    parts = list(parts)
    while len(parts) > 1:
        doubt = [_doubt(a, b, noise, z, least) for a, b in pairwise(parts)]
        weakest = int(np.argmax(doubt))
        if doubt[weakest] <= 1.0:
            break
        first, second = parts[weakest], parts[weakest + 1]
        joined = values[first.start : second.end]
        parts[weakest : weakest + 2] = [Segment(first.start, second.end, float(joined.mean()))]
    return parts


def _doubt(first: Segment, second: Segment, noise: Noise, z: float, least: float) -> float:
    """Above 1 when the change between two stretches is none; the higher, the surer."""
    height = abs(second.level - first.level)
    doubt = max(least, z * noise.error(first.length, second.length)) / max(height, 1e-12)
    short = min(first.length, second.length) < MIN_LEVEL_RECORDS
    return max(doubt, 1.0 + 1.0 / max(height, 1e-6)) if short else doubt


def _base(parts: list[Segment]) -> float:
    """The lowest level that makes up a good part of the series, or that it began with."""
    total = parts[-1].end
    return min(p.level for i, p in enumerate(parts) if i == 0 or p.length >= BASE_SHARE * total)


def _slow(values: Floats, parts: list[Segment], base: float, noise: Noise, z: float) -> tuple[Stretch, ...]:
    """Stretches above the base, each with the records between which it began."""
    base_length = sum(p.length for p in parts if p.level <= base + MIN_LEVEL)
    found = []
    for index, part in enumerate(parts):
        height = part.level - base
        error = noise.error(part.length, base_length)
        if height < max(MIN_LEVEL, z * error):
            continue
        start, bounds = part.start, (part.start, part.start)
        if index > 0:
            before = parts[index - 1].level
            _, bounds = onset(values, start, before, part.level, noise.sigma, noise.memory)
        found.append(Stretch(start, part.end, bounds, height, height / error))
    return tuple(found)


def _ramp(length: int, start: int) -> Floats:
    """0 up to `start`, then rising evenly to 1."""
    ramp: Floats = np.clip(np.arange(length) - start, 0, None) / max(1, length - 1 - start)
    return ramp


def _trend(values: Floats, parts: list[Segment], noise: Noise, z: float) -> Trend | None:
    """A steady rise to the end, when it fits clearly better than levels do; on means of blocks in long series."""
    if len(values) < MIN_TREND_RECORDS:
        return None
    block = -(-len(values) // MAX_POINTS)
    usable = len(values) // block * block
    levels = np.concatenate([np.full(p.length, p.level) for p in parts])
    values, levels = (v[:usable].reshape(-1, block).mean(axis=1) for v in (values, levels))
    sigma = noise.sigma * float(np.sqrt(min(noise.memory, block) / block))
    memory = max(1.0, noise.memory / block)
    n = len(values)
    penalty = TREND_GAIN * sigma**2 * memory * np.log(n)
    by_levels = float(((values - levels) ** 2).sum()) + penalty * 2 * (len(parts) - 1)
    best, chosen = np.inf, Trend(0, 0.0, 0.0)
    centred = values - values.mean()
    for start in np.unique(np.linspace(0, 0.7 * n, TREND_TRIALS).astype(int)).tolist():
        ramp = _ramp(n, start)
        ramp -= ramp.mean()
        weight = float(ramp @ ramp)
        height = float(ramp @ centred) / weight
        error = float(((centred - height * ramp) ** 2).sum())
        if error < best:
            best, chosen = error, Trend(start, height, height * float(np.sqrt(weight / memory)) / sigma)
    sure = chosen.height >= MIN_TREND and chosen.z >= z
    if not sure or best + 2 * penalty >= by_levels or not no_drift(values, _ramp(n, chosen.start)):
        return None
    return replace(chosen, start=chosen.start * block)
