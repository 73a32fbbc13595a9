"""A run file: one DuckDB file with the tables of the record model, a ledger and a few facts about itself.

    meta    (key, value)                        format, schema_version, what was rolled up
    ledger  (stream, next_seq, last_mono_ns)    how far each stream is folded in, see `starprof.store.batch`

Tables are append-only, without keys and indexes, and rows go in by Arrow batch only: `RunFile` offers nothing
that could insert a single row. The storage version is pinned, so that every DuckDB from 1.2 on can open the file.
"""
# ruff: noqa: S608 - names in statements are the schema's own, and quoted

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from starprof.errors import RunFileError, UsageError
from starprof.model.schema import BY_NAME, SCHEMA_VERSION, TABLES, Table
from starprof.store import migrate

STORAGE_VERSION = "v1.2.0"
BLOCK_BYTES = 64 << 10
"""Size of a block of the file. A column of a row group begins a block of its own as soon as it fills most of one: with
DuckDB's own 256 KiB, 14 bits a value take 17. Smaller than this, and long columns are no longer packed at all."""

_NEW_FILE = f"(STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {BLOCK_BYTES})"
FORMAT = "starprof"
BOOKKEEPING = {
    "meta": {"key": "VARCHAR", "value": "VARCHAR"},
    "ledger": {"stream": "VARCHAR", "next_seq": "BIGINT", "last_mono_ns": "BIGINT"},
}
_HOLDER = re.compile(r"\(PID (\d+)\)")
_NO_SPACE = ("No space left", "not enough space", "failed to offload")
_RETRY_S = 0.05
_ROWS_AT_ONCE = 10_000
_LOCKS = ("enable_external_access = false", "python_enable_replacements = false", "lock_configuration = true")
_QUESTIONS = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}


class RunFileLocked(RunFileError):  # noqa: N818 - reads as the fact that it reports
    """Another process has the file open; trying again later may help."""


class RunFile:
    """An open run file; use it as a context manager.

    Attributes:
        path: the file.
        schema_version: of the file; older than this program's only when opened for reading.
    """

    in_order = ""
    """DuckDB gives rows in the order in which they were written (see `ClickHouseRun`, which has to be asked)."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self.path = path
        self._connection = connection
        self._locked = False
        self.schema_version = self._check_format()

    @classmethod
    def open(cls, path: Path, *, wait_s: float = 0.0, memory_mb: int = 48, threads: int = 1) -> Self:
        """Open for writing; a missing file is created, an older one is migrated.

        Raises:
            RunFileLocked: another process still has it open after `wait_s` seconds.
            RunFileError: it can't be opened, isn't a run file, or is of a newer schema.
        """
        connection = _attach(path, read_only=False, wait_s=wait_s, memory_mb=memory_mb, threads=threads)
        try:
            with _told(path):
                if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE database_name = 'run'").fetchone():
                    _create_tables(connection)
                run = cls(path, connection)
                run._migrate()
        except BaseException:
            connection.close()
            raise
        return run

    @classmethod
    def open_read_only(cls, path: Path, *, wait_s: float = 0.0, memory_mb: int = 1024, threads: int = 2) -> Self:
        """Open for reading; raises as `open` does, also when the file does not exist."""
        if not path.exists():
            raise RunFileError(f"{path} does not exist: record a run first, or check the name")
        connection = _attach(path, read_only=True, wait_s=wait_s, memory_mb=memory_mb, threads=threads)
        try:
            with _told(path):
                return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    @property
    def place(self) -> str:
        """What the user calls it."""
        return str(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close; the write-ahead log goes into the file."""
        with _told(self.path):
            self._connection.close()

    def append(self, table: str, rows: pa.Table) -> None:
        """Append an Arrow table, matched by column name; columns it lacks become NULL."""
        # A replacement scan of a local name, not `register`: the view would keep the batch until the commit.
        if not rows.num_rows:
            return
        arrow_batch = rows  # noqa: F841 - DuckDB finds it by its name
        with _told(self.path):
            self._connection.execute(f"INSERT INTO {_quoted(table)} BY NAME SELECT * FROM arrow_batch")

    def replace(self, table: str, rows: pa.Table, *, keys: Sequence[str] = ()) -> None:
        """Put rows in the place of those with equal keys; without keys, of all. For small tables."""
        arrow_batch = rows
        name = _quoted(table)
        equal = " AND ".join(f"arrow_batch.{_quoted(k)} IS NOT DISTINCT FROM {name}.{_quoted(k)}" for k in keys)
        where = f" WHERE EXISTS (SELECT 1 FROM arrow_batch WHERE {equal})" if keys else ""
        with _told(self.path):
            self._connection.execute(f"DELETE FROM {name}{where}")
        self.append(table, arrow_batch)

    def bulk(self, statement: str) -> None:
        """Run DDL, or a statement that moves or deletes whole sets of rows inside the database."""
        for parsed in self._connection.extract_statements(statement):
            if parsed.type == duckdb.StatementType.INSERT and re.search(r"\bVALUES\b", parsed.query, re.IGNORECASE):
                raise ValueError("rows are appended by Arrow batch only")
        with _told(self.path):
            self._connection.execute(statement)

    def query(self, select: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        return self._select(select, parameters).fetchall()

    def arrays(self, select: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns of a SELECT as numpy arrays (masked where there are NULLs)."""
        return dict(self._select(select, parameters).fetchnumpy())

    def batches(self, select: str) -> Iterator[dict[str, Any]]:
        """Rows of a SELECT without NULLs, some at a time: columns as numpy arrays. Other questions may come between."""
        for batch in self.arrow_batches(select):
            yield {name: values.to_numpy() for name, values in zip(batch.schema.names, batch.columns, strict=True)}

    def arrow_batches(self, select: str) -> Iterator[pa.RecordBatch]:
        """Rows of a SELECT, some at a time. Other questions may come between."""
        with _told(self.path):
            cursor = self._connection.cursor()
            try:
                cursor.execute("USE run")
                yield from pa.RecordBatchReader.from_stream(cursor.sql(select))
            finally:
                cursor.close()

    def limit_memory(self, megabytes: int) -> None:
        """How much of the file may be kept in memory from now on."""
        with _told(self.path):
            self._connection.execute(f"SET memory_limit = '{megabytes}MB'")

    def answer(self, statement: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Column names and rows of a user's own query, which can reach nothing but this file.

        Afterwards the connection stays locked: no settings, no other files, no variables of this program.

        Raises:
            UsageError: it is wrong, or more than one question.
        """
        if not self._locked:
            with _told(self.path):
                for setting in _LOCKS:
                    self._connection.execute(f"SET {setting}")
            self._locked = True
        try:
            parsed = self._connection.extract_statements(statement)
            if len(parsed) != 1 or parsed[0].type not in _QUESTIONS:
                raise UsageError("only one SELECT (or DESCRIBE, SHOW, SUMMARIZE, EXPLAIN) is answered")
            result = self._connection.execute(parsed[0])
        except duckdb.Error as error:
            raise UsageError(f"the query can't be answered: {str(error).splitlines()[0]}") from error
        return [column[0] for column in result.description or ()], self._fetched(result)

    def _fetched(self, result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
        with _told(self.path):
            while rows := result.fetchmany(_ROWS_AT_ONCE):
                yield from rows

    @contextmanager
    def attached(self, path: Path) -> Iterator[set[str]]:
        """Another run file, read-only, under the name `source` in statements; gives the names of its tables."""
        with _told(path):
            self._connection.execute(f"ATTACH '{_escaped(path)}' AS source (READ_ONLY)")
        try:
            yield {n for (n,) in self.query("SELECT table_name FROM duckdb_tables() WHERE database_name = 'source'")}
        finally:
            self._connection.execute("DETACH source")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        with _told(self.path):
            self._connection.begin()
            try:
                yield
                self._connection.commit()
            except BaseException:
                self._roll_back()
                raise

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file and give blocks free that no row needs."""
        with _told(self.path):
            self._connection.execute("CHECKPOINT run")

    def tables(self) -> list[str]:
        """Names of all tables in the file."""
        found = self.query("SELECT table_name FROM duckdb_tables() WHERE database_name = 'run' ORDER BY 1")
        return [name for (name,) in found]

    def columns(self, table: str) -> list[str]:
        """Names of a table's columns in the file."""
        found = self.query(
            "SELECT column_name FROM duckdb_columns() WHERE database_name = 'run' AND table_name = ? "
            "ORDER BY column_index",
            [table],
        )
        return [name for (name,) in found]

    def select_list(self, table: Table) -> str:
        """All columns of the schema's table for a SELECT: NULL for those that an older file lacks."""
        there = set(self.columns(table.name))
        return ", ".join(
            _quoted(c.name) if c.name in there else f"NULL::{c.type.value} AS {_quoted(c.name)}" for c in table.columns
        )

    def meta(self) -> dict[str, str]:
        """Facts about the file itself."""
        return dict(self.query("SELECT key, value FROM meta"))

    def set_meta(self, facts: Mapping[str, str]) -> None:
        """Write facts about the file itself; others stay."""
        rows = pa.table({"key": list(facts), "value": list(facts.values())})
        self.replace("meta", rows, keys=["key"])

    def _select(self, select: str, parameters: Sequence[object]) -> duckdb.DuckDBPyConnection:
        with _told(self.path):
            (parsed,) = self._connection.extract_statements(select)
            if parsed.type != duckdb.StatementType.SELECT:
                raise ValueError(f"not a SELECT: {select}")
            return self._connection.execute(parsed, list(parameters))

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except duckdb.Error:  # a failed commit has already rolled back, or made the database unusable
            return

    def _check_format(self) -> int:
        there = self._connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = 'run' AND table_name = 'meta'"
        ).fetchone()
        facts = self.meta() if there else {}
        if facts.get("format") != FORMAT:
            raise RunFileError(f"{self.path} is a DuckDB file, but not a run that starprof recorded")
        version = int(facts["schema_version"])
        if version > SCHEMA_VERSION:
            raise RunFileError(
                f"{self.path} has record schema {version}, this starprof reads up to {SCHEMA_VERSION}: upgrade starprof"
            )
        return version

    def _migrate(self) -> None:
        if self.schema_version == SCHEMA_VERSION:
            return
        with self.transaction():
            for statement in migrate.statements(self.schema_version):
                self.bulk(statement)
            self.set_meta({"schema_version": str(SCHEMA_VERSION)})
        self.checkpoint()
        self.schema_version = SCHEMA_VERSION


def table_ddl(table: Table) -> str:
    """CREATE TABLE of one table of the schema."""
    columns = ", ".join(f"{_quoted(c.name)} {c.type.value}" for c in table.columns)
    return f"CREATE TABLE {_quoted(table.name)} ({columns})"


def arrow_type(column_type: str) -> pa.DataType:
    """Arrow type of a DuckDB column type that the schema uses."""
    return {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "VARCHAR": pa.string()}[column_type]


def arrow_rows(table: str, rows: Sequence[Sequence[object]]) -> pa.Table:
    """Rows of a table of the schema, or of the ledger or meta, as an Arrow table."""
    types = {c.name: c.type.value for c in BY_NAME[table].columns} if table in BY_NAME else BOOKKEEPING[table]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return pa.table(
        [pa.array(cells, arrow_type(t)) for cells, t in zip(columns, types.values(), strict=True)], names=list(types)
    )


def copy_database(source: Path, target: Path) -> None:
    """Copy all tables of one database file to a new one, whatever is in them."""
    with duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "128MB"}) as connection, _told(target):
        connection.execute(f"ATTACH '{_escaped(source)}' AS source (READ_ONLY)")
        connection.execute(f"ATTACH '{_escaped(target)}' AS target {_NEW_FILE}")
        connection.execute("COPY FROM DATABASE source TO target")
        connection.execute("CHECKPOINT target")


def _attach(path: Path, *, read_only: bool, wait_s: float, memory_mb: int, threads: int) -> duckdb.DuckDBPyConnection:
    is_new = not (path.exists() and path.stat().st_size)
    options = "(READ_ONLY)" if read_only else _NEW_FILE if is_new else ""
    give_up = time.monotonic() + wait_s
    while True:
        connection = duckdb.connect(
            ":memory:",
            config={"threads": threads, "memory_limit": f"{memory_mb}MB", "temp_directory": f"{path}.tmp"},
        )
        try:
            with _told(path):
                connection.execute(f"ATTACH '{_escaped(path)}' AS run {options}")
                connection.execute("USE run")
        except RunFileLocked:
            connection.close()
            if time.monotonic() >= give_up:
                raise
            time.sleep(_RETRY_S)
        except BaseException:
            connection.close()
            raise
        else:
            return connection


def _create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """All tables in one transaction, then a checkpoint: DDL never has to be replayed from the log."""
    facts = pa.table({"key": ["format", "schema_version"], "value": [FORMAT, str(SCHEMA_VERSION)]})
    assert facts.num_rows == 2
    connection.begin()
    for table in TABLES:
        connection.execute(table_ddl(table))
    for name, columns in BOOKKEEPING.items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(f'{c} {t}' for c, t in columns.items())})")
    connection.execute("INSERT INTO meta BY NAME SELECT * FROM facts")
    connection.commit()
    connection.execute("CHECKPOINT run")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors about the file into one line that says what to do."""
    try:
        yield
    except duckdb.Error as error:
        raise _explained(path, str(error)) from error


def _explained(path: Path, message: str) -> RunFileError:
    holder = _HOLDER.search(message)
    if holder and "lock" in message:
        return RunFileLocked(f"{path} is in use by process {holder[1]}: wait until it is done, or stop it")
    if "already attached" in message or "unique file handle" in message:
        return RunFileLocked(f"{path} is already open in this process ({os.getpid()})")
    if any(text in message for text in _NO_SPACE):
        return RunFileError(
            f"no space left for {path}: free some and run the command again; the spool still has the rows"
        )
    if "not a valid DuckDB database file" in message:
        return RunFileError(f"{path} was not written by starprof")
    if "version number" in message or "newer version" in message or "storage version" in message.lower():
        return RunFileError(f"{path} was written by another version of DuckDB: upgrade the duckdb package")
    first_line = message.splitlines()[0]
    return RunFileError(f"{path}: {first_line}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _escaped(path: Path) -> str:
    return str(path).replace("'", "''")
