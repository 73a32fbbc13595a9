"""One run in a ClickHouse database, with what a `RunFile` can do: the rest of the store reads and writes both alike.

Questions are asked in the SQL that both engines understand; each name of a table in them means its rows of this run
that counted when the run was opened, or when this process last committed.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from starprof.errors import NoDataError, StoreError
from starprof.model.schema import SCHEMA_VERSION, Table
from starprof.store.clickhouse import ledger
from starprof.store.clickhouse.address import Address
from starprof.store.clickhouse.client import connect, delete, is_there, prepare, told
from starprof.store.clickhouse.tables import (
    ARRIVAL,
    LEDGER,
    META,
    NEWEST_ONLY,
    ROLLUP_SUFFIX,
    STORED,
    newest_first,
)
from starprof.store.runfile import FORMAT

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_NAMED = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)", re.IGNORECASE)
_PARAMETER = re.compile(r"\?")
_DIALECT = ((re.compile(r"\barg_min\("), "argMin("), (re.compile(r"\barg_max\("), "argMax("))
_ARROW_TYPES = {"Int64": pa.int64(), "Float64": pa.float64(), "Float32": pa.float32(), "String": pa.string()}


class ClickHouseRun:
    """An open run; use it as a context manager.

    Attributes:
        place: what the user calls it.
    """

    in_order = f" ORDER BY {', '.join(ARRIVAL)}"
    """Clause that gives rows of a table in the order in which they were written."""

    def __init__(self, client: Client, address: Address, run_id: str, run_date: datetime.date | None = None) -> None:
        self.place = address.of_run(run_id).text
        self.run_id = run_id
        self._client = client
        self._address = address
        seen = ledger.snapshot(client, address, run_id)
        date = seen.run_date or run_date or datetime.datetime.now(datetime.UTC).date()
        self._writer = ledger.Writer(client, address, run_id, seen, date)
        self._commit: ledger.Commit | None = None
        self._open = False
        self._positions: list[ledger.Position] = []

    @classmethod
    def open(cls, address: Address, run_id: str, *, started_unix_ns: int | None = None) -> Self:
        """Open for writing; tables and run are made where they are missing.

        Raises:
            StoreError: the database can't be reached or used.
        """
        client = connect(address)
        try:
            prepare(client, address)
            began_s = time.time() if started_unix_ns is None else started_unix_ns / 1e9
            date = datetime.datetime.fromtimestamp(began_s, datetime.UTC).date()
            return cls(client, address, run_id, date)
        except BaseException:
            client.close()
            raise

    @classmethod
    def open_read_only(cls, address: Address) -> Self:
        """Open the run that the address names by its id, the beginning of it, or its name.

        Raises:
            StoreError: the database can't be reached or used.
            NoDataError: there is no such run, or the name fits several.
        """
        client = connect(address)
        try:
            return cls(client, address, find(client, address))
        except BaseException:
            client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def is_new(self) -> bool:
        """Whether nothing of the run is there yet."""
        return self._writer.seen.newest == (0, 0)

    def append(self, table: str, rows: pa.Table) -> None:
        """Append an Arrow table, matched by column name; columns it lacks become NULL."""
        if not rows.num_rows:
            return
        with self._in_commit() as commit:
            commit.add(table, _typed(table, rows))

    def replace(self, table: str, rows: pa.Table, *, keys: Sequence[str] = ()) -> None:
        """Put rows in the place of those with equal keys; only for the few tables whose rows are replaced."""
        if table == LEDGER:
            with self._in_commit():
                self._positions += zip(*(rows.column(name).to_pylist() for name in _POSITION), strict=True)
            return
        if table not in NEWEST_ONLY or set(keys) - set(NEWEST_ONLY[table]):
            raise ValueError(f"rows of {table} are not replaced by {', '.join(keys) or 'nothing'}")
        self.append(table, rows)

    @contextmanager
    def transaction(self, *, supersede: bool = False) -> Iterator[None]:
        """All of it or nothing; `supersede` puts it in the place of all that the run has had so far."""
        self._open = True
        try:
            yield
            commit, self._commit = self._commit, None
            if commit is not None:
                commit.done(self._positions, supersede=supersede)
        except BaseException:
            self._writer.broken = True
            raise
        finally:
            self._open, self._commit = False, None
            self._positions = []

    @contextmanager
    def _in_commit(self) -> Iterator[ledger.Commit]:
        """The open transaction's commit, or one of its own."""
        if not self._open:
            with self.transaction(), self._in_commit() as commit:
                yield commit
            return
        if self._commit is None:
            self._commit = self._writer.begin()
        yield self._commit

    def query(self, select: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        with told(self._address):
            return [tuple(row) for row in self._client.query(self._asked(select, parameters)).result_rows]

    def arrays(self, select: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns of a SELECT as numpy arrays (masked where there are NULLs)."""
        found = self.arrow(select, parameters)
        return {name: _numpy(found.column(name)) for name in found.column_names}

    def arrow(self, select: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Columns of a SELECT as an Arrow table."""
        with told(self._address):
            return self._client.query_arrow(self._asked(select, parameters), use_strings=True)

    def batches(self, select: str) -> Iterator[dict[str, Any]]:
        """Rows of a SELECT without NULLs, some at a time: columns as numpy arrays. Other questions may come between."""
        for batch in self.arrow_batches(select):
            yield {name: values.to_numpy() for name, values in zip(batch.schema.names, batch.columns, strict=True)}

    def arrow_batches(self, select: str) -> Iterator[pa.RecordBatch]:
        """Rows of a SELECT, some at a time."""
        with told(self._address), self._client.query_arrow_stream(self._asked(select), use_strings=True) as stream:
            for part in stream:
                yield from part.to_batches() if isinstance(part, pa.Table) else [part]

    def limit_memory(self, megabytes: int) -> None:
        """How much is kept in memory is the server's own matter."""

    @cached_property
    def _rolled_up(self) -> list[str]:
        """Tables of rolled-up samples that hold rows of this run."""
        names = [name for name in STORED if name.endswith(ROLLUP_SUFFIX)]
        counts = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for name in names)
        return [name for name, rows in self.query(counts) if rows]

    def tables(self) -> list[str]:
        """Names of all tables of the run."""
        return sorted([LEDGER, *(name for name in STORED if not name.endswith(ROLLUP_SUFFIX)), *self._rolled_up])

    def columns(self, table: str) -> list[str]:
        """Names of a table's columns."""
        return list(_POSITION) if table == LEDGER else list(STORED[table].columns)

    def select_list(self, table: Table) -> str:
        """All columns of the schema's table for a SELECT."""
        return ", ".join(table.names)

    def meta(self) -> dict[str, str]:
        """Facts about the run's records."""
        kept = dict(self.query("SELECT key, value FROM meta"))
        return {"format": FORMAT, "schema_version": str(SCHEMA_VERSION), **kept}

    def set_meta(self, facts: Mapping[str, str]) -> None:
        """Write facts about the run's records; others stay."""
        self.replace(META, pa.table({"key": list(facts), "value": list(facts.values())}), keys=["key"])

    def forget_replaced(self) -> None:
        """Delete rows that nobody sees any more: of commits that were given up, and of replaced ones."""
        seen = self._writer.seen
        gone = sorted(seen.superseded | seen.void)
        if not gone:
            return
        gone_for_good = " OR ".join(
            [
                *(f"commit_epoch = {epoch}" for epoch in sorted(seen.superseded)),
                *(f"(commit_epoch, commit_number) = ({e}, {n})" for e, n in sorted(seen.hidden) if e in seen.void),
            ]
        )
        ours = f"run_id = {ledger.quoted(self.run_id)} AND ({gone_for_good})"
        delete(self._client, self._address, list(STORED), ours)

    def _asked(self, select: str, parameters: Sequence[object] = ()) -> str:
        """The SELECT in ClickHouse's words, about this run."""
        given = iter(parameters)
        select = _PARAMETER.sub(lambda _: _literal(next(given)), select)
        for wording, own in _DIALECT:
            select = wording.sub(own, select)
        named = [name for name in dict.fromkeys(_NAMED.findall(select)) if name in STORED or name == LEDGER]
        meant = ", ".join(f"{name} AS ({self._rows_of(name)})" for name in named)
        return f"WITH {meant} {select}" if meant else select

    def _rows_of(self, table: str) -> str:
        """SELECT of the rows of this run that count."""
        counts, rows = self._writer.seen.condition(self.run_id), f"{self._address.database}.{table}_rows"
        if table == LEDGER:
            return (
                f"SELECT {', '.join(_POSITION)} FROM {rows} WHERE kind = 'position' AND {counts} "
                "ORDER BY commit_epoch DESC, commit_number DESC LIMIT 1 BY stream"
            )
        columns = ", ".join((*STORED[table].columns, *ARRIVAL))
        return f"SELECT {columns} FROM {rows} WHERE {counts}{newest_first(table)}"


_POSITION = ("stream", "next_seq", "last_mono_ns")


def find(client: Client, address: Address) -> str:
    """Id of the run that an address names.

    Raises:
        NoDataError: there is none, or the name fits several.
    """
    if not is_there(client, address):
        raise NoDataError(f"{address.text}: there are no runs of starprof in this database")
    if not address.run:
        raise StoreError(f"{address.text} names no run: add /RUN; `starprof store list {address.text}` shows them")
    wanted = ledger.quoted(address.run)
    with told(address):
        rows = client.query(
            f"SELECT run_id, name FROM {address.database}.run "
            f"WHERE run_id = {wanted} OR name = {wanted} OR startsWith(run_id, {wanted}) ORDER BY run_id"
        ).result_rows
    exact = [run_id for run_id, _ in rows if run_id == address.run]
    if exact or len(rows) == 1:
        return str(exact[0] if exact else rows[0][0])
    if not rows:
        raise NoDataError(f"{address.text}: there is no such run; `starprof store list` shows those that are there")
    ids = ", ".join(run_id for run_id, _ in rows[:5])
    raise NoDataError(f"{address.text} fits {len(rows)} runs: name one by its id ({ids}{', …' * (len(rows) > 5)})")


def _typed(table: str, rows: pa.Table) -> pa.Table:
    """Rows with the table's types."""
    types = STORED[table].columns
    unknown = set(rows.column_names) - set(types)
    if unknown:
        raise ValueError(f"table {table} has no column {', '.join(sorted(unknown))}")
    return pa.table({name: rows.column(name).cast(_ARROW_TYPES[types[name]]) for name in rows.column_names})


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return ledger.quoted(value) if isinstance(value, str) else str(int(str(value)))


def _numpy(column: pa.ChunkedArray) -> Any:
    """A column as DuckDB gives it."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts = np.array([*column.to_pylist(), None], dtype=object)[:-1]
        return np.ma.masked_array(texts, mask=[t is None for t in texts]) if column.null_count else texts
    if pa.types.is_null(column.type):
        return np.ma.masked_array(np.zeros(len(column)), mask=True)
    if not column.null_count:
        return column.to_numpy()
    return np.ma.masked_array(column.fill_null(0).to_numpy(), mask=column.is_null().to_numpy())
