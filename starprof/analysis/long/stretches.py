"""Stretches in which a rank may be late for too short a time to show in the means over windows.

A cheap look, block by block, with the same bars as the offline rules but without their corrections: who passes it is
looked at by the whole diagnosis, with thresholds that allow for the length of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.detect import normal_z
from starprof.analysis.long.work import Singles
from starprof.analysis.noise import MAD_TO_SIGMA
from starprof.analysis.settings import Settings

GRAIN = 8
"""Steps whose mean is looked at; less than the shortest slowness that counts."""

MAX_STRETCHES = 4_096
MAX_PER_BLOCK = 64
HIGHEST = 2.0
"""One step's ratio counts at most this much, as `Settings.lateness_cap` has it."""

USUAL_QUANTILE = 0.25
MAX_CORRELATION = 0.9
POOLED_RANKS = 128
"""Ranks from which the noise is estimated, evenly spread."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rank is late at the places [start, end), by `excess` of its peers' own time on average."""

    row: int
    start: int
    end: int
    excess: float

    @property
    def cost_steps(self) -> float:
        """Steps of its peers that it was late by in all."""
        return self.excess * (self.end - self.start)


def late_in_block(ratio: Singles, place: int, steps: int, settings: Settings) -> list[Stretch]:
    """The likeliest stretch of each rank that may be late in a block.

    Args:
        ratio: own time over the peers' centre, shape (S, R), no NaN.
        place: of the block's first step.
        steps: of the whole run, for the correction.
        settings: thresholds.
    """
    grains = len(ratio) // GRAIN
    if grains < 2:
        return []
    cut = np.minimum(ratio[: grains * GRAIN], np.float32(HIGHEST))
    late = cut.reshape(grains, GRAIN, -1).mean(axis=1, dtype=np.float32) - np.float32(1.0)
    # Noise that makes every rank late on average is nobody's lateness.
    late -= np.float32(max(0.0, float(np.quantile(late.mean(axis=0), USUAL_QUANTILE))))
    rows, best = _passing(late, steps, settings)
    if not len(rows):
        return []
    starts, ends, excess = _bounds(late[:, rows], best)
    return [
        Stretch(int(row), place + int(a) * GRAIN, place + int(b) * GRAIN, float(e))
        for row, a, b, e in zip(rows, starts, ends, excess, strict=True)
    ]


def _passing(late: Singles, steps: int, settings: Settings) -> tuple[Ints, Floats]:
    """Ranks whose mean over some window is late by enough and surely, the surest first, and that mean's size."""
    grains, ranks = late.shape
    some = late[:, :: -(-ranks // POOLED_RANKS)]
    own = some - _middle(some.T)
    sigma = max(MAD_TO_SIGMA * float(_middle(np.abs(own).reshape(1, -1))[0]), 1e-6)
    drawn = np.clip(own, -3.0 * sigma, 3.0 * sigma)
    correlation = float(np.clip((drawn[1:] * drawn[:-1]).mean() / (drawn**2).mean(), 0.0, MAX_CORRELATION))
    memory = (1.0 + correlation) / (1.0 - correlation)
    z = normal_z(ranks, max(1, steps // settings.min_slow_steps), settings)
    halves = late  # sums over windows of half the width, side by side
    surest, level = np.zeros(ranks), np.zeros(ranks)
    width = 1
    while width <= grains:
        if width > 2:
            halves = halves[:-1:2] + halves[1::2]
        mean = late.max(axis=0) if width == 1 else (halves[:-1] + halves[1:]).max(axis=0) / width
        error = sigma * np.sqrt(1.0 if width == 1 else memory / width)
        passes = mean >= np.maximum(settings.min_lateness, z * error)
        better = passes & (mean / error > surest)
        surest[better], level[better] = mean[better] / error, mean[better]
        width *= 2
    order = np.argsort(-surest, kind="stable")[:MAX_PER_BLOCK]
    rows = order[surest[order] > 0]
    return rows, level[rows]


def _middle(rows: Singles) -> Singles:
    """Upper median of each row: one partition, where numpy's median makes several slow ones."""
    half = rows.shape[1] // 2
    middle: Singles = np.partition(np.ascontiguousarray(rows), half, axis=1)[:, half]
    return middle


def _bounds(late: Singles, level: Floats) -> tuple[Ints, Ints, Floats]:
    """Where each rank is late most: the stretch with the largest sum above half of its level.

    Args:
        late: shape (G, number of ranks).
        level: how late each is in its surest window.
    """
    total = np.concatenate([np.zeros((1, late.shape[1])), np.cumsum(late - level / 2.0, axis=0)])
    lowest = np.minimum.accumulate(total, axis=0)
    ranks = np.arange(late.shape[1])
    ends = np.maximum(1, np.argmax(total - lowest, axis=0))
    starts = np.array([int(np.argmin(total[:end, rank])) for rank, end in zip(ranks, ends, strict=True)])
    plain = np.concatenate([np.zeros((1, late.shape[1])), np.cumsum(late, axis=0)])
    excess = (plain[ends, ranks] - plain[starts, ranks]) / (ends - starts)
    return starts, ends, excess


class Stretches:
    """Joins what goes on from one block into the next; bounded, the most costly ones stay."""

    def __init__(self, settings: Settings) -> None:
        self._apart = max(settings.min_slow_steps, GRAIN)
        self._done: list[Stretch] = []
        self._open: dict[int, Stretch] = {}

    def add(self, found: list[Stretch]) -> None:
        """Take in what was found in the next block."""
        for new in found:
            old = self._open.get(new.row)
            if old is not None and new.start - old.end <= self._apart:
                excess = (old.cost_steps + new.cost_steps) / (old.end - old.start + new.end - new.start)
                new = Stretch(new.row, old.start, new.end, excess)
            elif old is not None:
                self._done.append(old)
            self._open[new.row] = new
        if len(self._done) > MAX_STRETCHES:
            self._done = sorted(self._done, key=lambda s: -s.cost_steps)[: MAX_STRETCHES // 2]

    def all(self) -> list[Stretch]:
        """All of them, the most costly first."""
        return sorted([*self._done, *self._open.values()], key=lambda s: -s.cost_steps)
