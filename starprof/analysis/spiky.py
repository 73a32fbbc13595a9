"""Lateness in separate steps: periodic, concentrated on one rank, going round, or single."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import Reduction
from starprof.analysis.detect import MIN_MEMORIES
from starprof.analysis.own_time import OwnTime
from starprof.analysis.settings import Settings
from starprof.analysis.shapes import (
    MIN_HITS,
    above_usual,
    period_of,
    periodic_bounds,
    robust_sigma,
    spike_bars,
    spikes,
)
from starprof.analysis.slowness import Slowness
from starprof.analysis.statistics import binomial_at_least, normal_upper_tail
from starprof.model.verdict import FindingKind

MIN_CONCENTRATED = 5
CONCENTRATED_P = 1e-4
MAX_ROTATING_SHARE = 0.6
MIN_ROTATING_RANKS = 3
MAX_TAIL_FACTOR = 2.5
HALF_HEIGHT = 0.5
SKEW = 2.0
"""How many times as often step times, which are skewed, pass a bar of a few deviations as normal noise does."""

NOISE_Z = 3.0


def spiky_ranks(comparison: Comparison, taken: Bools) -> list[Slowness]:
    """Ranks whose lateness comes in separate steps: periodic, or far more often than its peers."""
    over = above_usual(comparison.lateness)
    bars = spike_bars(comparison.lateness, comparison.settings)
    result = []
    # Noise with a memory makes one excursion look like several spikes: count excursions.
    apart = max(1, int(np.ceil(MIN_MEMORIES * comparison.noise.memory)))
    for row in np.flatnonzero(((over > bars[:, None]) & ~taken).sum(axis=1) >= MIN_HITS):
        columns = np.flatnonzero((over[row] > bars[row]) & ~taken[row])
        period = period_of(columns)
        if period is None and not (
            _excursions(columns, apart) >= MIN_CONCENTRATED
            # All ranks by this bar: a noisier rank must not hide its own spikes and make those of others stand out.
            and _has_most((over > bars[row]) & ~taken, int(row), apart)
        ):
            continue
        result.append(_of_spikes(comparison, int(row), columns, period))
    return result


def _excursions(columns: Ints, apart: int) -> int:
    """How many late excursions some late steps are, those within `apart` steps being one."""
    return int((np.diff(columns, prepend=-apart - 1) > apart).sum())


def _has_most(high: Bools, row: int, apart: int) -> bool:
    """Whether a rank has far more late excursions than chance would give it, were they to hit all ranks alike."""
    mine = _excursions(np.flatnonzero(high[row]), apart)
    hit = np.flatnonzero(high.any(axis=1))
    if mine < MAX_ROTATING_SHARE * (mine + len(hit) - 1):
        return False
    total, ranks = sum(_excursions(np.flatnonzero(high[other]), apart) for other in hit), len(high)
    chance = binomial_at_least(mine, total, 1.0 / ranks) * ranks
    return mine >= max(MIN_CONCENTRATED, MAX_ROTATING_SHARE * total) and chance < CONCENTRATED_P


def _of_spikes(comparison: Comparison, row: int, columns: Ints, period: int | None) -> Slowness:
    steps = np.zeros(comparison.own.shape[1], bool)
    steps[columns] = True
    start, end = int(columns[0]), int(columns[-1]) + 1
    distance = period or int(np.ceil((end - start) / max(1, len(columns) - 1)))
    if period is not None:
        start, end = periodic_bounds(columns, period, comparison.own.shape[1], comparison.own.hidden_steps)
    until_end = end + 2 * distance >= comparison.own.shape[1]
    kind: FindingKind = "periodic" if period else "chronic" if until_end or start <= distance else "transient"
    return Slowness(
        kind=kind,
        rows=(row,),
        start=start,
        end=comparison.own.shape[1] if until_end and not period else end,
        onset=(max(0, int(columns[0]) - distance + 1), int(columns[0])),
        steps=steps,
        reduction=Reduction({row: spike_reduction(comparison, row, steps)}),
        source="rank",
        period=period,
        z=float(len(columns)),
        late_windows=len(columns) / max(1.0, (end - start) / distance),
    )


def spike_reduction(comparison: Comparison, row: int, steps: Bools) -> Floats:
    """What single late steps of a rank cost its cycle: all of its lateness but its usual one, shape (S,)."""
    late = np.nan_to_num(comparison.lateness_us[row], nan=0.0)
    usual = float(np.median(late[~steps])) if (~steps).any() else 0.0
    return np.where(steps, np.maximum(0.0, late - max(0.0, usual)), 0.0)


def single_steps(comparison: Comparison, known: list[Slowness]) -> list[Slowness]:
    """What is left of single late steps: rotating over the ranks when it is much, else one-offs (most costly first)."""
    own, settings = comparison.own, comparison.settings
    high = _left(comparison, known, 1.0)
    if not high.any():
        return []
    lower = _left(comparison, known, HALF_HEIGHT)
    if _goes_round(high, lower.sum() - _by_noise(comparison), settings):
        return [_rotating(comparison, lower if lower.sum() <= MAX_TAIL_FACTOR * high.sum() else high)]
    found = [
        piece
        for row in np.flatnonzero(high.any(axis=1))
        for piece in _one_offs(comparison, int(row), high[row])
        if piece.cost_us >= settings.min_one_off_cost_steps * own.healthy_step_us
    ]
    found.sort(key=lambda piece: -piece.cost_us)
    # Ranks that are late in the same steps make one finding.
    listed = list(dict.fromkeys((piece.start, piece.end) for piece in found))[: settings.max_findings_listed]
    return [piece for piece in found if (piece.start, piece.end) in listed]


def stalls_alone(own: OwnTime, settings: Settings) -> list[Slowness]:
    """Single steps in which a job of one rank stood still, against its own other steps, the most costly first."""
    relative = own.work / own.healthy_step_us
    above = above_usual(relative)[0]
    late = np.flatnonzero(above > spike_bars(relative, settings)[0])
    found = []
    for group in np.split(late, np.flatnonzero(np.diff(late) > 2) + 1):
        if len(group) == 0 or len(group) >= settings.min_slow_steps:
            continue
        steps = np.zeros(own.shape[1], bool)
        steps[group] = True
        gone = np.where(steps, above * own.healthy_step_us, 0.0)
        first = int(group[0])
        found.append(
            Slowness(
                kind="one-off",
                rows=(0,),
                start=first,
                end=int(group[-1]) + 1,
                onset=(first, first),
                steps=steps,
                reduction=Reduction({0: gone}),
                source="rank",
                blame=False,
                cost_us=float(gone.sum()),
            )
        )
    found.sort(key=lambda stall: -stall.cost_us)
    return found[: settings.max_findings_listed]


def _left(comparison: Comparison, known: list[Slowness], height: float) -> Bools:
    """Single late steps that no known slowness of ranks explains, shape (R, S)."""
    high = spikes(comparison.lateness, comparison.settings, height)
    for slowness in known:
        if slowness.source in ("rank", "rotating"):
            high[list(slowness.rows), slowness.start : slowness.end] = False
    return high


def _by_noise(comparison: Comparison) -> float:
    """How many steps normal noise alone lifts to half the height at most: among thousands of ranks they are many."""
    lateness = comparison.lateness
    bars = HALF_HEIGHT * spike_bars(lateness, comparison.settings)
    sigma = np.maximum(robust_sigma(lateness), np.finfo(np.float64).tiny)
    expected: float = SKEW * lateness.shape[1] * float(np.nansum(normal_upper_tail(bars / sigma)))
    return float(expected + NOISE_Z * np.sqrt(expected))


def _goes_round(high: Bools, lower: float, settings: Settings) -> bool:
    """Whether late steps are spread over several ranks, and are events of their own.

    A heavy tail of ordinary noise has many more steps at half the height (`lower`, without what normal noise makes);
    something that happens has few.
    """
    per_rank = high.sum(axis=1)
    several = (per_rank > 0).sum() >= MIN_ROTATING_RANKS and per_rank.max() <= MAX_ROTATING_SHARE * per_rank.sum()
    often = high.any(axis=0).sum() >= settings.min_slow_steps
    return bool(several and often and lower <= MAX_TAIL_FACTOR * high.sum())


def _rotating(comparison: Comparison, late: Bools) -> Slowness:
    hit = [int(row) for row in np.flatnonzero(late.any(axis=1))]
    steps = np.asarray(late.any(axis=0))
    columns = np.flatnonzero(steps)
    start = int(columns[0])
    return Slowness(
        kind="rotating",
        rows=tuple(hit),
        start=start,
        end=int(columns[-1]) + 1,
        onset=(start, start),
        steps=steps,
        reduction=Reduction({row: spike_reduction(comparison, row, late[row]) for row in hit}),
        source="rotating",
        blame=False,
    )


def _one_offs(comparison: Comparison, row: int, late: Bools) -> list[Slowness]:
    """Join neighbouring late steps of a rank to one event each."""
    result = []
    columns = np.flatnonzero(late)
    gone = spike_reduction(comparison, row, late)
    for group in np.split(columns, np.flatnonzero(np.diff(columns) > 2) + 1):
        steps = np.zeros(comparison.own.shape[1], bool)
        steps[group] = True
        part = np.where(steps, gone, 0.0)
        first = int(group[0])
        result.append(
            Slowness(
                kind="one-off",
                rows=(row,),
                start=first,
                end=int(group[-1]) + 1,
                onset=(first, first),
                steps=steps,
                reduction=Reduction({row: part}),
                source="rank",
                blame=False,
                cost_us=float(part.sum()),
            )
        )
    return result
