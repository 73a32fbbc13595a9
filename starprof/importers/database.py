"""Runs in databases, named by their addresses: `analyze` gives them their verdicts beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starprof.errors import UsageError
from starprof.importers.source import Source
from starprof.model.rundata import RunData
from starprof.store.clickhouse.address import is_address
from starprof.store.query import load_run

NAME = "clickhouse"


def recognises(source: Source) -> bool:
    """Whether the source is an address and no file."""
    return is_address(source.name)


def read(sources: Sequence[Source]) -> RunData:
    """Read a run.

    Raises:
        StoreError: the database can't be reached or used.
        NoDataError: there is no such run.
    """
    (source,) = sources
    return load_run(source.name)


def sources_of(paths: Sequence[str]) -> list[Source]:
    """Addresses among the paths as sources; empty when there are none.

    Raises:
        UsageError: there are files among them.
    """
    files = [path for path in paths if not is_address(path)]
    if len(files) == len(paths):
        return []
    if files:
        raise UsageError(f"runs in databases are analyzed without files beside them: leave {files[0]} away")
    return [Source(path, Path(path)) for path in paths]
