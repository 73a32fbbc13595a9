"""Which columns of a table hold workers, steps, moments and times: guessed from names, and from content in doubt."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.importers.source import Source
from starprof.importers.workers.worker_table import CLOCK_INDEX, STEP_INDEX, unit_of

MAX_COLUMNS = 20_000
MAX_NAME = 200
SAMPLE_LINES = 200

_NUMBERED = r"(_?(id|idx|index|no|num|number|name))?"
_WORKER = re.compile(r"(worker|rank|global_?rank|replica|trainer|task|proc(ess)?|pe|member)" + _NUMBERED)
_DEVICE = re.compile(r"(gpu|device|node|host(name)?|machine|pod|instance)" + _NUMBERED)
_STEP = re.compile(r"(global_?)?(step|iter|iters|iteration|batch|mini_?batch|sample)s?" + _NUMBERED)
_CLOCK = re.compile(
    r"(time|timestamp|ts|date|datetime|wall_?time|event_?time|t|elapsed|start(_?time)?|when|clock|epoch_?time"
    r"|time_?stamp)(_?(ns|us|ms|s|sec|secs|seconds))?"
)
_TIME = re.compile(r"time|dur|duration|elapsed|latency|took|compute|busy|cost")
_OWN = re.compile(r"compute|busy|(^|_)(own|work)(_|$)")
_TOTAL = re.compile(r"(step|iter(ation)?|batch|total|wall)_?(time|dur(ation)?)?|dur(ation)?|time")
_SPANS = (
    ("blocked_us", re.compile(r"block|comm|all_?reduce|collective|nccl|gloo|sync|wait|barrier|exchange")),
    ("data_wait_us", re.compile(r"data|load|input|fetch")),
    ("h2d_us", re.compile(r"h2d|copy|transfer")),
    ("forward_us", re.compile(r"forward|fwd")),
    ("backward_us", re.compile(r"backward|bwd")),
    ("optimizer_us", re.compile(r"optim|opt$")),
    ("checkpoint_us", re.compile(r"checkpoint|ckpt|save")),
    ("eval_us", re.compile(r"eval|valid")),
)
"""Names of the parts of a step. A name that fits the waiting for data and any waiting is the former."""
_WIDE = re.compile(
    r"(worker|rank|gpu|node|replica|trainer|host|device|process|task|w|r)[ _\-.:#\[(]*\d{1,6}[\])]?"
    r"([ _\-.(\[]*[a-z_ ]{0,24}[\])]?)?"
)
_VARIATION = re.compile(r"(^|[^a-z])(cov|cv|coefficient|coeff|variation|stddev|std|variance)([^a-z]|$)")


@dataclass(frozen=True)
class Layout:
    """Header of a table, and a few of its rows."""

    separator: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def clean(self, column: int) -> str:
        """A column's name in lower case, words joined by underscores."""
        spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", self.names[column].strip())
        return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")

    def numbers(self, column: int) -> NDArray[np.float64]:
        """The column's first values, NaN where they are no numbers."""
        cells = [row[column] if column < len(row) else "" for row in self.rows]
        return as_numbers(pd.Series(cells, dtype=object))


def header_of(source: Source) -> Layout | None:
    """Names and first rows of something that looks like a table, else None."""
    head = source.head
    if b"\0" in head or not head.strip():
        return None
    lines = head.decode("utf-8-sig", errors="replace").splitlines()[:SAMPLE_LINES]
    kept = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(kept) < 2:
        return None
    counts = {sep: kept[0].count(sep) for sep in (",", "\t", ";", "|")}
    separator = max(counts, key=lambda sep: counts[sep])
    if not 1 <= counts[separator] < MAX_COLUMNS:
        return None
    try:
        rows = [tuple(row) for row in csv.reader(kept, delimiter=separator)]
    except csv.Error:
        return None
    names = tuple(name[:MAX_NAME] for name in rows[0])
    return Layout(separator, names, tuple(rows[1:]))


def is_variation(source: Source, layout: Layout) -> bool:
    """A table of how much workers differ: by its name, with nothing but numbered columns."""
    numbered = sum(name.strip().isdecimal() for name in layout.names)
    return bool(_VARIATION.search(re.sub(r"[_\-.]+", " ", source.base.lower()))) and numbered >= 0.9 * len(layout.names)


@dataclass(frozen=True)
class Long:
    """Columns of a table with one row per worker and sample; None = not there."""

    worker: int
    value: int
    step: int | None
    clock: int | None
    host: int | None
    whole_steps: bool = True
    no_waiting: bool = False
    spans: tuple[tuple[str, int], ...] = ()
    left: tuple[int, ...] = ()


def long_columns(layout: Layout) -> Long | None:
    """The columns of a table with one row per worker and sample; None when it is no such table."""
    columns = range(len(layout.names))
    names = [layout.clean(c) for c in columns]
    workers = [c for c in columns if _WORKER.fullmatch(names[c])]
    devices = [c for c in columns if _DEVICE.fullmatch(names[c])]
    if not workers:
        workers = [c for c in devices if _distinct(layout, c) > 1]
    if not workers:
        return None
    worker = workers[0]
    steps = [c for c in columns if _STEP.fullmatch(names[c]) and c != worker]
    clocks = [c for c in columns if _CLOCK.fullmatch(names[c]) and c != worker]
    values = [c for c in columns if c not in {worker, *steps, *clocks} and _is_time(layout, names[c], c)]
    if not values and not any(_TIME.search(names[c]) for c in columns if c not in clocks):
        values, clocks = _durations_among(layout, worker, clocks, stepped=bool(steps))
    if not values:
        return None
    host = next((c for c in devices if c != worker and re.match(r"node|host|machine|pod", names[c])), None)
    value, spans = _chosen(names, values)
    left = tuple(c for c in values if c != value and c not in dict(spans).values())
    return Long(
        worker=worker,
        value=value,
        step=steps[0] if steps else None,
        clock=clocks[0] if clocks else None,
        host=host,
        whole_steps=is_whole_step(names[value]),
        no_waiting=holds_no_waiting(names[value]),
        spans=tuple(spans.items()),
        left=left,
    )


def _durations_among(layout: Layout, worker: int, clocks: list[int], *, stepped: bool) -> tuple[list[int], list[int]]:
    """Durations and moments where columns are only called "time": beside a step, one that never rises is a duration."""
    if len(clocks) == 1 and not stepped:
        return clocks, []
    found = [c for c in clocks if not _rises(layout, worker, c)][-1:]
    return found, [c for c in clocks if c not in found]


def _chosen(names: Sequence[str], values: Sequence[int]) -> tuple[int, dict[str, int]]:
    """The column of the time, and those of the parts of the step where waiting is one of them.

    Without waiting told apart, what a worker computed itself is worth more than its whole step.
    """
    spans: dict[str, int] = {}
    totals = [c for c in values if _TOTAL.fullmatch(_without_unit(names[c]))]
    for column in values:
        span = _span_of(names[column]) if column not in totals else None
        if span is not None:
            spans.setdefault(span, column)
    if "blocked_us" in spans and totals:
        return totals[0], spans
    own = [c for c in values if _OWN.search(names[c]) and c not in spans.values()]
    return next(iter([*own, *totals, *values])), {}


def holds_no_waiting(name: str) -> bool:
    """Whether a time is called by a part of the step in which nobody waits for others; backward reduces gradients."""
    return bool(_OWN.search(name)) or _span_of(name) in {"data_wait_us", "h2d_us", "forward_us", "optimizer_us"}


def is_whole_step(name: str) -> bool:
    """Whether a time is called a whole step's, and not the computing or another part of it."""
    return not _OWN.search(name) and _span_of(name) is None


def _without_unit(name: str) -> str:
    return re.sub(r"_(ns|us|ms|s|sec|secs|seconds|min|norm|mean|avg)$", "", name)


def _span_of(name: str) -> str | None:
    found = [span for span, pattern in _SPANS if pattern.search(name)]
    return found[-1 if found[:2] == ["blocked_us", "data_wait_us"] else 0] if found else None


def _is_time(layout: Layout, name: str, column: int) -> bool:
    known = _TIME.search(name) or _span_of(name) is not None or unit_of(layout.names[column]) is not None
    if not known or _VARIATION.search(name.replace("_", " ")):
        return False
    return bool(np.isfinite(layout.numbers(column)).any())


def _distinct(layout: Layout, column: int) -> int:
    return len({row[column] for row in layout.rows if column < len(row)})


def _rises(layout: Layout, worker: int, column: int) -> bool:
    """Whether a column never falls from row to row of one worker."""
    numbers = layout.numbers(column)
    cells = np.array([row[worker] if worker < len(row) else "" for row in layout.rows])
    first = numbers[cells == cells[0]] if len(cells) else numbers
    first = first[np.isfinite(first)]
    return len(first) > 1 and bool((np.diff(first) >= 0).all()) and first[-1] > first[0]


def wide_columns(layout: Layout) -> list[int]:
    """Columns that are one worker each."""
    found = [c for c, name in enumerate(layout.names) if _WIDE.fullmatch(name.strip().lower())]
    first = layout.clean(0) if layout.names else ""
    if not found and (_STEP.fullmatch(first) or _CLOCK.fullmatch(first)):
        found = [c for c, name in enumerate(layout.names) if c and name.strip().isdecimal()]
    return [c for c in found if np.isfinite(layout.numbers(c)).any()]


def index_kind(layout: Layout, column: int) -> str | None:
    """Whether a column counts steps or tells moments; None when neither."""
    name = layout.clean(column)
    return STEP_INDEX if _STEP.fullmatch(name) else CLOCK_INDEX if _CLOCK.fullmatch(name) else None


def as_numbers(cells: pd.Series[str]) -> NDArray[np.float64]:
    """Numbers of text cells, NaN where they are none (or are beyond what a float holds)."""
    numbers = pd.to_numeric(cells.str.strip() if cells.dtype == object else cells, errors="coerce")
    values = np.asarray(numbers, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)
