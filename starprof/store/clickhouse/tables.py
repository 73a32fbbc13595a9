"""The tables of a database with runs, as SQL: those of the record model, and a ledger.

For each table of the schema, such as `step`, there are

    step_rows   the rows, each with the run it belongs to and the commit that brought it
    step        a view of it without the rows of commits that did not come to their end: what people ask

and `ledger_rows` with the commits themselves (see `starprof.store.clickhouse.ledger`). A partition is a month of runs.
On a cluster `step_rows` spreads over the shards, whole runs at a time, and each shard keeps its part in `step_local`.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from starprof.errors import UsageError
from starprof.model.columns import Kind
from starprof.model.schema import TABLES, Table
from starprof.store.rollup import rolled_up_columns
from starprof.store.runfile import BOOKKEEPING

LEDGER, META = "ledger", "meta"
ROLLUP_SUFFIX = "_rollup"
LEDGER_KINDS = ("position", "begun", "done", "void", "superseded")
ARRIVAL = ("commit_epoch", "commit_number", "commit_row")
"""Writer, its commit, and the place of the row in that: in this order rows were written."""

NEWEST_ONLY: dict[str, tuple[str, ...]] = {
    "run": (),
    "attempt": ("attempt",),
    "rank": ("attempt", "rank"),
    META: ("key",),
}
"""Tables of which a later row replaces an earlier one of the same run and these columns."""

_TYPES = {"BIGINT": "Int64", "DOUBLE": "Float64", "FLOAT": "Float32", "VARCHAR": "String"}
_CODECS = {Kind.KEY: "Delta, ", Kind.TIME: "DoubleDelta, ", Kind.COUNTER: "Delta, "}
_CLUSTER = re.compile(r"[A-Za-z0-9_{}.-]+")
_WINDOW = 10_000
"""Blocks whose tokens the server remembers, so that one that is sent twice is taken once."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tables are laid out on servers.

    Attributes:
        cluster: name of the cluster in the servers' configuration; "" = one server.
        keep_days: rows of runs that began longer ago are dropped; 0 = never.
    """

    cluster: str = ""
    keep_days: int = 0

    def __post_init__(self) -> None:
        if self.cluster and not _CLUSTER.fullmatch(self.cluster):
            raise UsageError(f"{self.cluster!r} is no name of a cluster")
        if self.keep_days < 0:
            raise UsageError("rows can't be kept for less than no time")


@dataclass(frozen=True, slots=True)
class Stored:
    """One table as it is stored.

    Attributes:
        columns: its own columns, without the run and the commit: name -> type.
        order: columns by which the rows of a run are sorted on disk.
        codecs: how columns are packed, where not as they come.
    """

    name: str
    columns: dict[str, str]
    order: tuple[str, ...]
    codecs: dict[str, str]

    def ddl(self) -> str:
        """Its columns for CREATE TABLE. `run_id` of table `run` is the same as everybody's."""
        own = [
            f"{name} Nullable({kind}) CODEC({self.codecs.get(name, '')}ZSTD(1))"
            for name, kind in self.columns.items()
            if name != "run_id"
        ]
        commit = [
            "commit_epoch UInt64 CODEC(ZSTD(1))",
            "commit_number UInt32 CODEC(ZSTD(1))",
            "commit_row UInt32 CODEC(Delta, ZSTD(1))",
            "INDEX of_commit (commit_epoch, commit_number) TYPE minmax GRANULARITY 1",
        ]
        return ", ".join(["run_id LowCardinality(String)", "run_date Date", *own, *commit])


def stored(table: Table) -> Stored:
    """How a table of the schema is stored: sorted by what its rows are about, then by time."""
    order = [c.name for c in table.columns if c.kind is Kind.KEY]
    order += [c.name for c in table.columns if c.kind is Kind.TIME][:1]
    types = {c.name: _TYPES[c.type.value] for c in table.columns}
    codecs = {c.name: _CODECS[c.kind] for c in table.columns if c.kind in _CODECS and types[c.name] == "Int64"}
    return Stored(table.name, types, tuple(order) if table.name not in NEWEST_ONLY else NEWEST_ONLY[table.name], codecs)


def _rolled_up(table: Table) -> Stored:
    types = {name: _TYPES[kind] for name, kind in (column.split() for column in rolled_up_columns(table))}
    keys = [c.name for c in table.columns if c.kind is Kind.KEY]
    return Stored(f"{table.name}{ROLLUP_SUFFIX}", types, (*keys, "mono_ns"), {"mono_ns": _CODECS[Kind.TIME]})


STORED: dict[str, Stored] = {
    each.name: each
    for each in (
        *map(stored, TABLES),
        *(_rolled_up(table) for table in TABLES if table.sampled),
        Stored(META, {name: _TYPES[kind] for name, kind in BOOKKEEPING[META].items()}, ("key",), {}),
    )
}
"""All tables but the ledger."""


def statements(database: str, layout: Layout | None = None) -> Iterator[str]:
    """Everything that has to exist, in order; nothing happens to what is there."""
    maker = _Maker(database, layout or Layout())
    yield f"CREATE DATABASE IF NOT EXISTS {database}{maker.on}"
    yield from maker.table(
        LEDGER, _ledger_columns(), ("kind", "run_id", "commit_epoch", "stream", "slot"), "Replacing", "(commit_number)"
    )
    yield maker.view(LEDGER, _positions(database))
    for each in STORED.values():
        yield from maker.table(each.name, each.ddl(), ("run_id", *each.order))
        yield maker.view(each.name, _visible(database, each))


def hidden(database: str) -> str:
    """Commits that were begun and not done, or given up: (run, writer, number)."""
    return (
        "SELECT run_id, commit_epoch, maxIf(r.commit_number, kind = 'begun') AS begun "
        f"FROM {database}.{LEDGER}_rows AS r WHERE kind IN ('begun', 'done', 'void') GROUP BY run_id, commit_epoch "
        "HAVING begun > maxIf(r.commit_number, kind = 'done') OR countIf(kind = 'void') > 0"
    )


def superseded(database: str) -> str:
    """Writers all of whose commits a later one has replaced: (run, writer)."""
    return f"SELECT run_id, commit_epoch FROM {database}.{LEDGER}_rows WHERE kind = 'superseded'"


def newest_first(name: str, *more: str) -> str:
    """Clause that leaves of rows that replace each other the last one; "" for other tables."""
    if name not in NEWEST_ONLY:
        return ""
    by = ", ".join((*more, *NEWEST_ONLY[name]))
    order = ", ".join(f"{column} DESC" for column in ARRIVAL)
    return f" ORDER BY {order} LIMIT 1{f' BY {by}' if by else ''}"


@dataclass(frozen=True, slots=True)
class _Maker:
    """Writes the statements for one database."""

    database: str
    layout: Layout

    @property
    def on(self) -> str:
        return f" ON CLUSTER '{self.layout.cluster}'" if self.layout.cluster else ""

    def table(
        self, name: str, columns: str, order: tuple[str, ...], engine: str = "", arguments: str = "()"
    ) -> Iterator[str]:
        """Statements for a table's rows; on a cluster the shards' own parts and what spreads over them."""
        clustered = bool(self.layout.cluster)
        local = f"{self.database}.{name}_{'local' if clustered else 'rows'}"
        days = self.layout.keep_days
        expiry = f" TTL run_date + INTERVAL {days} DAY" if days else ""
        settings = f"allow_nullable_key = 1, non_replicated_deduplication_window = {_WINDOW}"
        settings += ", ttl_only_drop_parts = 1" if days else ""
        yield (
            f"CREATE TABLE IF NOT EXISTS {local}{self.on} ({columns}) "
            f"ENGINE = {'Replicated' if clustered else ''}{engine}MergeTree{arguments} "
            f"PARTITION BY toYYYYMM(run_date) ORDER BY ({', '.join(order)}){expiry} SETTINGS {settings}"
        )
        if clustered:
            yield (
                f"CREATE TABLE IF NOT EXISTS {self.database}.{name}_rows{self.on} AS {local} ENGINE = "
                f"Distributed('{self.layout.cluster}', '{self.database}', '{name}_local', cityHash64(run_id))"
            )

    def view(self, name: str, select: str) -> str:
        return f"CREATE OR REPLACE VIEW {self.database}.{name}{self.on} AS {select}"


def _ledger_columns() -> str:
    kinds = ", ".join(f"'{kind}' = {number}" for number, kind in enumerate(LEDGER_KINDS, 1))
    return (
        f"run_id LowCardinality(String), run_date Date, kind Enum8({kinds}), commit_epoch UInt64, "
        "commit_number UInt32, slot UInt32, stream String, next_seq Nullable(Int64), last_mono_ns Nullable(Int64), "
        "writer LowCardinality(String), at DateTime64(3) DEFAULT now64(3)"
    )


def _counts(database: str) -> str:
    """Condition of rows that belong to commits that count."""
    return (
        f"(run_id, commit_epoch, commit_number) GLOBAL NOT IN ({hidden(database)}) "
        f"AND (run_id, commit_epoch) GLOBAL NOT IN ({superseded(database)})"
    )


def _visible(database: str, each: Stored) -> str:
    columns = ", ".join(dict.fromkeys(("run_id", *each.columns)))
    return (
        f"SELECT {columns} FROM {database}.{each.name}_rows WHERE {_counts(database)}"
        f"{newest_first(each.name, 'run_id')}"
    )


def _positions(database: str) -> str:
    return (
        "SELECT run_id, stream, next_seq, last_mono_ns "
        f"FROM {database}.{LEDGER}_rows WHERE kind = 'position' AND {_counts(database)} "
        "ORDER BY commit_epoch DESC, commit_number DESC LIMIT 1 BY run_id, stream"
    )
