"""Time that all ranks lose from the first step on, as counters of lost time show: no step record can tell that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.contrast import NAN, rate
from starprof.analysis.causes.processes import main_process
from starprof.analysis.causes.throttling import groups_of
from starprof.analysis.confined import confined
from starprof.analysis.cost import Reduction
from starprof.analysis.findings import Context
from starprof.analysis.slowness import Slowness
from starprof.model import causes

ALL_SHARE = 0.9
MIN_THROTTLED = 0.15
MIN_QUEUED = 0.3
"""A machine that is a little too busy makes every process wait for a CPU now and then."""

MIN_CONFINED = 0.1
"""The same where the CPUs that the job may use are full and all others idle: that is no accident."""

MAX_SHARE = 0.9


def counted_losses(context: Context) -> list[Slowness]:
    """Quota or run queue that takes a good part of everybody's own time; the first of them only."""
    for cause, least, ranks, measure in (
        (causes.CGROUP_THROTTLING, MIN_THROTTLED, 1, _throttled),
        (causes.AFFINITY, MIN_CONFINED, 1, _confined),
        (causes.OVERSUBSCRIPTION, MIN_QUEUED, 2, _queued),
    ):
        shares = _shares(context, measure) if context.own.shape[0] >= ranks else np.zeros(0)
        if len(shares) and np.mean(shares >= least) >= ALL_SHARE:
            return [_everybody(context, shares, cause)]
    return []


def _shares(context: Context, measure: Callable[[Context, int], float]) -> Floats:
    """Lost share of each rank's own time, shape (R,); 0 where it was not measured."""
    spent_s = np.nansum(context.own.work, axis=1) / 1e6
    lost_s = np.array([measure(context, row) for row in range(context.own.shape[0])])
    return np.asarray(np.nan_to_num(lost_s / np.maximum(spent_s, 1e-9), nan=0.0))


def _seconds(context: Context, row: int, us_per_second: float) -> float:
    start, end = context.whole_span_ns(row)
    return us_per_second / 1e6 * (end - start) / 1e9


def _throttled(context: Context, row: int) -> float:
    """Seconds in which the rank's tightest group was stopped by its quota."""
    series = context.counters.series("cgroup_sample", ("node", "cgroup"))
    span = context.whole_span_ns(row)
    rates = [
        rate(context.counters, series.get((node, group)), "throttled_us", span)
        for node, group, _ in groups_of(context.own.infos[row], context.counters)
    ]
    return _seconds(context, row, max((r for r in rates if r == r), default=NAN))


def _queued(context: Context, row: int) -> float:
    """Seconds in which the rank's main thread was runnable but not running."""
    rows = main_process(context, row)
    return _seconds(context, row, rate(context.counters, rows, "run_delay_us", context.whole_span_ns(row)))


def _confined(context: Context, row: int) -> float:
    """The same where the job is confined to few of the machine's CPUs; NaN where it is not."""
    return _queued(context, row) if confined(context, context.own.infos[row].node) is not None else NAN


def _everybody(context: Context, shares: Floats, cause: str) -> Slowness:
    own = context.own
    part = np.minimum(shares, MAX_SHARE)
    return Slowness(
        kind="uniform",
        rows=tuple(range(own.shape[0])),
        start=0,
        end=own.shape[1],
        onset=(0, 0),
        steps=np.ones(own.shape[1], bool),
        reduction=Reduction({row: np.nan_to_num(own.work[row]) * part[row] for row in range(own.shape[0])}),
        source="counted",
        blame=False,
        span=cause,
        after_us=float(np.median(shares)),
    )
