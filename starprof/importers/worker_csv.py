"""Tables of times per worker (CSV, TSV): one row per worker and sample, or one column per worker.

Which column is what is guessed from the names and, where those leave doubt, from the content; `info["note"]` says it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.source import Source
from starprof.importers.worker_table import CLOCK_INDEX, STEP_INDEX, Records, unit_of, worker_run
from starprof.model.rundata import RunData

NAME = "worker-times"

MAX_COLUMNS = 20_000
MAX_ROWS = 20_000_000
MAX_BYTES = 4 << 30
MAX_NAME = 200
CHUNK_ROWS = 200_000
SAMPLE_LINES = 200
EPOCH_MS, EPOCH_US, EPOCH_NS = 1e11, 1e14, 1e17

_NUMBERED = r"(_?(id|idx|index|no|num|number|name))?"
_WORKER = re.compile(r"(worker|rank|global_?rank|replica|trainer|task|proc(ess)?|pe|member)" + _NUMBERED)
_DEVICE = re.compile(r"(gpu|device|node|host(name)?|machine|pod|instance)" + _NUMBERED)
_STEP = re.compile(r"(global_?)?(step|iter|iters|iteration|batch|mini_?batch|sample)s?" + _NUMBERED)
_CLOCK = re.compile(
    r"(time|timestamp|ts|date|datetime|wall_?time|event_?time|t|elapsed|start(_?time)?|when|clock|epoch_?time"
    r"|time_?stamp)(_?(ns|us|ms|s|sec|secs|seconds))?"
)
_TIME = re.compile(r"time|dur|duration|elapsed|latency|took|compute|busy|cost")
_WIDE = re.compile(
    r"(worker|rank|gpu|node|replica|trainer|host|device|process|task|w|r)[ _\-.:#\[(]*\d{1,6}[\])]?"
    r"([ _\-.(\[]*[a-z_ ]{0,24}[\])]?)?"
)
_VARIATION = re.compile(r"(^|[^a-z])(cov|cv|coefficient|coeff|variation|stddev|std|variance)([^a-z]|$)")


def recognises(source: Source) -> bool:
    """The first line is a header that names workers and times, or one column per worker."""
    layout = _header(source)
    return layout is not None and (_long(layout) is not None or len(_wide(layout)) > 1 or _is_variation(source, layout))


def read(sources: Sequence[Source]) -> RunData:
    """One table, or one per worker with the worker's number in its file name.

    Raises:
        InputError: it can't be understood, or holds no times of workers.
    """
    tables = [(source, _layout(source)) for source in sources]
    if len(tables) > 1:
        raise InputError(
            f"{len(tables)} tables of worker times ({', '.join(s.base for s, _ in tables[:3])}"
            f"{', ...' if len(tables) > 3 else ''}) are several jobs: name one of them"
        )
    source, layout = tables[0]
    if _is_variation(source, layout):
        raise InputError(
            f"{source.name} holds coefficients of variation over the workers: how much they differ, not which worker "
            "takes how long; give the times themselves"
        )
    long = _long(layout)
    if long is not None:
        return worker_run(NAME, sources, _read_long(source, layout, long))
    wide = _wide(layout)
    if len(wide) > 1:
        return worker_run(NAME, sources, _read_wide(source, layout, wide))
    raise InputError(
        f"{source.name}: no column of it is known as a worker (worker, rank, ...) with a time beside it, and there is "
        "no column per worker (worker_0, worker_1, ...)"
    )


@dataclass(frozen=True)
class _Layout:
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
        return _as_numbers(pd.Series(cells, dtype=object))


def _header(source: Source) -> _Layout | None:
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
    return _Layout(separator, names, tuple(rows[1:]))


def _layout(source: Source) -> _Layout:
    layout = _header(source)
    if layout is None:
        raise InputError(
            f"{source.name} is no table: its first line must name the columns, separated by commas or tabs"
        )
    return layout


def _is_variation(source: Source, layout: _Layout) -> bool:
    """A table of how much workers differ: by its name, with nothing but numbered columns."""
    numbered = sum(name.strip().isdigit() for name in layout.names)
    return bool(_VARIATION.search(re.sub(r"[_\-.]+", " ", source.base.lower()))) and numbered >= 0.9 * len(layout.names)


@dataclass(frozen=True)
class _Long:
    """Columns of a table with one row per worker and sample; None = not there."""

    worker: int
    value: int
    step: int | None
    clock: int | None
    host: int | None


def _long(layout: _Layout) -> _Long | None:
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
    if not values and clocks and len(clocks) + len(steps) > 1:
        # "rank, step, time": with a step, a time that does not rise is how long it took.
        values = [c for c in clocks if not _rises(layout, worker, c)][-1:]
        clocks = [c for c in clocks if c not in values]
    if not values and len(clocks) == 1 and not steps:
        values, clocks = clocks, []
    if not values:
        return None
    value = next((c for c in values if unit_of(layout.names[c])), values[0])
    host = next((c for c in devices if c != worker and re.match(r"node|host|machine|pod", names[c])), None)
    return _Long(worker, value, steps[0] if steps else None, clocks[0] if clocks else None, host)


def _is_time(layout: _Layout, name: str, column: int) -> bool:
    numbers = layout.numbers(column)
    return (
        bool(_TIME.search(name)) and not _VARIATION.search(name.replace("_", " ")) and bool(np.isfinite(numbers).any())
    )


def _distinct(layout: _Layout, column: int) -> int:
    return len({row[column] for row in layout.rows if column < len(row)})


def _rises(layout: _Layout, worker: int, column: int) -> bool:
    """Whether a column never falls from row to row of one worker."""
    numbers = layout.numbers(column)
    cells = np.array([row[worker] if worker < len(row) else "" for row in layout.rows])
    first = numbers[cells == cells[0]] if len(cells) else numbers
    first = first[np.isfinite(first)]
    return len(first) > 1 and bool((np.diff(first) >= 0).all()) and first[-1] > first[0]


def _wide(layout: _Layout) -> list[int]:
    """Columns that are one worker each."""
    found = [c for c, name in enumerate(layout.names) if _WIDE.fullmatch(name.strip().lower())]
    first = layout.clean(0) if layout.names else ""
    if not found and (_STEP.fullmatch(first) or _CLOCK.fullmatch(first)):
        found = [c for c, name in enumerate(layout.names) if c and name.strip().isdigit()]
    return [c for c in found if np.isfinite(layout.numbers(c)).any()]


def _read_long(source: Source, layout: _Layout, long: _Long) -> Records:
    wanted = [c for c in (long.worker, long.value, long.step, long.clock, long.host) if c is not None]
    codes, ats, values = [], [], []
    names: dict[str, int] = {}
    hosts: dict[str, str] = {}
    for chunk in _chunks(source, layout, wanted):
        worker = chunk[long.worker].astype(str).str.strip().str[:MAX_NAME]
        kept = (worker != "") & (worker != "nan")
        chunk, worker = chunk[kept], worker[kept]
        for name in worker.unique():
            names.setdefault(str(name), len(names))
        codes.append(worker.map(names).to_numpy(np.int64))
        values.append(_as_numbers(chunk[long.value]))
        if long.step is not None:
            ats.append(_as_numbers(chunk[long.step]))
        elif long.clock is not None:
            ats.append(_as_seconds(chunk[long.clock], layout.names[long.clock]))
        if long.host is not None:
            hosts |= dict(zip(worker, chunk[long.host].astype(str).str[:MAX_NAME], strict=True))
    place = long.step if long.step is not None else long.clock
    kind = STEP_INDEX if long.step is not None else CLOCK_INDEX if long.clock is not None else None
    value = np.concatenate(values) if values else np.zeros(0)
    return Records(
        names=tuple(names),
        worker=np.concatenate(codes) if codes else np.zeros(0, np.int64),
        at=np.concatenate(ats) if ats else np.full(len(value), np.nan),
        at_kind=kind,
        values=value,
        unit=unit_of(layout.names[long.value]),
        value_name=layout.names[long.value],
        at_name=layout.names[place] if place is not None else "",
        notes=(_long_words(layout, long),),
        hosts=hosts,
    )


def _long_words(layout: _Layout, long: _Long) -> str:
    unit = unit_of(layout.names[long.value])
    parts = [f"worker is column {layout.names[long.worker]!r}", f"its time {layout.names[long.value]!r}"]
    parts[1] += f" in {unit}" if unit else " in arbitrary units"
    if long.step is not None:
        parts.append(f"step {layout.names[long.step]!r}")
    elif long.clock is not None:
        parts.append(f"moment {layout.names[long.clock]!r} in seconds")
    else:
        parts.append("rows of a worker in turn are its steps")
    return ", ".join(parts)


def _read_wide(source: Source, layout: _Layout, columns: Sequence[int]) -> Records:
    index = next((c for c in range(len(layout.names)) if c not in set(columns) and _index_kind(layout, c)), None)
    kind = _index_kind(layout, index) if index is not None else None
    rows, ats = [], []
    for chunk in _chunks(source, layout, [*columns, *([] if index is None else [index])]):
        rows.append(np.column_stack([_as_numbers(chunk[c]) for c in columns]))
        if index is not None and kind == CLOCK_INDEX:
            ats.append(_as_seconds(chunk[index], layout.names[index]))
        elif index is not None:
            ats.append(_as_numbers(chunk[index]))
    table = np.concatenate(rows) if rows else np.zeros((0, len(columns)))
    at = np.concatenate(ats) if ats else np.arange(len(table), dtype=np.float64)
    names = tuple(layout.names[c].strip() for c in columns)
    unit = unit_of(names[0]) or unit_of(source.base.rpartition(".")[0])
    place = layout.names[index] if index is not None else "row"
    words = f"one column per worker ({names[0]!r} to {names[-1]!r}), {kind or 'step'} is {place!r}, times in "
    return Records(
        names=names,
        worker=np.tile(np.arange(len(columns)), len(table)),
        at=np.repeat(at, len(columns)),
        at_kind=kind or STEP_INDEX,
        values=table.reshape(-1),
        unit=unit,
        value_name="worker columns",
        at_name=place,
        notes=(words + (unit or "arbitrary units"),),
    )


def _index_kind(layout: _Layout, column: int) -> str | None:
    name = layout.clean(column)
    return STEP_INDEX if _STEP.fullmatch(name) else CLOCK_INDEX if _CLOCK.fullmatch(name) else None


def _chunks(source: Source, layout: _Layout, columns: Sequence[int]) -> Iterator[pd.DataFrame]:
    """The wanted columns of the table, by their positions, as text; within bounds."""
    wanted, total = sorted(columns), 0
    bounded = replace(source, max_bytes=min(source.max_bytes, MAX_BYTES))
    try:
        with bounded.open() as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") as lines:
            reader = pd.read_csv(
                lines,
                sep=layout.separator,
                header=None,
                names=range(len(layout.names)),
                skiprows=1,
                usecols=wanted,
                dtype=str,
                comment="#",
                keep_default_na=False,
                index_col=False,
                on_bad_lines="skip",
                chunksize=CHUNK_ROWS,
            )
            for chunk in reader:
                total += len(chunk)
                if total > MAX_ROWS:
                    raise InputError(f"{source.name} has more than {MAX_ROWS} rows: cut it into parts")
                yield chunk
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, csv.Error, OverflowError) as error:
        raise InputError(f"{source.name} can't be read as a table: {' '.join(str(error).split())[:200]}") from error


def _as_numbers(cells: pd.Series[str]) -> NDArray[np.float64]:
    """Numbers of text cells, NaN where they are none (or are beyond what a float holds)."""
    numbers = pd.to_numeric(cells.str.strip() if cells.dtype == object else cells, errors="coerce")
    values = np.asarray(numbers, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _as_seconds(cells: pd.Series[str], name: str) -> NDArray[np.float64]:
    """Moments as seconds: numbers by the unit in the name, or by their size when they count from 1970; or dates."""
    values = _as_numbers(cells)
    if not np.isfinite(values).any():
        moments = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")
        stamps = moments.to_numpy(dtype="datetime64[ns]")
        return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e9)
    unit = unit_of(name)
    if unit is not None:
        return values * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[unit]
    size = float(np.nanmedian(np.abs(values)))
    return values * (1e-9 if size > EPOCH_NS else 1e-6 if size > EPOCH_US else 1e-3 if size > EPOCH_MS else 1.0)
