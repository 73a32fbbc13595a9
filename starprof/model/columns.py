"""What a column and a table are, and the short constructors with which the tables are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

INT_NULL = -(2**63)
"""NULL of an integer cell in a packed row (a float cell uses NaN)."""


class Kind(Enum):
    """What a column's values mean; it decides how long runs are rolled up."""

    KEY = "key"  # identifies what the row is about; rows are grouped by it
    TIME = "time"  # when the row was taken
    COUNTER = "counter"  # cumulative since some start: only differences mean something
    GAUGE = "gauge"  # a value at that moment
    FACT = "fact"  # a property that does not change or text


class Type(Enum):
    """Storage type: the DuckDB name."""

    INT = "BIGINT"
    FLOAT = "DOUBLE"
    TEXT = "VARCHAR"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name carries the unit, `doc` says what was measured."""

    name: str
    type: Type
    kind: Kind
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        code: number of the table in spool frames; never reused.
        packed: rows are fixed-width 8-byte cells (no text column), for high rates; otherwise JSON rows.
        sampled: a time series of counters that `--max-size` may roll up.
    """

    code: int
    name: str
    doc: str
    columns: tuple[Column, ...]
    packed: bool = False
    sampled: bool = False

    def __post_init__(self) -> None:
        if self.packed and any(c.type is Type.TEXT for c in self.columns):
            raise ValueError(f"table {self.name}: packed rows hold no text")

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(c.name for c in self.columns)

    @property
    def struct_format(self) -> str:
        """`struct` format of one packed row: little-endian, 8 bytes a cell."""
        return "<" + "".join("d" if c.type is Type.FLOAT else "q" for c in self.columns)


def integer(name: str, kind: Kind, doc: str) -> Column:
    """An integer column of any kind."""
    return Column(name, Type.INT, kind, doc)


def key(name: str, doc: str) -> Column:
    """An integer that says what the row is about."""
    return Column(name, Type.INT, Kind.KEY, doc)


def counter(name: str, doc: str) -> Column:
    """A cumulative integer."""
    return Column(name, Type.INT, Kind.COUNTER, doc)


def gauge(name: str, doc: str) -> Column:
    """An integer value at that moment."""
    return Column(name, Type.INT, Kind.GAUGE, doc)


def real(name: str, doc: str) -> Column:
    """A floating-point value at that moment."""
    return Column(name, Type.FLOAT, Kind.GAUGE, doc)


def fact(name: str, doc: str) -> Column:
    """An integer property."""
    return Column(name, Type.INT, Kind.FACT, doc)


def text(name: str, doc: str) -> Column:
    """A text property."""
    return Column(name, Type.TEXT, Kind.FACT, doc)


NODE_KEY = key("node", "node id within the run, 0 is the node that holds the run file")
AT = integer("mono_ns", Kind.TIME, "when the sample was taken, CLOCK_MONOTONIC of the node")
ATTEMPT_KEY = key("attempt", "restart count of the job (elastic restarts), 0 first")
RANK_KEY = key("rank", "global rank")


def row(table: Table, **values: object) -> list[object]:
    """Lay named values out in column order; columns not given are NULL.

    Raises:
        KeyError: a name is not a column of the table.
    """
    unknown = values.keys() - set(table.names)
    if unknown:
        raise KeyError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    return [values.get(name) for name in table.names]


def packed_cells(table: Table, values: Iterable[int | float | None]) -> list[int | float]:
    """Replace None by the packed NULL of each column's type."""
    return [
        (float("nan") if c.type is Type.FLOAT else INT_NULL) if v is None else v
        for c, v in zip(table.columns, values, strict=True)
    ]
