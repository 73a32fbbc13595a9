"""The rank waits for a disk or a file server: its loader's reads, or its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starprof.analysis.causes.base import MIN_IN_PHASES, Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import NAN, Contrast, Span, of_most, over_span, rate, share_of
from starprof.analysis.causes.processes import gained_seconds, node_contrast, node_rate, tree_rate
from starprof.model import causes

if TYPE_CHECKING:
    import pandas as pd

IO_PHASES = ("data_wait", "user", "unaccounted")
MIN_WAIT = 0.01


@dataclass(frozen=True)
class _Waiting:
    """Seconds waited for I/O beyond the usual, how that is known, and the busiest device in words."""

    seconds: float
    how: str
    device: str


def explain(case: Case) -> Explanation | None:
    """Time in I/O wait rose by as much as the rank is late, and the loss lies where data is awaited."""
    if case.phases.share(*IO_PHASES) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_waiting(case, row) for row in case.rows])
    if not found:
        return None
    share = min(share_of(case, [part.seconds for part in found]), case.phases.share(*IO_PHASES))
    part = max(found, key=lambda each: each.seconds)
    return Explanation(
        cause=causes.STORAGE,
        share=share,
        evidence=(
            f"{case.who} waited for storage {ms(part.seconds * 1e6)} more than usual ({part.how}).{part.device}",
            f"That covers {pct(share)} of the {ms(case.excess_s * 1e6)} by which {case.who} was late; "
            f"{pct(case.phases.share('data_wait'))} of the loss is waiting for data.",
        ),
        action=f"Read the data of {case.who} from a faster or less shared device, cache or pre-load it, and read in "
        "larger pieces.",
        verify=f"With the data in memory (a second pass, or a copy in /dev/shm) {case.who} must be as early as its "
        "peers; if not, storage was not the cause.",
        partly=f"waiting for storage covers {pct(share)}",
    )


def _waiting(case: Case, row: int) -> _Waiting | None:
    delay = over_span(case, row, lambda r, span: tree_rate(case, r, "blkio_delay_us", span))
    pressure = node_contrast(case, row, lambda r, span: node_rate(case, r, "psi_io_some_us", span))
    remote = node_contrast(case, row, lambda r, span: _server_wait(case, r, span))
    candidates = [
        (gained_seconds(case, row, delay) if delay.known else 0.0, "its processes' own block I/O delay"),
        (gained_seconds(case, row, pressure) if pressure.known else 0.0, "I/O pressure of its node"),
        (gained_seconds(case, row, remote) if remote.known else 0.0, "reads from a file server"),
    ]
    seconds, how = max(candidates)
    start, end = case.span_ns(row)
    if seconds < MIN_WAIT * (end - start) / 1e9:
        return None
    return _Waiting(seconds, how, _busiest(case, row))


def _server_wait(case: Case, row: int, span: Span) -> float:
    """Time that reads from network file systems waited, us per second, all mounts; capped at the window itself."""
    names = case.counters.table("disk")
    node = case.own.infos[row].node
    mounts = names[(names["node"] == node) & (names["type"].astype(str) == "nfs")]["disk"].tolist()
    series = case.counters.series("disk_sample", ("node", "disk"))
    waits = [rate(case.counters, series.get((float(node), float(m))), "read_wait_us", span) for m in set(mounts)]
    known = [wait for wait in waits if wait == wait]
    return min(1e6, sum(known)) if known else NAN


def _busiest(case: Case, row: int) -> str:
    """The device whose busy time stands out most, in words."""
    node = float(case.own.infos[row].node)
    best: tuple[float, str] | None = None
    for (of_node, disk), samples in case.counters.series("disk_sample", ("node", "disk")).items():
        if of_node != node:
            continue
        busy = _busy(case, row, disk)
        mean_wait = _mean_wait_ms(case, samples, case.span_ns(row))
        if busy.now == busy.now and (best is None or busy.now > best[0]):
            named = case.counters.series("disk", ("node", "disk")).get((node, disk))
            name = f"disk {disk:.0f}" if named is None else str(named["name"].iloc[-1])
            wait = f", a read took {mean_wait:.0f} ms" if mean_wait == mean_wait else ""
            best = (busy.now, f" {name} was busy {pct(busy.now / 1e6)} of the time{wait}.")
    return "" if best is None else best[1]


def _busy(case: Case, row: int, disk: float) -> Contrast:
    series = case.counters.series("disk_sample", ("node", "disk"))

    def measure(r: int, span: Span) -> float:
        return rate(case.counters, series.get((float(case.own.infos[r].node), disk)), "busy_us", span)

    return node_contrast(case, row, measure)


def _mean_wait_ms(case: Case, samples: pd.DataFrame, span: Span) -> float:
    waited = rate(case.counters, samples, "read_wait_us", span)
    reads = rate(case.counters, samples, "reads", span)
    return waited / reads / 1e3 if reads > 0 else NAN
