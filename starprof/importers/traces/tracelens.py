"""Collective statistics that TraceLens writes: durations per rank and kind of call, or call by call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.importers.workers import csv_rows
from starprof.model import collectives as names
from starprof.model.ranklists import from_listed, listed, read_list
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.trace import COLLECTIVE

NAME = "tracelens"

_SUMMARY = {"rank", "Collective name", "dur_mean", "operation_count"}
_CALLS = {"rank", "Collective name", "index_in_group", "ts", "dur"}
_NO_RANKS = {"Collective name", "comm_latency_mean", "skew in start time_mean"}
_MEGABYTE = 1 << 20


def recognises(source: Source) -> bool:
    """A CSV with the columns of one of the tables."""
    columns = set(csv_rows.header(source.head))
    return any(wanted <= columns for wanted in (_SUMMARY, _CALLS, _NO_RANKS))


def read(sources: Sequence[Source]) -> RunData:
    """Read the tables of one job; single calls are preferred to summaries of the same.

    Raises:
        SeveralJobsError: there are tables of several reports.
        InputError: no table tells ranks, or holds a usable row.
    """
    single = [s for s in sources if set(csv_rows.header(s.head)) >= _CALLS]
    chosen = single or [s for s in sources if set(csv_rows.header(s.head)) >= _SUMMARY]
    if not chosen:
        raise InputError(
            f"{sources[0].name} tells no ranks: name nccl_summary_long.csv (or nccl_long.csv) of the same report"
        )
    if len(chosen) > 1:
        told = f"{chosen[0].name} and {chosen[1].name} are tables of two reports: name one"
        raise SeveralJobsError(told, each_its_own(chosen))
    rows, left = [], 0
    for row in csv_rows.rows(chosen[0]):
        made = _call(row) if single else _statistic(row)
        if made is None:
            left += 1
        else:
            rows.append(made)
    if not rows:
        raise InputError(f"{chosen[0].name} holds no row with a rank, a collective and its duration")
    limits = [("steps", "TraceLens' tables tell collectives only: what the ranks did between them is not known")]
    if left:
        limits.append((chosen[0].base, f"{left} rows without a rank or a duration are left out"))
    frame = pd.DataFrame([_full(row) for row in rows])
    _refuse_twice(frame, chosen[0])
    return run_of(NAME, chosen, ranks=_ranks(frame), unavailable=limits, collectives=frame)


def _common(row: Mapping[str, str], duration: float) -> dict[str, object] | None:
    rank = csv_rows.rank_number(row.get("rank"))
    if rank is None or isnan(duration) or duration < 0:
        return None
    members = read_list(row.get("Process Group Ranks", ""))
    size = csv_rows.rank_number(row.get("Group size"))
    if not members and size is not None and size > rank:
        members = tuple(range(size))  # a group of the first ranks: of all, as a rule
    sizes = [csv_rows.number(v) for k, v in row.items() if "msg size (MB)" in k]
    told = [s for s in sizes if 0 <= s < 1e9]
    return {
        "attempt": 0,
        "rank": rank,
        "group_name": row.get("Process Group Name", "")[:100],
        "name": names.kind(row.get("Collective name", "")),
        "dur_us": duration,
        "bytes": float(round(max(told) * _MEGABYTE)) if told else None,
        "ranks": listed(members) if members else None,
    }


def _statistic(row: Mapping[str, str]) -> dict[str, object] | None:
    """A row that stands for many calls."""
    made = _common(row, csv_rows.number(row.get("dur_mean")))
    calls = csv_rows.number(row.get("operation_count"))
    if made is None or not 1 <= calls < 1e12:
        return None
    least, spread = csv_rows.number(row.get("dur_min")), csv_rows.number(row.get("dur_std"))
    return made | {"calls": int(calls), "min_dur_us": least, "std_dur_us": spread}


def _call(row: Mapping[str, str]) -> dict[str, object] | None:
    """A row that stands for one call."""
    made = _common(row, csv_rows.number(row.get("dur")))
    place = csv_rows.rank_number(row.get("index_in_group"))
    if made is None or place is None:
        return None
    return made | {"calls": 1, "sequence": place, "start_us": csv_rows.number(row.get("ts"))}


def _full(row: Mapping[str, object]) -> dict[str, object]:
    return {name: row.get(name) for name in COLLECTIVE.names}


def _refuse_twice(frame: pd.DataFrame, source: Source) -> None:
    """Single calls must be unique; a summary may split a kind of call by its stream."""
    single = frame[frame["calls"] == 1]
    twice = single[single["sequence"].notna() & single.duplicated(["rank", "group_name", "ranks", "sequence"])]
    if len(twice):
        raise InputError(f"{source.name}: rank {twice['rank'].iloc[0]} has the same call twice; name one report only")


def _ranks(frame: pd.DataFrame) -> list[RankInfo]:
    members = {rank for text in frame["ranks"].dropna().unique() for rank in from_listed(text)}
    size = max([*members, *(int(r) for r in frame["rank"])]) + 1
    return [RankInfo(int(r), 0, "", device="cuda", detail={"world_size": size}) for r in sorted(frame["rank"].unique())]
