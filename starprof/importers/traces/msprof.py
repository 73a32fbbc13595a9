"""Cluster analysis of Ascend's msprof: how each NPU's time divides into computing, communication and nothing.

`cluster_step_trace_time.csv` is what the verdict is made of. `cluster_communication.json` adds single operations, with
the part of each that was waiting for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, by_folder, each_its_own
from starprof.importers.source import Source
from starprof.importers.workers import csv_rows
from starprof.model import collectives as names
from starprof.model.ranklists import listed, read_list
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.trace import COLLECTIVE

NAME = "msprof"

MAX_JSON_BYTES = 1 << 30
_COLUMNS = {"Type", "Index", "Computing", "Communication(Not Overlapped)", "Free"}
_ROLES = {"DP Index": "dp", "TP Index": "tp", "PP Index": "pp"}
_NUMBER = re.compile(r"_(\d{1,9})(?:@|$)")


def recognises(source: Source) -> bool:
    """One of the two files, by its columns or by the names that only it holds."""
    head = source.head
    if set(csv_rows.header(head)) >= _COLUMNS:
        return True
    return head.lstrip().startswith(b"{") and b'"Communication Time Info"' in head


def read(sources: Sequence[Source]) -> RunData:
    """Read the analysis of one job.

    Raises:
        SeveralJobsError: there are several of a kind.
        InputError: a file can't be understood.
    """
    tables = [s for s in sources if not s.head.lstrip().startswith(b"{")]
    operations = [s for s in sources if s not in tables]
    for same in (tables, operations):
        if len(same) > 1:
            told = f"{same[0].name} and {same[1].name} are of two analyses: name one"
            folders = by_folder(sources)
            raise SeveralJobsError(told, folders if len(folders) > 1 else each_its_own(sources))
    limits: list[tuple[str, str]] = []
    rows, stages = _step_rows(tables[0]) if tables else ([], [])
    if tables and not rows:
        raise InputError(f"{tables[0].name} holds no row of a rank")
    calls = list(_operations(operations[0])) if operations else []
    if operations and not calls and not rows:
        raise InputError(f"{operations[0].name} holds no operation of a rank")
    found = sorted({r["rank"] for r in rows} | {c["rank"] for c in calls})
    steps, columns = _columns(rows, found, tables[0] if tables else operations[0])
    if not rows:
        limits.append(("steps", "cluster_step_trace_time.csv is not there: how the ranks' time divides is not told"))
    elif not any(r["told"] for r in rows):
        limits.append(("steps", "the trace tells no steps: its rows are sums over an unknown number of them"))
    calls += [_as_call(row, stages) for row in rows]
    frame = pd.DataFrame([{n: c.get(n) for n in COLLECTIVE.names} for c in calls])
    roles = {r["rank"]: r["role"] for r in rows}
    size = max(found) + 1
    return run_of(
        NAME,
        [*tables, *operations],
        ranks=[RankInfo(r, 0, "", device="npu", role=roles.get(r, {}), detail={"world_size": size}) for r in found],
        steps=steps,
        columns=columns,
        unavailable=limits,
        collectives=frame,
    )


def _step_rows(source: Source) -> tuple[list[dict[str, Any]], list[tuple[int, ...]]]:
    """Rows of ranks (see `_step_row`), and the ranks of each pipeline stage."""
    rows, stages = [], set()
    for row in csv_rows.rows(source):
        kind = row.get("Type", "").strip()
        if kind == "stage":
            stages.add(read_list(row.get("Index", "")))
        elif kind == "rank" and (made := _step_row(source, row)) is not None:
            rows.append(made)
    return rows, sorted(stages - {()})


def _step_row(source: Source, row: Mapping[str, str]) -> dict[str, Any] | None:
    """Rank, step, and microseconds in all, of communication that nothing hides, and idle; None without them."""
    rank = csv_rows.rank_number(row.get("Index"))
    parts = [csv_rows.number(row.get(name)) for name in ("Computing", "Communication(Not Overlapped)", "Free")]
    if rank is None or isnan(sum(parts)):
        return None
    if min(parts) < 0:
        raise InputError(f"{source.name}: negative times of rank {rank}")
    step = csv_rows.number(row.get("Step"))
    told = 0 <= step < 1e15
    role = {short: csv_rows.rank_number(row.get(name)) for name, short in _ROLES.items()}
    return {
        "rank": rank,
        "step": int(step) if told else 0,
        "told": told,
        "dur_us": sum(parts),
        "blocked_us": parts[1],
        "unaccounted_us": parts[2],
        "role": {k: v for k, v in role.items() if v is not None},
    }


def _columns(
    rows: Sequence[Mapping[str, Any]], ranks: Sequence[int], source: Source
) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    steps = sorted({r["step"] for r in rows})
    seen = {(r["rank"], r["step"]) for r in rows}
    if len(seen) < len(rows):
        raise InputError(f"{source.name}: a rank has two rows for one step; name one analysis only")
    columns = {n: np.full((len(ranks), len(steps)), np.nan) for n in ("dur_us", "blocked_us", "unaccounted_us")}
    row_of, column_of = {r: i for i, r in enumerate(ranks)}, {s: i for i, s in enumerate(steps)}
    for row in rows:
        for name, values in columns.items():
            values[row_of[row["rank"]], column_of[row["step"]]] = row[name]
    return steps, columns if rows else {}


def _as_call(row: Mapping[str, Any], stages: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """All communication of a step in one row: how many calls it was is not told."""
    stage = next((n for n, members in enumerate(stages) if row["rank"] in members), None)
    return {
        "attempt": 0,
        "rank": row["rank"],
        "group_name": "" if stage is None else f"stage {stage}",
        "name": names.UNKNOWN,
        "step": row["step"] if row["told"] else None,
        "dur_us": row["blocked_us"],
        "ranks": None if stage is None else listed(stages[stage]),
    }


def _operations(source: Source) -> Iterator[dict[str, Any]]:
    """Operations of each group, step and rank; sums over operations are left out."""
    with source.open() as stream:
        text = stream.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise InputError(f"{source.name} is larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        groups = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, dict[str, Any]]]])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InputError(
            f"{source.name} can't be read: it is cut off, or holds something else than expected"
        ) from error
    for group, steps in groups.items():
        members = listed(read_list(group)) or None
        for step, operations in steps.items():
            for name, ranks in operations.items():
                if "total" not in name.lower():
                    yield from _of_ranks(group, members, step, name, ranks)


def _of_ranks(
    group: str, members: str | None, step: str, name: str, ranks: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    number = _NUMBER.search(name)
    for rank_text, told in ranks.items():
        rank = csv_rows.rank_number(rank_text)
        info = told.get("Communication Time Info") if isinstance(told, dict) else None
        elapsed = info.get("Elapse Time(ms)") if isinstance(info, dict) else None
        if rank is None or info is None or not isinstance(elapsed, (int, float)) or not 0 <= elapsed < 1e12:
            continue
        start = info.get("Start Timestamp(us)")
        step_number = csv_rows.number(re.sub(r"\D", "", step))
        yield {
            "attempt": 0,
            "rank": rank,
            "group_name": group[:100],
            "sequence": int(number[1]) if number else None,
            "name": names.kind(name),
            "step": None if isnan(step_number) or step_number > 1e15 else int(step_number),
            "start_us": float(start) if isinstance(start, (int, float)) and abs(start) < 1e18 else None,
            "dur_us": elapsed * 1e3,
            "calls": 1,
            "ranks": members,
        }
