"""Op traces of pipeline-parallel training: one parquet file with a row per operation, rank and step.

Columns: `step`, `optype`, `start_ts` and `duration` (seconds; starts count from the beginning of the step), `dp_rank`
and `stage`; and where they are there `rank` (global), `seq_id` (number of the operation among those of its type),
`mc` (model chunk) and `mb_id` (micro-batch), -1 where an operation has none. A file `meta-X.yaml` beside
`trace-X.parquet` tells the parallel layout, of which the trace may hold one tensor-parallel rank only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.model.rundata import WORLD_SIZE, RankInfo, RunData

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

NAME = "op-trace"

_MAGIC = b"PAR1"
_NEEDED = ("step", "optype", "start_ts", "duration", "dp_rank", "stage")
_NUMBERED = ("rank", "seq_id", "mc", "mb_id")
_WHOLE = ("step", "dp_rank", "stage", *_NUMBERED)
_TOLD = {"micro_batch": "mb_id", "chunk": "mc", "sequence": "seq_id"}
"""Columns of table `operation`, and what they come from."""
_MAX_ROWS = 50_000_000
_MAX_KINDS = 200
_MAX_RANKS = 100_000
_LONGEST_STEP_S = 30 * 86_400.0
_COMPARED = 8
"""Rows that look like others are compared in full; two different ones are taken for alike once in 10^7 files."""
_META_BYTES = 64 * 1024
_NAMED = 6


def recognises(source: Source) -> bool:
    """A parquet file with the columns of an op trace."""
    if not source.head.startswith(_MAGIC):
        return False
    try:
        return set(_NEEDED) <= set(_opened(source).schema_arrow.names)
    except InputError:
        return False


def read(sources: Sequence[Source]) -> RunData:
    """Read the trace of one job.

    Raises:
        SeveralJobsError: there are several.
        InputError: it can't be understood.
    """
    if len(sources) > 1:
        names = ", ".join(s.base for s in sources[:_NAMED]) + (", ..." if len(sources) > _NAMED else "")
        told = f"{len(sources)} op traces, each of a job of its own ({names}): name one of them"
        raise SeveralJobsError(told, each_its_own(sources))
    source = sources[0]
    table = _table(source)
    kinds, codes = _operation_names(source, table)
    whole = {column: _whole(source, table, column) for column in _WHOLE if column in table.column_names}
    starts, durations = (_seconds(source, table, name) for name in ("start_ts", "duration"))
    del table  # its columns are held a second time from here on
    _check_span(source, starts, durations)
    rank_of, ranks = _ranks(source, whole, _layout(source))
    _refuse_twice(source, rank_of, whole, codes, starts)
    for seconds in (starts, durations):
        seconds *= 1e6
    operations = pd.DataFrame(
        {
            "attempt": np.zeros(len(codes), np.int64),
            "rank": rank_of,
            "step": whole["step"],
            "name": pd.Categorical.from_codes(codes, categories=pd.Index(kinds)),
            "start_us": starts,
            "dur_us": durations,
            **{column: _or_nan(whole.pop(told, None), len(codes)) for column, told in _TOLD.items()},
        },
        copy=False,
    )
    unavailable = [
        ("sequence lengths", "an op trace holds no batch sizes: uneven ones are told from the compute times"),
        ("host and GPU counters", "an op trace holds none: it shows where the time goes, not what takes it"),
    ]
    return run_of(NAME, sources, ranks=ranks, unavailable=unavailable, operations=operations)


def _opened(source: Source) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # From the file itself: parquet needs to seek, and holds its own compression.
        return pq.ParquetFile(source.path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.name} is no whole parquet file: {_first_line(error)}") from error


def _table(source: Source) -> pa.Table:
    import pyarrow as pa

    file = _opened(source)
    there = set(file.schema_arrow.names)
    lacking = [name for name in _NEEDED if name not in there]
    if lacking:
        raise InputError(f"{source.name} is no op trace: it has no column {', '.join(lacking)}")
    if file.metadata.num_rows > _MAX_ROWS:
        raise InputError(f"{source.name} has {file.metadata.num_rows} operations: cut it to {_MAX_ROWS}")
    try:
        table = file.read(columns=[n for n in (*_NEEDED, *_NUMBERED) if n in there], use_threads=False)
        table.validate(full=True)  # indices into damaged dictionaries, and the like
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.name} can't be read to its end: {_first_line(error)}") from error
    if table.num_rows == 0:
        raise InputError(f"{source.name} holds no operation")
    return table


def _operation_names(source: Source, table: pa.Table) -> tuple[list[str], NDArray[np.int64]]:
    """Distinct operation names and the code of each row."""
    import pyarrow as pa

    column = table["optype"]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)) or column.null_count:
        raise InputError(f"{source.name}: optype must hold the name of every operation")
    coded = column.cast(kind).combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    names = coded.dictionary.to_pylist()
    if len(names) > _MAX_KINDS:
        raise InputError(f"{source.name} has {len(names)} kinds of operations: optype is not what an op trace holds")
    return names, coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _whole(source: Source, table: pa.Table, name: str) -> NDArray[np.int64]:
    """A column of whole numbers; -1 where it is empty and may be."""
    import pyarrow as pa

    column = table[name]
    if column.null_count and name in _NEEDED:
        raise InputError(f"{source.name}: {name} is empty in {column.null_count} rows")
    try:
        values = column.cast(pa.int64()).fill_null(-1).to_numpy()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{source.name}: {name} must hold whole numbers ({_first_line(error)})") from error
    if name in ("dp_rank", "stage", "step", "rank") and values.min() < 0:
        raise InputError(f"{source.name}: {name} must not be negative")
    return np.asarray(values, np.int64)


def _seconds(source: Source, table: pa.Table, name: str) -> NDArray[np.float64]:
    import pyarrow as pa

    try:
        values = table[name].cast(pa.float64()).to_numpy().copy()  # Arrow's own memory is read-only
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{source.name}: {name} must hold seconds ({_first_line(error)})") from error
    if not np.isfinite(values).all() or table[name].null_count:
        raise InputError(f"{source.name}: {name} is not a number in some rows")
    if name == "duration" and values.min() < 0:
        raise InputError(f"{source.name}: an operation lasts less than nothing (duration {values.min():g} s)")
    return np.asarray(values, np.float64)


def _check_span(source: Source, starts: NDArray[np.float64], durations: NDArray[np.float64]) -> None:
    longest = float(np.max(durations))
    if longest > _LONGEST_STEP_S:
        raise InputError(f"{source.name}: an operation lasts {longest:g} s; are the times really in seconds?")
    if float(np.ptp(starts)) > 1e12:
        raise InputError(f"{source.name}: the starts spread over {float(np.ptp(starts)):g} s, which can't be one job")


def _ranks(
    source: Source, whole: Mapping[str, NDArray[np.int64]], layout: Mapping[str, int]
) -> tuple[NDArray[np.int64], list[RankInfo]]:
    """The rank of every row, and who they are."""
    dp, stage = whole["dp_rank"], whole["stage"]
    if max(int(dp.max()), int(stage.max())) >= _MAX_RANKS:
        raise InputError(f"{source.name}: dp_rank and stage must be below {_MAX_RANKS}")
    place = stage * (int(dp.max()) + 1) + dp
    places, first, row_of = np.unique(place, return_index=True, return_inverse=True)
    rank = whole.get("rank", place)
    numbers = rank[first]
    if (numbers[row_of] != rank).any() or len(np.unique(numbers)) < len(places):
        raise InputError(f"{source.name}: rank and (stage, dp_rank) contradict each other; is it more than one job?")
    detail = {WORLD_SIZE: layout["world_size"]} if layout.get("world_size", 0) >= len(places) else {}
    ranks = [
        RankInfo(rank=int(n), node=-1, host="", role={"dp": int(dp[at]), "pp": int(stage[at])}, detail=detail)
        for n, at in sorted(zip(numbers, first, strict=True))
    ]
    return rank, ranks


def _refuse_twice(
    source: Source,
    rank: NDArray[np.int64],
    whole: Mapping[str, NDArray[np.int64]],
    codes: NDArray[np.int64],
    starts: NDArray[np.float64],
) -> None:
    """A file that was put together of overlapping parts would count its operations twice."""
    columns = [rank, whole["step"], codes, starts.view(np.int64), *(whole[n] for n in _TOLD.values() if n in whole)]
    mixed = np.zeros(len(rank), np.int64)
    with np.errstate(over="ignore"):
        for column in columns:
            mixed = (mixed ^ column) * np.int64(-7046029254386353131)
            mixed ^= mixed >> np.int64(29)
    ordered = np.sort(mixed)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    for at in np.flatnonzero(np.isin(mixed, again))[:_COMPARED] if len(again) else ():
        alike = np.logical_and.reduce([column == column[at] for column in columns])
        if alike.sum() > 1:
            raise InputError(f"{source.name}: rank {rank[at]} has the same operation twice in step {whole['step'][at]}")


def _or_nan(values: NDArray[np.int64] | None, count: int) -> Any:
    """Whole numbers where each row has one, else with NaN for none."""
    if values is None:
        return np.full(count, np.nan)
    return values if values.min() >= 0 else np.where(values < 0, np.nan, values)


def _layout(source: Source) -> dict[str, int]:
    """Whole numbers of the sidecar, `name: value` a line; empty without one."""
    part = re.fullmatch(r"trace(.*)\.parquet", Path(source.name).name)
    sidecar = source.path.with_name(f"meta{part[1]}.yaml") if part else None
    if sidecar is None or not sidecar.is_file():
        return {}
    with sidecar.open("rb") as stream:
        content = stream.read(_META_BYTES).decode("utf-8", errors="replace")
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w{1,40}):\s*(\d{1,9})\s*$", content, flags=re.MULTILINE)}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
