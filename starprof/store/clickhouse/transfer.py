"""Whole runs between run files and a database, and what is in one.

A pushed run is one commit: until its last row has arrived nobody sees any of it, and pushed again it replaces what was
there in one moment. So a push that dies is simply done again.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from starprof.errors import NoDataError, StoreError, UsageError
from starprof.model.schema import BY_NAME
from starprof.store.base import ReadableRun
from starprof.store.clickhouse.address import Address
from starprof.store.clickhouse.client import connect, delete, is_there, told
from starprof.store.clickhouse.ledger import quoted
from starprof.store.clickhouse.run import ClickHouseRun, find
from starprof.store.clickhouse.tables import LEDGER, META, ROLLUP_SUFFIX, STORED
from starprof.store.query import open_for_reading
from starprof.store.rollup import rolled_up_ddl
from starprof.store.runfile import BOOKKEEPING, RunFile

PULLING_SUFFIX = ".pulling"
BLOCK_ROWS = 500_000
"""Rows of one block: a part on the server's disk each, and what we hold of a table."""

_PUSHED = "pushed"
_OF_THE_FILE = {"format", "schema_version", _PUSHED}


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did: the run's id and address, its rows, and whether they were there already."""

    run_id: str
    place: str
    rows: int
    was_there: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in a database, with wall-clock times in ns."""

    run_id: str
    name: str | None
    started_unix_ns: int | None
    ended_unix_ns: int | None
    ranks: int


def push(run_file: Path, address: Address, *, force: bool = False) -> Pushed:
    """Copy a run file to a database.

    Args:
        run_file: what to copy; a recording that was interrupted is folded in first.
        address: of the database.
        force: replace a run of the same id that holds something else.

    Raises:
        RunFileError: the file can't be read.
        StoreError: the database can't be reached or used, or has another run of this id.
    """
    with open_for_reading(run_file) as reading:
        source = reading.run
        rows = source.query(f"SELECT {source.select_list(BY_NAME['run'])} FROM run")
        counts = {name: _count(source, name) for name in _copied(source)}
        digest = _digest(source, counts)
        facts = dict(zip(BY_NAME["run"].names, rows[0], strict=True)) if rows else {}
        run_id = facts.get("run_id") or digest[:32]
        with ClickHouseRun.open(address, run_id, started_unix_ns=facts.get("started_unix_ns")) as target:
            if not target.is_new:
                if target.meta().get(_PUSHED) == digest:
                    return Pushed(run_id, target.place, sum(counts.values()), was_there=True)
                if not force:
                    raise StoreError(f"{target.place} is there already and differs: --force replaces it")
            with target.transaction(supersede=True):
                _copy_all(source, target, digest, without_id=not rows)
            target.forget_replaced()
            return Pushed(run_id, target.place, sum(counts.values()), was_there=False)


def pull(address: Address, run_file: Path, *, force: bool = False) -> int:
    """Copy a run to a new run file; returns its rows.

    Raises:
        UsageError: the file exists.
        NoDataError: there is no such run.
        StoreError: the database can't be reached or used.
    """
    if run_file.exists() and not force:
        raise UsageError(f"{run_file} exists: choose another name, or overwrite it with --force")
    building = run_file.with_name(run_file.name + PULLING_SUFFIX)
    building.unlink(missing_ok=True)
    rows = 0
    try:
        with (
            ClickHouseRun.open_read_only(address) as source,
            RunFile.open(building, memory_mb=512, threads=2) as target,
            target.transaction(),
        ):
            for name in (*_copied(source), LEDGER):
                if name.endswith(ROLLUP_SUFFIX):
                    target.bulk(rolled_up_ddl(BY_NAME[name.removesuffix(ROLLUP_SUFFIX)]))
                for batch in source.arrow_batches(_all_of(source, name)):
                    rows += batch.num_rows if name != LEDGER else 0
                    target.append(name, pa.Table.from_batches([batch]))
            target.set_meta({key: value for key, value in source.meta().items() if key not in _OF_THE_FILE})
        building.replace(run_file)
    finally:
        building.unlink(missing_ok=True)
        building.with_name(building.name + ".wal").unlink(missing_ok=True)
    return rows


def runs_in(address: Address) -> list[Listed]:
    """The runs of a database, the newest first.

    Raises:
        StoreError: the database can't be reached or used.
        NoDataError: it has no tables of ours.
    """
    client = connect(address)
    try:
        if not is_there(client, address):
            raise NoDataError(f"{address.text}: there are no runs of starprof in this database")
        with told(address):
            found = client.query(
                f"SELECT r.run_id, any(name), any(started_unix_ns), any(ended_unix_ns), uniqExact(rank) "
                f"FROM {address.database}.run AS r LEFT JOIN "
                f"(SELECT run_id, rank FROM {address.database}.rank) AS k ON k.run_id = r.run_id "
                "GROUP BY r.run_id ORDER BY 3 DESC, 1"
            ).result_rows
        return [Listed(*row) for row in found]
    finally:
        client.close()


def remove(address: Address) -> str:
    """Delete a run with all its rows; returns its id.

    Raises:
        StoreError: the database can't be reached or used.
        NoDataError: there is no such run.
    """
    client = connect(address)
    try:
        run_id = find(client, address)
        # The row that names the run goes first: a removal that is cut off leaves nothing that looks whole.
        names = ["run", *(name for name in STORED if name != "run"), LEDGER]
        delete(client, address, names, f"run_id = {quoted(run_id)}")
        return run_id
    finally:
        client.close()


def _copy_all(source: RunFile, target: ClickHouseRun, digest: str, *, without_id: bool) -> None:
    for name in _copied(source):
        for block in _blocks(source, name):
            target.append(name, block)
    if without_id:  # every run has a row that names it
        target.append("run", pa.table({"name": [source.path.stem]}))
    facts = {key: value for key, value in source.meta().items() if key not in _OF_THE_FILE}
    target.set_meta({**facts, _PUSHED: digest})
    positions = source.query("SELECT stream, next_seq, last_mono_ns FROM ledger ORDER BY stream")
    if positions:
        columns = list(zip(*positions, strict=True))
        target.replace(LEDGER, pa.table(dict(zip(BOOKKEEPING[LEDGER], columns, strict=True))), keys=["stream"])


def _copied(run: ReadableRun) -> list[str]:
    """Tables whose rows are copied as they are, in an order that is the same everywhere."""
    return [name for name in run.tables() if name in STORED and name != META]


def _all_of(run: ReadableRun, name: str) -> str:
    columns = run.select_list(BY_NAME[name]) if name in BY_NAME else ", ".join(run.columns(name))
    return f"SELECT {columns} FROM {name}{run.in_order if name != LEDGER else ' ORDER BY stream'}"


def _blocks(source: ReadableRun, name: str) -> Iterator[pa.Table]:
    """A table's rows, about `BLOCK_ROWS` at a time."""
    held: list[pa.RecordBatch] = []
    for batch in source.arrow_batches(_all_of(source, name)):
        held.append(batch)
        if sum(b.num_rows for b in held) >= BLOCK_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _count(run: ReadableRun, name: str) -> int:
    ((rows,),) = run.query(f"SELECT count(*) FROM {name}")
    return int(rows)


def _digest(source: RunFile, counts: dict[str, int]) -> str:
    """What tells whether two files of one run hold the same: rows are only ever added, by streams."""
    streams = source.query("SELECT stream, next_seq FROM ledger ORDER BY stream")
    rows = [source.query(f"SELECT * FROM {name}") for name in ("run", "attempt")]
    told = json.dumps([counts, streams, rows, source.path.stem if not rows[0] else ""], default=str)
    if not streams:  # saved or imported as a whole: nothing else tells two of them apart
        sums = [
            source.query(f"SELECT bit_xor(hash(t)) FROM {name} AS t") for name, count in sorted(counts.items()) if count
        ]
        told += json.dumps(sums, default=str)
    return hashlib.sha256(told.encode()).hexdigest()
