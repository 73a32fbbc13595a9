"""Slow records that come at even distances, as saving and evaluating do, told apart from those that don't."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.analysis.statistics import binomial_at_least

MIN_HITS = 4
HIT_SHARE = 0.8
CHANCE = 1e-4
MAX_HITS = 400
MAX_COMBS = 4


@dataclass(frozen=True)
class Comb:
    """Columns that carry a periodic spike, and their period in columns."""

    columns: Ints
    period: int


def combs_of(columns: Ints, total: int) -> tuple[tuple[Comb, ...], Ints]:
    """Split hits into periodic ones and the rest.

    Args:
        columns: columns of the hits, rising, shape (H,).
        total: number of columns of the series.

    Returns:
        The combs that chance does not explain, the one with the most hits first, and the columns left over.
    """
    found: list[Comb] = []
    left = columns
    while len(found) < MAX_COMBS and (comb := _best_comb(left, total)) is not None:
        found.append(comb)
        left = np.setdiff1d(left, comb.columns, assume_unique=True)
    return tuple(found), left


def _best_comb(columns: Ints, total: int) -> Comb | None:
    if not MIN_HITS <= len(columns) <= max(MAX_HITS, total // 4):
        return None
    tried = columns[:: -(-len(columns) // MAX_HITS)]
    distances = np.diff(tried)
    periods = np.unique(np.concatenate([distances, tried[2:] - tried[:-2], tried[3:] - tried[:-3]]))
    periods = periods[(periods >= 2) & (periods <= total // (MIN_HITS - 1))][:MAX_HITS]
    best: Comb | None = None
    for period in periods:
        comb = _comb_at(columns, int(period), total, len(periods))
        if comb is not None and (best is None or len(comb.columns) > len(best.columns)):
            best = comb
    return best


def _comb_at(columns: Ints, period: int, total: int, trials: int) -> Comb | None:
    """The best-filled comb of a period; a column beside its place counts when the period is long."""
    slack = 0 if period < 10 else 1
    phases = np.bincount(columns % period, minlength=period)
    near = phases + sum(np.roll(phases, s) for s in range(-slack, slack + 1) if s)
    phase = int(np.argmax(near + 0.01 * phases))
    away = (columns - phase + period // 2) % period - period // 2
    hits = columns[np.abs(away) <= slack]
    places = np.unique((hits - phase + slack) // period)
    if len(places) < MIN_HITS:
        return None
    expected = int(places[-1] - places[0]) + 1
    if len(places) < HIT_SHARE * expected:
        return None
    density = min(1.0, len(columns) * (2 * slack + 1) / total)
    by_chance = binomial_at_least(len(places), expected, density) * trials * period * (total / (expected * period))
    return Comb(hits, period) if by_chance <= CHANCE else None
