"""Work done now and then (garbage collection, checkpoints, evaluation, compilation), judged by its own spans."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.cost import Reduction
from starprof.analysis.own_time import OwnTime
from starprof.analysis.settings import Settings
from starprof.analysis.shapes import MIN_HITS, period_of, periodic_bounds
from starprof.analysis.slowness import Slowness
from starprof.model.verdict import FindingKind

ONE_RANK_SHARE = 0.8
MIN_BLAMED_HITS = 5
GROWTH_FACTOR = 1.5
MIN_TREND_HITS = 8


def special_work(own: OwnTime, settings: Settings) -> list[Slowness]:
    """One slowness per kind of special work that lengthens the job by enough."""
    found = (_of_span(own, name, values) for name, values in own.special.items())
    return [s for s in found if s is not None and s.cost_us >= _least_cost(own, settings, s)]


def _least_cost(own: OwnTime, settings: Settings, slowness: Slowness) -> float:
    if slowness.kind == "one-off":
        return settings.min_one_off_cost_steps * own.healthy_step_us
    return settings.min_special_cost_share * own.run_us


def _of_span(own: OwnTime, name: str, values: Floats) -> Slowness | None:
    spent = np.nan_to_num(values, nan=0.0)
    # Every step has a little of it (a young garbage collection): only what stands out is an event.
    events = spent > np.maximum(5.0 * np.median(spent, axis=1, keepdims=True), 0.05 * own.healthy_step_us)
    if not events.any():
        return None
    gone = {int(row): np.where(events[row], spent[row], 0.0) for row in np.flatnonzero(events.any(axis=1))}
    cost = float(np.max(list(gone.values()), axis=0).sum())
    columns = np.flatnonzero(events.any(axis=0))
    per_rank = {row: float(part.sum()) for row, part in gone.items()}
    worst = max(per_rank, key=lambda row: per_rank[row])
    mine = np.flatnonzero(events[worst])
    alone = per_rank[worst] >= ONE_RANK_SHARE * sum(per_rank.values()) and own.shape[0] > 1
    blame = name == "gc" and alone and len(mine) >= MIN_BLAMED_HITS
    kind, period = _kind(mine if alone or name != "gc" else columns, gone, worst, name, alone, own.shape[1])
    start, end = int(columns[0]), int(columns[-1]) + 1
    if period is not None:
        start, end = periodic_bounds(mine if alone else columns, period, own.shape[1], own.hidden_steps)
    return Slowness(
        kind=kind,
        rows=(worst,) if alone else tuple(gone),
        start=start,
        end=end,
        onset=(start, int(columns[0])),
        steps=np.asarray(events.any(axis=0)),
        reduction=Reduction(gone),
        source="special",
        blame=blame,
        period=period,
        span=name,
        cost_us=cost,
    )


def _kind(
    columns: np.ndarray[tuple[int], np.dtype[np.int64]],
    gone: dict[int, Floats],
    worst: int,
    name: str,
    alone: bool,
    steps: int,
) -> tuple[FindingKind, int | None]:
    period = period_of(columns)
    if name == "gc" and _grows(gone[worst]):
        return "trend", period
    if len(columns) < MIN_HITS:
        return "one-off", None
    if period is not None:
        return "periodic", period
    if name == "gc" and not alone:
        return "rotating", None
    until_end = columns[-1] + 2 * np.median(np.diff(columns)) >= steps
    return ("chronic" if until_end else "transient"), None


def _grows(spent: Floats) -> bool:
    """Events get longer and longer: the collector has ever more to look at."""
    lengths = spent[spent > 0]
    if len(lengths) < MIN_TREND_HITS:
        return False
    third = len(lengths) // 3
    early, middle, late = lengths[:third], lengths[third : 2 * third], lengths[-third:]
    return bool(np.median(late) > GROWTH_FACTOR * np.median(early) and np.median(middle) > np.median(early))
