"""Workers that became slower than they are themselves: changes of level against the fleet, in one worker's samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.changepoint import Segment, onset, segments
from starprof.analysis.noise import MAD_TO_SIGMA, memory_of, without_steps
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import normal_upper_quantile
from starprof.analysis.workers.fleet import Fleet

MIN_CHANGE = 0.14
"""Least lasting change, as a logarithm (15 %): public fleets of such workers differ by 10 % with nobody slow."""
MIN_JUMP = 0.4
"""A lasting slowness that grows by this much is two."""
PIECES = 6
LOW_SHARE = 0.3
ROUNDS = 2
MIN_REFERENCES = 0.25
MAX_MEMORY = 40.0
LEAST_SIGMA = 0.005
BASE_SHARE = 0.05
LULL_SHARE = 0.2
CONTINUES_AT = 0.3
OWN_SHARE = 0.5
ONSET_IS_START = 4
MAX_REACH = 100
SETTLING_SHARE = 0.25


@dataclass(frozen=True)
class Event:
    """A stretch in which one worker was slower than usual for it.

    Attributes:
        row: the worker.
        start: first column.
        end: column after the last one.
        bounds: columns between which the onset surely lies.
        excess: logarithm of (time in the stretch over the worker's usual time), the fleet's movements taken out.
        late_share: share of its samples that are clearly slow.
    """

    row: int
    start: int
    end: int
    bounds: tuple[int, int]
    excess: float
    late_share: float


@dataclass(frozen=True)
class Relative:
    """Every worker against its own usual level and what the fleet did, as logarithms.

    Attributes:
        values: shape (R, S), NaN = not seen.
        reference: movement of the workers that are not slow, shape (S,).
        base: each worker's usual value, shape (R,).
    """

    values: Floats
    reference: Floats
    base: Floats


def events_of(fleet: Fleet, settings: Settings) -> tuple[list[Event], Relative]:
    """All events, and the series in which they were found."""
    usual = _lowest_lasting(fleet.logs, settings)
    moved = fleet.logs - usual[:, None]
    # A low quantile first: up to two thirds of the workers may become slow together.
    reference = np.nanquantile(moved, LOW_SHARE, axis=0)
    found: list[Event] = []
    relative = Relative(moved - reference, reference, np.zeros(len(moved)))
    for _ in range(ROUNDS):
        found, base = _search(moved - reference, settings)
        relative = Relative(moved - reference, reference, base)
        reference = _reference(moved, reference, mask_of(found, fleet.shape))
    return [event for event in found if _own_rise(fleet, event)], relative


def mask_of(found: list[Event], shape: tuple[int, int]) -> Bools:
    """Cells that lie in an event."""
    mask = np.zeros(shape, bool)
    for event in found:
        mask[event.row, event.start : event.end] = True
    return mask


def _lowest_lasting(logs: Floats, settings: Settings) -> Floats:
    """Each worker's lowest level over a good part of the run, shape (R,)."""
    pieces = np.array_split(logs, max(1, min(PIECES, logs.shape[1] // settings.min_slow_steps)), axis=1)
    levels = np.full((len(pieces), len(logs)), np.nan)
    for i, piece in enumerate(pieces):
        enough = (~np.isnan(piece)).mean(axis=1) >= LOW_SHARE
        levels[i, enough] = np.nanmedian(piece[enough], axis=1)
    lowest = np.where(np.isnan(levels), np.inf, levels).min(axis=0)
    return np.where(np.isfinite(lowest), lowest, np.nanmedian(logs, axis=1))


def _reference(moved: Floats, before: Floats, late: Bools) -> Floats:
    """Median movement of the workers without an event; what it was where too few are left."""
    left = np.where(late, np.nan, moved)
    count = (~np.isnan(left)).sum(axis=0)
    enough = count >= np.maximum(2, MIN_REFERENCES * (~np.isnan(moved)).sum(axis=0))
    result = before.copy()
    result[enough] = np.nanmedian(left[:, enough], axis=0)
    return result


def _search(relative: Floats, settings: Settings) -> tuple[list[Event], Floats]:
    """Events of every worker, and each one's usual level."""
    columns = [np.flatnonzero(~np.isnan(series)) for series in relative]
    noise = [_noise_of(series[seen]) for series, seen in zip(relative, columns, strict=True)]
    typical_sigma = float(np.median([sigma for sigma, _ in noise]))
    typical_memory = float(np.median([memory for _, memory in noise]))
    wander = _wander(relative)
    cells = relative.size / settings.min_slow_steps
    z = normal_upper_quantile(settings.false_alarm_rate / max(1.0, cells)) + settings.noise_margin_z
    found, base = [], np.zeros(len(relative))
    for row, (seen, (sigma, memory)) in enumerate(zip(columns, noise, strict=True)):
        own = _Noise(max(sigma, typical_sigma), max(memory, typical_memory))
        series = _Series(row, relative[row, seen], own, wander, z)
        base[row], stretches = series.stretches(settings)
        found += [_in_columns(event, seen) for event in stretches]
    return found, base


def _in_columns(event: Event, seen: Ints) -> Event:
    """The same event, counted in columns instead of the worker's own samples."""
    low, high = event.bounds
    return Event(
        event.row,
        int(seen[event.start]) if event.start else 0,
        int(seen[event.end - 1]) + 1,
        (int(seen[low]), int(seen[high])) if event.start else (0, 0),
        event.excess,
        event.late_share,
    )


def _noise_of(series: Floats) -> tuple[float, float]:
    """Robust standard deviation of single samples around the levels of a series, and their memory."""
    if len(series) < 2:
        return LEAST_SIGMA, 1.0
    residual = without_steps(series[None, :])
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(residual - np.median(residual))))
    memory = min(memory_of(residual), MAX_MEMORY) if np.ptp(residual) > 0 else 1.0
    return max(sigma, LEAST_SIGMA), memory


@dataclass(frozen=True)
class _Noise:
    """Standard deviation of single samples, and their memory (1 = independent samples)."""

    sigma: float
    memory: float

    def error_of_mean(self, samples: int) -> float:
        """Standard error of a mean; over less than the noise remembers it is as uncertain as a single sample."""
        return self.sigma * float(np.sqrt(min(1.0, self.memory / samples)))


def _wander(relative: Floats) -> _Noise:
    """Noise of steady workers with their slow wandering left in: what those do as well is nobody's event.

    Up to two thirds of the workers may be slow for a time, so the steadiest third is asked, and its least steady worker
    taken: the steadiest of a few is steady by chance.
    """
    around = np.nan_to_num(relative - np.nanmedian(relative, axis=1, keepdims=True), nan=0.0)
    third = max(min(2, len(around) - 1), -(-len(around) // 3))
    steady = around[np.argsort(around.std(axis=1), kind="stable")[: max(1, third)]]
    memory = min(memory_of(steady), MAX_MEMORY) if relative.shape[1] > 1 else 1.0
    return _Noise(max(LEAST_SIGMA, float(steady[-1].std())), memory)


@dataclass(frozen=True)
class _Series:
    """One worker's samples against its own usual level, with the noise that it has and the bar for an event."""

    row: int
    values: Floats
    noise: _Noise
    wander: _Noise
    z: float

    def stretches(self, settings: Settings) -> tuple[float, list[Event]]:
        """The usual level, and the stretches that lie above it surely and by enough."""
        if len(self.values) < 2 * settings.min_slow_steps:
            return float(np.median(self.values)), []
        parts = segments(self.values, self.noise.sigma, self.noise.memory)
        lasting = [p for p in parts if p.length >= max(settings.min_slow_steps, BASE_SHARE * len(self.values))]
        base = min(lasting, key=lambda part: part.level, default=None)
        if base is None:
            return float(np.median(self.values)), []
        found = (self._event(run, parts, base) for run in self._high(parts, base.level, settings))
        return base.level, [event for event in found if self._is_one(event, base, settings)]

    def _high(self, parts: list[Segment], base: float, settings: Settings) -> list[list[Segment]]:
        """Neighbouring parts above the usual level, short lulls included."""
        runs: list[list[Segment]] = []
        for part in parts:
            if part.level - base < MIN_CHANGE:
                continue
            if runs and part.start - runs[-1][-1].end <= LULL_SHARE * (part.end - runs[-1][0].start):
                runs[-1].append(part)
            else:
                runs.append([part])
        # A much higher part after a lasting, lesser one is an event of its own.
        return [piece for run in runs for piece in _split(run, settings)]

    def _event(self, run: list[Segment], parts: list[Segment], base: Segment) -> Event:
        start, end = run[0].start, run[-1].end
        level = float(self.values[start:end].mean())
        bounds = (start, start)
        if start <= ONSET_IS_START:
            start, bounds = 0, (0, 0)
        else:
            # Only up to the event's end: what comes after looks like what came before.
            before = next(p for p in parts if p.end == start)
            first = max(before.start, start - MAX_REACH)
            start, bounds = self._edge(first, start, end, before.level, min(level, run[0].level))
        if end < len(self.values):
            after = next(p for p in parts if p.start == end)
            last = min(after.end, end + MAX_REACH)
            end = self._edge(start, end, last, min(level, run[-1].level), after.level)[0]
        end = max(start + 1, end)
        inside = self.values[start:end] - base.level
        excess = float(inside.mean())
        return Event(self.row, start, end, bounds, excess, float((inside >= CONTINUES_AT * excess).mean()))

    def _edge(self, first: int, cut: int, last: int, before: float, after: float) -> tuple[int, tuple[int, int]]:
        """Where the level changes within [first, last), and the bounds of that."""
        place, bounds = onset(self.values[first:last], cut - first, before, after, self.noise.sigma, self.noise.memory)
        return first + place, (first + bounds[0], first + bounds[1])

    def _is_one(self, event: Event, base: Segment, settings: Settings) -> bool:
        length = event.end - event.start
        error = max(
            float(np.hypot(noise.error_of_mean(length), noise.error_of_mean(base.length)))
            for noise in (self.noise, self.wander)
        )
        settling = event.start == 0 and event.end <= SETTLING_SHARE * len(self.values)
        return (
            not settling
            and length >= settings.min_slow_steps
            and event.excess >= max(MIN_CHANGE, self.z * error)
            and event.late_share >= settings.min_late_windows
        )


def _split(run: list[Segment], settings: Settings) -> list[list[Segment]]:
    """Cut a high stretch where it rises to more than twice of what it was before, if both parts last."""
    for cut in range(1, len(run)):
        first, second = run[:cut], run[cut:]
        lasting = all(p[-1].end - p[0].start >= settings.min_slow_steps for p in (first, second))
        rises = all(b.level - a.level >= MIN_JUMP for a, b in [(first[-1], second[0])])
        if lasting and rises:
            return [first, *_split(second, settings)]
    return [run]


def _own_rise(fleet: Fleet, event: Event) -> bool:
    """The worker itself took longer: it does not only look slow because the others became faster."""
    own = fleet.logs[event.row]
    inside = own[event.start : event.end]
    outside = np.r_[own[: event.start], own[event.end :]]
    seen = outside[~np.isnan(outside)]
    return len(seen) > 0 and float(np.nanmedian(inside) - np.quantile(seen, LOW_SHARE)) >= OWN_SHARE * event.excess
