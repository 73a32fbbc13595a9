"""What the parts of the store need of the place where a run lies: a file, or a database of many runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from starprof.model.columns import Table


class ReadableRun(Protocol):
    """A run that can be asked. Questions are in the SQL that DuckDB and ClickHouse both understand.

    Attributes:
        place: what the user calls it.
        in_order: clause at the end of a SELECT from one table that keeps the order in which its rows were written.
    """

    @property
    def place(self) -> str:
        """What the user calls it."""
        ...

    @property
    def in_order(self) -> str:
        """Clause that gives a table's rows in the order in which they were written."""
        ...

    def query(self, select: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        ...

    def arrays(self, select: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns of a SELECT as numpy arrays (masked where there are NULLs)."""
        ...

    def batches(self, select: str) -> Iterator[dict[str, Any]]:
        """Rows of a SELECT without NULLs, some at a time: columns as numpy arrays. Other questions may come between."""
        ...

    def arrow_batches(self, select: str) -> Iterator[pa.RecordBatch]:
        """Rows of a SELECT, some at a time."""
        ...

    def limit_memory(self, megabytes: int) -> None:
        """How much of the run may be kept in memory from now on."""
        ...

    def tables(self) -> list[str]:
        """Names of all tables."""
        ...

    def columns(self, table: str) -> list[str]:
        """Names of a table's columns."""
        ...

    def select_list(self, table: Table) -> str:
        """All columns of the schema's table for a SELECT."""
        ...

    def meta(self) -> dict[str, str]:
        """Facts about the run's records."""
        ...


class WritableRun(ReadableRun, Protocol):
    """A run that rows can be added to."""

    def append(self, table: str, rows: pa.Table) -> None:
        """Append an Arrow table, matched by column name; columns it lacks become NULL."""
        ...

    def replace(self, table: str, rows: pa.Table, *, keys: Sequence[str] = ()) -> None:
        """Put rows in the place of those with equal keys; without keys, of all. For small tables."""
        ...

    def set_meta(self, facts: Mapping[str, str]) -> None:
        """Write facts about the run's records; others stay."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing."""
        ...
