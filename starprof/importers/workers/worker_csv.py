"""Tables of times per worker (CSV, TSV): one row per worker and sample, or one column per worker.

Which column is what is guessed from the names and, where those leave doubt, from the content; `info["note"]` says it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.importers.workers.worker_columns import (
    MAX_NAME,
    Layout,
    Long,
    as_numbers,
    header_of,
    index_kind,
    is_variation,
    long_columns,
    wide_columns,
)
from starprof.importers.workers.worker_table import CLOCK_INDEX, STEP_INDEX, UNITS_US, Records, unit_of, worker_run
from starprof.model.rundata import RunData

NAME = "worker-times"

MAX_ROWS = 20_000_000
MAX_BYTES = 4 << 30
CHUNK_ROWS = 200_000
_ASSUMED_UNIT = "ms"
EPOCH_MS, EPOCH_US, EPOCH_NS = 1e11, 1e14, 1e17


def recognises(source: Source) -> bool:
    """The first line is a header that names workers and times, or one column per worker."""
    layout = header_of(source)
    return layout is not None and (
        long_columns(layout) is not None or len(wide_columns(layout)) > 1 or is_variation(source, layout)
    )


def read(sources: Sequence[Source]) -> RunData:
    """One table with all workers of one job.

    Raises:
        SeveralJobsError: there are several tables.
        InputError: it can't be understood, or holds no times of workers.
    """
    tables = [(source, _layout(source)) for source in sources]
    if len(tables) > 1:
        raise SeveralJobsError(
            f"{len(tables)} tables of worker times ({', '.join(s.base for s, _ in tables[:3])}"
            f"{', ...' if len(tables) > 3 else ''}) are several jobs, or parts of one: name one, or join the parts",
            each_its_own(sources),
        )
    source, layout = tables[0]
    if is_variation(source, layout):
        raise InputError(
            f"{source.name} holds coefficients of variation over the workers: how much they differ, not which worker "
            "takes how long; give the times themselves"
        )
    long = long_columns(layout)
    if long is not None:
        return worker_run(NAME, sources, _read_long(source, layout, long))
    wide = wide_columns(layout)
    if len(wide) > 1:
        return worker_run(NAME, sources, _read_wide(source, layout, wide))
    raise InputError(
        f"{source.name}: no column of it is known as a worker (worker, rank, ...) with a time beside it, and there is "
        "no column per worker (worker_0, worker_1, ...)"
    )


def _layout(source: Source) -> Layout:
    layout = header_of(source)
    if layout is None:
        raise InputError(
            f"{source.name} is no table: its first line must name the columns, separated by commas or tabs"
        )
    return layout


def _read_long(source: Source, layout: Layout, long: Long) -> Records:
    wanted = [c for c in (long.worker, long.value, long.step, long.clock, long.host) if c is not None]
    spans: dict[str, list[NDArray[np.float64]]] = {name: [] for name, _ in long.spans}
    codes, ats, values = [], [], []
    names: dict[str, int] = {}
    hosts: dict[str, str] = {}
    for chunk in _chunks(source, layout, [*wanted, *dict(long.spans).values()]):
        worker = chunk[long.worker].astype(str).str.strip().str[:MAX_NAME]
        kept = (worker != "") & (worker != "nan")
        chunk, worker = chunk[kept], worker[kept]
        for name in worker.unique():
            names.setdefault(str(name), len(names))
        codes.append(worker.map(names).to_numpy(np.int64))
        values.append(as_numbers(chunk[long.value]))
        for name, column in long.spans:
            spans[name].append(as_numbers(chunk[column]) * UNITS_US[_unit(layout, long, column) or "us"])
        if long.step is not None:
            ats.append(as_numbers(chunk[long.step]))
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
        unit=_unit(layout, long, long.value),
        value_name=layout.names[long.value],
        at_name=layout.names[place] if place is not None else "",
        notes=(_long_words(layout, long),),
        hosts=hosts,
        whole_steps=long.whole_steps,
        no_waiting=long.no_waiting,
        spans={name: np.concatenate(parts) for name, parts in spans.items() if parts},
    )


def _unit(layout: Layout, long: Long, column: int) -> str | None:
    """Unit of a column; where parts of a step have none, they are taken for milliseconds, and the note says so."""
    return unit_of(layout.names[column]) or (_ASSUMED_UNIT if long.spans else None)


def _long_words(layout: Layout, long: Long) -> str:
    unit = unit_of(layout.names[long.value])
    parts = [f"worker is column {layout.names[long.worker]!r}", f"its time {layout.names[long.value]!r}"]
    parts[1] += f" in {unit}" if unit else " in ms (assumed)" if long.spans else " in arbitrary units"
    parts += [f"{span.removesuffix('_us')} {layout.names[column]!r}" for span, column in long.spans]
    if long.step is not None:
        parts.append(f"step {layout.names[long.step]!r}")
    elif long.clock is not None:
        parts.append(f"moment {layout.names[long.clock]!r} in seconds")
    else:
        parts.append("rows of a worker in turn are its steps")
    if long.left:
        parts.append(f"not used: {', '.join(repr(layout.names[c]) for c in long.left[:5])}")
    return ", ".join(parts)


def _read_wide(source: Source, layout: Layout, columns: Sequence[int]) -> Records:
    index = next((c for c in range(len(layout.names)) if c not in set(columns) and index_kind(layout, c)), None)
    kind = index_kind(layout, index) if index is not None else None
    rows, ats = [], []
    for chunk in _chunks(source, layout, [*columns, *([] if index is None else [index])]):
        rows.append(np.column_stack([as_numbers(chunk[c]) for c in columns]))
        if index is not None and kind == CLOCK_INDEX:
            ats.append(_as_seconds(chunk[index], layout.names[index]))
        elif index is not None:
            ats.append(as_numbers(chunk[index]))
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


def _chunks(source: Source, layout: Layout, columns: Sequence[int]) -> Iterator[pd.DataFrame]:
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


def _as_seconds(cells: pd.Series[str], name: str) -> NDArray[np.float64]:
    """Moments as seconds: numbers by the unit in the name, or by their size when they count from 1970; or dates."""
    values = as_numbers(cells)
    if not np.isfinite(values).any():
        moments = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")
        stamps = moments.to_numpy(dtype="datetime64[ns]")
        return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e9)
    unit = unit_of(name)
    if unit is not None:
        return values * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[unit]
    size = float(np.nanmedian(np.abs(values)))
    return values * (1e-9 if size > EPOCH_NS else 1e-6 if size > EPOCH_US else 1e-3 if size > EPOCH_MS else 1.0)
