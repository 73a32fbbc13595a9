"""Which rows of a matrix are high, for how long, and how surely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.trace_settings import ReplaySettings

_MAD = 1.4826
_MEDIAN_ERROR = 1.2533


@dataclass(frozen=True, slots=True)
class High:
    """A row that is high in the steps first..end-1, by `height`, with `z` standard errors."""

    row: int
    first: int
    end: int
    height: float
    z: float

    @property
    def inside(self) -> slice:
        """The steps."""
        return slice(self.first, self.end)


def high_rows(
    series: Floats,
    least: float,
    min_steps: int,
    settings: ReplaySettings,
    *,
    fewest: int = 2,
    noise: float | None = None,
) -> list[High]:
    """Rows that are persistently high.

    Args:
        series: shape (S, R), around 0 for healthy rows; NaN = no record.
        least: least height.
        min_steps: least length of an interval.
        settings: thresholds.
        noise: scatter of a row between steps; None: as the series shows it, unless many of its values are 0 because
            rows are held against the lowest of few.
        fewest: rows that are needed: two where they are held against each other.
    """
    usual = _nan_median(series)
    known = usual[~np.isnan(usual)]
    if len(known) < fewest or len(series) < min_steps:
        return []
    # Around 0, by the lower median: of two rows the lower one tells how healthy ones differ.
    spread = _MAD * float(np.sort(np.abs(known))[(len(known) - 1) // 2])
    seen = _MAD * float(np.nanmedian(np.abs(series - usual))) if noise is None else noise
    least_error = max(settings.min_noise, seen)
    floor = max(least, settings.spreads * spread)
    found = (_high(series[:, row], row, (floor, least_error), min_steps, settings) for row in range(series.shape[1]))
    return [high for high in found if high is not None]


def noise_between_steps(values: Floats, peers: int) -> float:
    """Scatter of rows between steps when they are held against their peers, from the differences of successive steps.

    Args:
        values: before they are held against anybody, shape (S, R); where slowness begins or ends only few differ.
        peers: rows that are compared: against the lower one of two noise counts twice, against a median of many once.
    """
    apart = np.abs(np.diff(values, axis=0))
    if not np.isfinite(apart).any():
        return 0.0
    alone = _MAD * float(np.nanmedian(apart)) / 2**0.5
    return float(alone * (2**0.5 if peers < 3 else (1 + np.pi / 2 / peers) ** 0.5))


def _nan_median(series: Floats) -> Floats:
    empty = np.isnan(series).all(axis=0)
    filled = np.where(empty, 0.0, series)
    return np.where(empty, np.nan, np.nanmedian(filled, axis=0))


def _high(
    values: Floats, row: int, floor_and_noise: tuple[float, float], min_steps: int, settings: ReplaySettings
) -> High | None:
    floor, noise = floor_and_noise
    seen = ~np.isnan(values)
    if seen.sum() < min_steps or np.nanmax(values, initial=0.0) < floor:
        return None
    first, end = _densest(np.clip(np.where(seen, values, 0.0), -2 * floor, 2 * floor) - floor / 2)
    first, end = _to_the_edges(values, (first, end), floor, settings.edge_share)
    inside = values[first:end]
    inside = inside[~np.isnan(inside)]
    if len(inside) < min_steps:
        return None
    height = float(np.median(inside))
    z = height / (_MEDIAN_ERROR * noise / len(inside) ** 0.5)
    share = float((inside > height / 2).mean())
    if height < floor or z < settings.min_z or share < settings.min_high_share:
        return None
    return High(row, first, end, height, z)


def _densest(score: Floats) -> tuple[int, int]:
    """Interval with the largest sum."""
    total = np.r_[0.0, np.cumsum(score)]
    lowest = np.minimum.accumulate(total)
    end = int(np.argmax(total[1:] - lowest[:-1])) + 1
    first = int(np.argmin(total[:end]))
    return first, end


def _to_the_edges(values: Floats, interval: tuple[int, int], floor: float, edge_share: float) -> tuple[int, int]:
    """A few steps at an end of the run that do not contradict belong to the interval."""
    (first, end), slack = interval, max(1, int(edge_share * len(values)))
    if first <= slack and _does_not_contradict(values[:first], floor):
        first = 0
    if len(values) - end <= slack and _does_not_contradict(values[end:], floor):
        end = len(values)
    return first, end


def _does_not_contradict(values: Floats, floor: float) -> bool:
    low: Bools = values < floor / 4
    return int(low.sum()) <= 1
