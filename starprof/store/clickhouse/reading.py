"""Opens a run in a database for those who judge it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.run import ClickHouseRun


@contextmanager
def open_run(place: str | Path) -> Iterator[tuple[ClickHouseRun, str]]:
    """Open a run by its address, and say what the user should know about its state.

    Raises:
        UsageError: the address can't be used.
        StoreError: the database can't be reached or used.
        NoDataError: there is no such run.
    """
    with ClickHouseRun.open_read_only(parse(place)) as run:
        yield run, _note(run)


def _note(run: ClickHouseRun) -> str:
    rows = run.query("SELECT started_unix_ns, ended_unix_ns, source_format FROM run")
    if rows and rows[0][0] is not None and rows[0][1] is None and rows[0][2] is None:
        return f"{run.place} has no end: it is still being recorded, or its recorder was cut off"
    return ""
