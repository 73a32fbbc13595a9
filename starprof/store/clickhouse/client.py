"""A connection to a database, and what its errors mean to the user."""
# ruff: noqa: S608 - names and conditions in statements are our own

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starprof.errors import StoreError, UsageError
from starprof.store.clickhouse.address import Address
from starprof.store.clickhouse.tables import LEDGER, STORED, statements

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CONNECT_S = 10
ANSWER_S = 300

SETTINGS = {
    # As in SQL, and so in DuckDB.
    "join_use_nulls": 1,
    "cast_keep_nullable": 1,
    "union_default_mode": "DISTINCT",
    "prefer_column_name_to_alias": 1,
    # What is acknowledged is there: not in a queue of the server's, not on its way to a shard.
    "async_insert": 0,
    "distributed_foreground_insert": 1,
    # A commit's positions are one block, and so are there or not.
    "min_insert_block_size_bytes": 0,
}


class ConnectError(StoreError):
    """Nobody answers there; trying again later may help."""


_DISTRIBUTED = re.compile(r"Distributed\('([^']+)'")
_CAUSE = re.compile(r"""Caused by \w+\((?:.*: )?(.*?)['"]?\)""")


def connect(address: Address) -> Client:
    """Connect.

    Raises:
        UsageError: clickhouse-connect is not installed.
        StoreError: nobody answers, or nobody we are let in by.
    """
    try:
        import clickhouse_connect
    except ImportError:
        raise UsageError("clickhouse:// needs clickhouse-connect: pip install 'starprof[clickhouse]'") from None
    # Its log repeats on stderr what we tell in one line.
    logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())
    with told(address):
        return clickhouse_connect.get_client(
            host=address.host,
            port=address.port,
            username=address.user,
            password=address.password,
            interface="https" if address.tls else "http",
            verify=True,
            ca_cert=address.ca or None,
            settings=SETTINGS,
            # Without a session several questions may be asked at once.
            autogenerate_session_id=False,
            connect_timeout=CONNECT_S,
            send_receive_timeout=ANSWER_S,
        )


@contextmanager
def told(address: Address) -> Iterator[None]:
    """Turn errors of the client and the server into one line that names the place and never the password."""
    from clickhouse_connect.driver.exceptions import Error, OperationalError

    try:
        yield
    except Error as error:
        text = " ".join(str(error).split())
        if cause := _CAUSE.search(text):
            text = f"the server can't be reached: {cause[1]}"
        text = text[:400]
        if address.password:
            text = text.replace(address.password, "***")
        kind = ConnectError if isinstance(error, OperationalError) else StoreError
        raise kind(f"{address.text}: {text}") from None


def prepare(client: Client, address: Address) -> None:
    """Make the tables that are missing, and the columns that an older starprof did not know.

    Raises:
        StoreError: they can't be made, or must be made by hand because they are spread over a cluster.
    """
    with told(address):
        there = _columns(client, address.database)
        missing = {
            name: [c for c in ("run_id", *each.columns) if c not in there.get(f"{name}_rows", ())]
            for name, each in STORED.items()
        }
        complete = all(name in there for name in (*STORED, LEDGER, f"{LEDGER}_rows"))
        if complete and not any(missing.values()):
            return
        if _cluster(client, address.database):
            raise StoreError(
                f"{address.text}: tables of this cluster are older than this starprof: apply what "
                "`starprof store schema --cluster` prints"
            )
        for name, columns in missing.items():
            for column in columns if f"{name}_rows" in there else ():
                client.command(
                    f"ALTER TABLE {address.database}.{name}_rows ADD COLUMN IF NOT EXISTS "
                    f"{column} Nullable({STORED[name].columns[column]})"
                )
        for statement in statements(address.database):
            client.command(statement)


def delete(client: Client, address: Address, tables: Sequence[str], condition: str) -> None:
    """Delete rows of tables, in this order and on every shard.

    Raises:
        StoreError: they can't be deleted.
    """
    counts = " UNION ALL ".join(
        f"SELECT '{table}', count() FROM {address.database}.{table}_rows WHERE {condition}" for table in tables
    )
    with told(address):
        rows: list[Any] = list(client.query(counts).result_rows)
        held = {table for table, count in rows if count}
        cluster = _cluster(client, address.database)
        for table in tables:
            where = f"{table}_local ON CLUSTER '{cluster}'" if cluster else f"{table}_rows"
            if table in held:
                client.command(f"DELETE FROM {address.database}.{where} WHERE {condition}")


def is_there(client: Client, address: Address) -> bool:
    """Whether starprof's tables are in the database."""
    with told(address):
        return f"{LEDGER}_rows" in _columns(client, address.database)


def _columns(client: Client, database: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    rows: list[Any] = list(
        client.query(
            "SELECT table, name FROM system.columns WHERE database = {database:String}",
            parameters={"database": database},
        ).result_rows
    )
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found


def _cluster(client: Client, database: str) -> str:
    """Name of the cluster over which the tables are spread; "" = they are not."""
    rows = client.query(
        "SELECT engine_full FROM system.tables WHERE database = {database:String} AND engine = 'Distributed' LIMIT 1",
        parameters={"database": database},
    ).result_rows
    found = _DISTRIBUTED.match(str(rows[0][0])) if rows else None
    return found[1] if found else ""
