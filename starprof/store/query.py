"""Reads a run: makes sure the file is complete, then turns its tables into arrays and frames.

A recording that was interrupted leaves its spool beside the file; whoever reads first folds it in. While a
recorder is at work nothing is touched: the reader looks at a copy of what was folded in so far, and says so.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from starprof.errors import NoDataError, RunFileError, SpoolError
from starprof.model.columns import Kind, Table
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.schema import BY_NAME, TABLES
from starprof.spool.layout import SPOOL_SUFFIX, Spool
from starprof.store.base import ReadableRun
from starprof.store.clickhouse.address import is_address
from starprof.store.ingest import fold, ingester_lock
from starprof.store.rollup import rolled_up_columns
from starprof.store.runfile import RunFile
from starprof.store.steps import VALUES, StoredSteps

READER_WAIT_S = 10.0
SAMPLE_ROWS_MAX = 4_000_000
"""Rows of one sampled table that are read; of longer ones every n-th tick, which costs cumulative counters nothing."""

SYNC_UPDATES_MAX, SYNC_GRADIENTS_MAX, SYNC_STEPS_MAX = 200_000, 10_000_000, 1_000_000
"""What is read of updates (and the gradients in them) and of ranks' rounds. Of more, a part is drawn by a hash: every
n-th would see only one of n ranks that take turns."""

DICTIONARIES = ("nic", "tcp", "cgroup", "process", "gpu", "disk")


@dataclass(frozen=True, slots=True)
class Reading:
    """A run file that is open for reading; `note` is what the user should know about its state, or empty."""

    run: RunFile
    note: str


def load_run(path: Path | str, attempt: int | None = None) -> RunData:
    """Read a run, by its file or the address of a database; the attempt with the most steps unless one is asked for.

    `info` holds the row of table `run`, and `file`, `attempts` (all numbers) and `note` (see `Reading`).

    Raises:
        RunFileError: the file can't be read.
        StoreError: the database can't.
        NoDataError: it holds no such attempt.
    """
    with open_steps(path, attempt) as steps:
        return steps.whole()


@contextmanager
def open_steps(path: Path | str, attempt: int | None = None) -> Iterator[StoredSteps]:
    """Open a run whose step records need not fit into memory: all else of it is read, see `load_run`.

    Raises:
        RunFileError: the file can't be read.
        StoreError: the database can't.
        NoDataError: it holds no such attempt.
    """
    with _opened(path) as (run, note):
        known = "SELECT attempt FROM rank UNION SELECT attempt FROM step"
        attempts = [a for (a,) in run.query(f"SELECT attempt FROM ({known}) ORDER BY attempt")]
        chosen = _longest(run, attempts) if attempt is None else attempt
        if attempt is not None and attempt not in attempts:
            raise NoDataError(f"{path} has no attempt {attempt}: there are {', '.join(map(str, attempts)) or 'none'}")
        shell = _shell(run, chosen, tuple(attempts))
        yield StoredSteps(run, replace(shell, info={**shell.info, "file": str(path), "note": note}))


@contextmanager
def _opened(place: Path | str) -> Iterator[tuple[ReadableRun, str]]:
    """A run, wherever it is, and what the user should know about its state."""
    if not is_address(place):
        with open_for_reading(Path(place)) as reading:
            yield reading.run, reading.note
        return
    from starprof.store.clickhouse.reading import open_run

    with open_run(place) as (run, note):
        yield run, note


def _shell(run: ReadableRun, attempt: int, attempts: tuple[int, ...]) -> RunData:
    """Everything but the step records."""
    ranks = _ranks(run, attempt)
    names = [c.name for c in BY_NAME["run"].columns]
    rows = run.query(f"SELECT {run.select_list(BY_NAME['run'])} FROM run") or [(None,) * len(names)]
    nothing = np.zeros((len(ranks), 0))
    return RunData(
        info={**dict(zip(names, rows[0], strict=True)), "attempts": attempts},
        attempt=attempt,
        ranks=ranks,
        steps=Steps(np.zeros(0, np.int64), dict.fromkeys(VALUES, nothing), nothing.astype(np.int64)),
        samples=_samples(run),
        events=_frame(run, "event", f"WHERE attempt = {attempt} OR attempt IS NULL"),
        gaps=_frame(run, "gap"),
        unavailable=_frame(run, "unavailable"),
        nodes=_frame(run, "node"),
        operations=_where_any(run, "operation", f"WHERE attempt = {attempt}"),
        collectives=_where_any(run, "collective", f"WHERE attempt = {attempt}"),
        link_tests=_where_any(run, "link_test"),
        **_sync(run, attempt),
        clock_offset_ns=_clock_offsets(run),
    )


@contextmanager
def open_for_reading(path: Path) -> Iterator[Reading]:
    """Open a run file (or the run of a spool directory) for reading, complete as it can be.

    Raises:
        RunFileError: it can't be read.
        NoDataError: the recording has just begun, and nothing is folded in yet.
    """
    run_file = path.with_name(path.name.removesuffix(SPOOL_SUFFIX)) if path.is_dir() else path
    spool = Spool.beside(run_file)
    with _recorder_is_gone(spool) as gone:
        if gone:
            note = _recover(spool, run_file) if spool.run_json.exists() else ""
            with RunFile.open_read_only(run_file, wait_s=READER_WAIT_S) as run:
                yield Reading(run, note)
            return
    with _snapshot(spool, run_file) as copy, RunFile.open_read_only(copy) as run:
        yield Reading(run, f"{run_file} is still being recorded: this is what was folded in so far")


@contextmanager
def _recorder_is_gone(spool: Spool) -> Iterator[bool]:
    """Whether no recorder holds the spool; while the answer is yes, none can take it."""
    try:
        fd = os.open(spool.lock, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _recover(spool: Spool, run_file: Path) -> str:
    """Fold in what an interrupted recording left behind; returns what the user should know."""
    try:
        report = fold(spool, run_file, final=True, wait_s=READER_WAIT_S)
        if not report.left and not report.damaged:
            shutil.rmtree(spool.root)
    except (SpoolError, RunFileError, OSError) as error:
        if not run_file.exists():
            raise
        return f"what an interrupted recording left in {spool.root} can't be folded in, it is missing here: {error}"
    if report.left:
        return f"the recorder of {run_file} is gone, but its job still runs: this is what it has written so far"
    if report.damaged:
        return f"{len(report.damaged)} damaged files of an interrupted recording are kept in {spool.root}"
    if report.rows:
        return f"folded in {report.rows} rows that an interrupted recording had left in {spool.root}"
    return ""


@contextmanager
def _snapshot(spool: Spool, run_file: Path) -> Iterator[Path]:
    """A copy of the run file, taken while no ingester is at it: a reader must never keep the ingester waiting."""
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=spool.root) as folder:
        copy = Path(folder) / run_file.name
        with ingester_lock(spool, READER_WAIT_S):
            if not run_file.exists():
                raise NoDataError(f"the recording of {run_file} has just begun: try again in a few seconds")
            shutil.copyfile(run_file, copy)
            log = run_file.with_name(run_file.name + ".wal")
            if log.exists():
                shutil.copyfile(log, copy.with_name(copy.name + ".wal"))
        yield copy


def _longest(run: ReadableRun, attempts: Sequence[int]) -> int:
    """The attempt with the most steps, the latest of equals; without steps the first."""
    if len(attempts) == 1:
        return attempts[0]
    rows = run.query("""
        SELECT attempt FROM (SELECT attempt, max(step) - min(step) AS steps FROM step GROUP BY attempt)
        ORDER BY steps DESC, attempt DESC LIMIT 1""")
    return int(rows[0][0]) if rows else 0


def _ranks(run: ReadableRun, attempt: int) -> tuple[RankInfo, ...]:
    """All ranks of an attempt: those that described themselves, and those of which only steps are known."""
    rank = BY_NAME["rank"]
    hosts = dict(run.query("SELECT node, host FROM node"))
    described = {}
    for cells in run.query(f"SELECT {run.select_list(rank)} FROM rank WHERE attempt = ?", [attempt]):
        known = dict(zip(rank.names, cells, strict=True))
        described[known["rank"]] = _rank_info(known, hosts)
    for (number,) in run.query("SELECT DISTINCT rank FROM step WHERE attempt = ?", [attempt]):
        described.setdefault(number, RankInfo(rank=number, node=-1, host=""))
    return tuple(described[number] for number in sorted(described))


def _rank_info(known: Mapping[str, Any], hosts: Mapping[int, str]) -> RankInfo:
    node = -1 if known["node"] is None else known["node"]
    plain = (
        "rank",
        "local_rank",
        "pid",
        "device",
        "gpu_uuid",
        "numa_node",
        "cpus",
        "framework",
        "backend",
        "torch_version",
    )
    return RankInfo(
        **{name: known[name] for name in plain},
        node=node,
        host=hosts.get(node) or "",
        role={d: known[f"role_{d}"] for d in ("dp", "tp", "pp") if known[f"role_{d}"] is not None},
        detail=json.loads(known["detail"]) if known["detail"] else {},
    )


def _samples(run: ReadableRun) -> dict[str, pd.DataFrame]:
    """Sampled tables, what they were rolled up to, and the tables that name their devices."""
    there = set(run.tables())
    frames = {}
    for table in TABLES:
        if table.name in DICTIONARIES:
            frames[table.name] = _latest(_frame(run, table.name), table)
        if not table.sampled:
            continue
        frames[table.name] = _frame(run, table.name, _thinned(run, table.name) if table.name in there else "")
        rolled_up = f"{table.name}_rollup"
        if rolled_up in there:
            names = ", ".join(column.split()[0] for column in rolled_up_columns(table))
            frames[rolled_up] = _as_frame(run.arrays(f"SELECT {names} FROM {rolled_up}{run.in_order}"))
    return frames


def _latest(names: pd.DataFrame, table: Table) -> pd.DataFrame:
    """The valid row of every key: a device is named again when something changes, or by a restarted agent."""
    keys = [column.name for column in table.columns if column.kind is Kind.KEY]
    return names.drop_duplicates(keys, keep="last", ignore_index=True)


def _thinned(run: ReadableRun, table: str) -> str:
    """Clause that leaves at most `SAMPLE_ROWS_MAX` rows: whole ticks are left out, evenly."""
    ((rows,),) = run.query(f"SELECT count(*) FROM {table}")
    if rows <= SAMPLE_ROWS_MAX:
        return ""
    stride = -(-rows // SAMPLE_ROWS_MAX)
    return f"""WHERE (node, mono_ns) IN (
        SELECT node, mono_ns FROM (
            SELECT node, mono_ns, row_number() OVER (PARTITION BY node ORDER BY mono_ns) AS tick
            FROM (SELECT DISTINCT node, mono_ns FROM {table}))
        WHERE tick % {stride} = 0)"""


def _frame(run: ReadableRun, table: str, clause: str = "") -> pd.DataFrame:
    """A table of the schema as a frame; empty when the file has no such table."""
    columns = run.select_list(BY_NAME[table])
    if table not in run.tables():
        return _as_frame(run.arrays(f"SELECT {columns} LIMIT 0"))
    return _as_frame(run.arrays(f"SELECT {columns} FROM {table} {clause}{run.in_order}"))


def _where_any(run: ReadableRun, table: str, clause: str = "") -> pd.DataFrame | None:
    """A table that only some runs have rows of."""
    frame = _frame(run, table, clause)
    return frame if len(frame) else None


def _sync(run: ReadableRun, attempt: int) -> dict[str, pd.DataFrame | None]:
    """What control did, by the names of `RunData`'s fields; nothing where the file has no such rows."""
    chosen = f"WHERE attempt = {attempt}"
    updates = steps = 1
    there = set(run.tables())
    if "sync_update" in there:
        ((rows, gradients),) = run.query(f"SELECT count(*), coalesce(sum(gradients), 0) FROM sync_update {chosen}")
        updates = max(-(-rows // SYNC_UPDATES_MAX), -(-gradients // SYNC_GRADIENTS_MAX), 1)
    if "sync_step" in there:
        ((rows,),) = run.query(f"SELECT count(*) FROM sync_step {chosen}")
        steps = max(-(-rows // SYNC_STEPS_MAX), 1)
    return {
        "sync_updates": _where_any(run, "sync_update", f"{chosen} AND {_drawn('version', updates)}"),
        "sync_switches": _where_any(run, "sync_switch", chosen),
        "sync_noise": _where_any(run, "sync_noise", chosen),
        "calibrations": _where_any(run, "calibration", chosen),
        "advisor_actions": _where_any(run, "advisor_action", chosen),
        "sync_steps": _where_any(run, "sync_step", f"{chosen} AND {_drawn('rank * 40503 + step', steps)}"),
    }


def _drawn(key: str, of: int) -> str:
    """Condition of one row in so many, alike in every engine: steps on a circle, of a length that fits no pattern."""
    return f"({key}) % 2147483647 * 2654435761 % 4294967291 % {of} = 0"


def _as_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Integers stay int64 where none is NULL, else they become float64 with NaN; a text that is NULL is None."""
    return pd.DataFrame({name: _without_mask(values) for name, values in columns.items()})


def _without_mask(values: Any) -> pd.Series[Any]:
    if values.dtype == object:
        return pd.Series(values.tolist(), dtype=object)  # a masked text becomes None
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(np.float64), np.nan) if values.mask.any() else values.data
    return pd.Series(values)


def _clock_offsets(run: ReadableRun) -> dict[int, tuple[int, int]]:
    """Per node the most exact measured offset to node 0; nodes of node 0's boot share its clock."""
    offsets = {
        int(node): (int(offset), int(error))
        for node, offset, error in run.query(
            "SELECT node, arg_min(offset_ns, error_ns), min(error_ns) FROM clock GROUP BY node"
        )
    }
    boots = dict(run.query("SELECT node, boot_id FROM node"))
    for node, boot in boots.items():
        if node == 0 or (boot is not None and boot == boots.get(0)):
            offsets[node] = (0, 0)
    return offsets
