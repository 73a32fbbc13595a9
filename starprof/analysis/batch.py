"""Uneven batches: what the sizes of the ranks' batches explain of their own time, and the run without that.

A rank that gets more micro-batches, samples or tokens than its peers is late through no fault of its device. Its time
is held against `peers' time * (its size / peers' size) ** exponent`; the exponent comes from the run itself: from how
each rank's time follows its own size from step to step where sizes change, else from the ranks' constant differences.
Only what a larger batch adds is taken out: a smaller one than the peers' makes nobody late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.cost import Reduction
from starprof.analysis.own_time import OwnTime
from starprof.analysis.peers import peer_centre
from starprof.analysis.slowness import Slowness
from starprof.model.rundata import RunData

SIZES = ("micro_batches", "samples", "tokens")
"""From the plainest to the finest: uneven micro-batches have uneven samples and tokens too."""
COMPUTE = ("forward", "backward")
MIN_COMPUTE_SHARE = 0.5
DIFFERENT = 0.01
MIN_UNEVEN_SHARE = 0.01
MIN_RECORDED_SHARE = 0.5
MIN_EXPONENT = 0.2
MIN_CONSTANT_EXPONENT = 0.3
MAX_EXPONENT = {"tokens": 2.0}  # attention grows with the square of a sequence's length
MIN_ERRORS = 6.0
MAX_LOG_RATIO = 1.5
AS_GOOD = 0.9
ONE_RANK_SHARE = 0.6


@dataclass(frozen=True)
class UnevenBatches:
    """What one measure of batch size explains.

    Attributes:
        column: `micro_batches`, `samples` or `tokens`.
        exponent: time grows with the size to this power.
        ratio: each rank's size over its peers', shape (R, S); NaN = not known.
        excess_us: time that the larger batches took, shape (R, S).
        phases: phases that it is taken from.
        changes: sizes change from step to step; else the same ranks have more all the time.
    """

    column: str
    exponent: float
    ratio: Floats
    excess_us: Floats
    phases: tuple[str, ...]
    changes: bool


def uneven_batches(run: RunData, own: OwnTime) -> UnevenBatches | None:
    """The plainest measure of batch size that explains nearly as much as the best one; None when none does."""
    found = [u for u in (_explained_by(run, own, column) for column in SIZES) if u is not None]
    if not found:
        return None
    cost = [own.run_us - evened(own, u).run_us for u in found]
    return next(u for u, gain in zip(found, cost, strict=True) if gain >= AS_GOOD * max(cost))


def evened(own: OwnTime, uneven: UnevenBatches | None) -> OwnTime:
    """The own time as it were if no batch were larger than the peers'."""
    if uneven is None:
        return own
    total = np.sum([own.phases[name] for name in uneven.phases], axis=0)
    share = 1.0 - uneven.excess_us / np.where(total > 0, total, 1.0)
    return replace(own, phases={k: v * share if k in uneven.phases else v for k, v in own.phases.items()})


def workload_skew(uneven: UnevenBatches | None) -> list[Slowness]:
    """The slowness that uneven batches are, to be priced; nobody is to blame for it."""
    if uneven is None:
        return []
    rows = np.flatnonzero((uneven.excess_us > 0).any(axis=1))
    steps = np.asarray((uneven.excess_us > 0).any(axis=0))
    per_rank = uneven.excess_us.sum(axis=1)
    columns = np.flatnonzero(steps)
    if len(columns) == 0:
        return []
    alone = per_rank.max() >= ONE_RANK_SHARE * per_rank.sum() or not uneven.changes
    start = 0 if columns[0] < 3 else int(columns[0])
    return [
        Slowness(
            kind="chronic" if alone else "rotating",
            rows=tuple(int(row) for row in rows),
            start=start,
            end=int(columns[-1]) + 1,
            onset=(start, int(columns[0])),
            steps=steps,
            reduction=Reduction({int(row): uneven.excess_us[row] for row in rows}),
            source="workload",
            blame=False,
        )
    ]


def _explained_by(run: RunData, own: OwnTime, column: str) -> UnevenBatches | None:
    values = run.steps.columns.get(column)
    if values is None:
        return None
    size = np.asarray(values, dtype=np.float64)[np.ix_(own.rows, own.columns)]
    size = np.where(np.isfinite(size) & (size > 0), size, np.nan)
    if np.isfinite(size).mean() < MIN_RECORDED_SHARE or np.nanmax(size) <= (1.0 + DIFFERENT) * np.nanmin(size):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = size / peer_centre(size, own.groups)
        if not (np.abs(np.log(ratio)) > DIFFERENT).mean() >= MIN_UNEVEN_SHARE / own.shape[0]:
            return None
        names = _phases(own)
        compute = np.sum([own.phases[name] for name in names], axis=0)
        slower = np.log(compute / peer_centre(compute, own.groups))
    exponent, changes = _exponent(np.log(ratio), slower, MAX_EXPONENT.get(column, 1.0))
    if exponent == 0.0:
        return None
    more = np.nan_to_num(np.maximum(ratio, 1.0), nan=1.0)
    excess = np.nan_to_num(compute * (1.0 - more**-exponent), nan=0.0)
    return UnevenBatches(column, exponent, ratio, excess, names, changes)


def _phases(own: OwnTime) -> tuple[str, ...]:
    """What depends on the batch: forward and backward, or everything where these were not told apart."""
    compute = np.nansum([own.phases[name] for name in COMPUTE])
    return COMPUTE if compute >= MIN_COMPUTE_SHARE * np.nansum(own.work) else tuple(own.phases)


def _exponent(larger: Floats, slower: Floats, most: float) -> tuple[float, bool]:
    """How own time follows size, 0 when it does not, and whether that was seen within ranks, from step to step.

    Args:
        larger: logarithm of size over the peers', NaN where not known, shape (R, S).
        slower: the same of own time.
        most: largest exponent that can be.
    """
    known = np.isfinite(larger) & np.isfinite(slower)
    x, y = (np.where(known, np.clip(v, -MAX_LOG_RATIO, MAX_LOG_RATIO), 0.0) for v in (larger, slower))
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    mean_x, mean_y = (v.sum(axis=1, keepdims=True) / count for v in (x, y))
    within_x, within_y = (np.where(known, v - mean, 0.0) for v, mean in ((x, mean_x), (y, mean_y)))
    spread = float((within_x**2).sum())
    if spread > known.sum() * DIFFERENT**2:
        slope = float((within_x * within_y).sum()) / spread
        error = float(np.sqrt(((within_y - slope * within_x) ** 2).sum() / known.sum() / spread))
        return (min(slope, most), True) if slope >= MIN_EXPONENT and slope >= MIN_ERRORS * error else (0.0, True)
    apart = np.abs(mean_x) > DIFFERENT
    if not apart.any():
        return 0.0, False
    slope = float((mean_x[apart] * mean_y[apart]).sum() / (mean_x[apart] ** 2).sum())
    # Time that follows constant sizes more than in proportion has another reason as well.
    return (min(slope, 1.0), False) if slope >= MIN_CONSTANT_EXPONENT else (0.0, False)
