"""A late rank's processes and the CPUs that they run on. No rule of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from starprof.analysis.causes.base import Case
from starprof.analysis.causes.contrast import NAN, Contrast, OverSpan, Span, over_span, rate
from starprof.analysis.counters import Counters, numbers
from starprof.analysis.own_time import OwnTime

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

CPU_PHASES = ("data_wait", "forward", "backward", "optimizer", "user", "unaccounted")
HOST_PHASES = ("data_wait", "h2d", "user", "unaccounted")


def host_phases(case: Case) -> tuple[str, ...]:
    """Phases whose time passes on the CPU: without GPU times all of them may."""
    return HOST_PHASES if case.own.on_gpu else (*CPU_PHASES, "h2d")


class HasCounters(Protocol):
    """A `Case`, or anything else with own times and counters."""

    @property
    def own(self) -> OwnTime:
        """Own times."""
        ...

    @property
    def counters(self) -> Counters:
        """Look-ups in the sample frames."""
        ...


def main_process(case: HasCounters, row: int) -> pd.DataFrame | None:
    """Samples of the rank's own process."""
    info = case.own.infos[row]
    keys = ("node", "rank", "is_rank")
    return case.counters.series("process_sample", keys).get((float(info.node), float(info.rank), 1.0))


def tree_rate(case: Case, row: int, column: str, span: Span) -> float:
    """Growth per second of a counter over the rank's process and its children; NaN when not measured."""
    info = case.own.infos[row]
    rows = case.counters.series("process_sample", ("node", "rank")).get((float(info.node), float(info.rank)))
    if rows is None:
        return NAN
    rates = [rate(case.counters, of_pid, column, span) for _, of_pid in rows.groupby("pid", sort=False)]
    known = [value for value in rates if value == value]
    return float(sum(known)) if known else NAN


def cpus_of(case: Case, row: int, span: Span) -> Mapping[int, float]:
    """Share of the samples in which the rank's process was seen on each logical CPU."""
    rows = main_process(case, row)
    if rows is None:
        return {}
    times, where = numbers(rows, "mono_ns"), numbers(rows, "last_cpu")
    seen = where[(times >= span[0]) & (times <= span[1]) & ~np.isnan(where) & (where >= 0)].astype(int)
    numbers_of, counts = np.unique(seen, return_counts=True)
    return {int(cpu): float(count) / len(seen) for cpu, count in zip(numbers_of, counts, strict=True)}


def node_contrast(case: Case, row: int, measure: OverSpan) -> Contrast:
    """Contrast of a measure of the whole node: peers on the same node share it and are no reference."""
    node = case.own.infos[row].node
    return over_span(case, row, lambda r, s: NAN if r != row and case.own.infos[r].node == node else measure(r, s))


def node_rate(case: Case, row: int, column: str, span: Span) -> float:
    """Growth per second of a counter of `node_sample` on the rank's node."""
    rows = case.counters.series("node_sample", ("node",)).get((float(case.own.infos[row].node),))
    return rate(case.counters, rows, column, span)


def gained_seconds(case: Case, row: int, found: Contrast) -> float:
    """Seconds of the slow window that a rate in us per second gained; without any reference all of it, 0 unknown."""
    start, end = case.span_ns(row)
    per_second = found.gained if found.known else found.now
    return 0.0 if per_second != per_second else max(0.0, per_second) / 1e6 * (end - start) / 1e9
