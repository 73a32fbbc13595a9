"""Rows between the collectors and the spool: gathered per table, packed once a second, numbered when written.

Packing a second's rows at once is several times cheaper than packing each when it is made, because at 10 Hz the
caches are cold at every tick.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from starprof.model.schema import BY_CODE, Table, packed_cells
from starprof.spool.frame import PACKED, Frame, json_frame

Rows = dict[int, list[Sequence[object]]]
"""Rows by the code of their table."""


class RowBuffer:
    """Gathers rows; used by one thread."""

    def __init__(self) -> None:
        self._rows: Rows = {}

    def add(self, table: Table, row: Sequence[object]) -> None:
        """Append one row in the table's column order."""
        rows = self._rows.get(table.code)
        if rows is None:
            rows = self._rows[table.code] = []
        rows.append(row)

    def take(self) -> Rows:
        """All rows since the last call."""
        taken, self._rows = self._rows, {}
        return taken


class Streams:
    """Numbers the rows of one agent process: one stream per table, `<prefix>/<table>`, from 0 without holes.

    Numbers count only when `commit` says that the frames are in the spool: rows that were dropped leave no hole.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._next: dict[int, int] = {}
        self._uncommitted: dict[int, int] = {}
        packed = [table for table in BY_CODE.values() if table.packed]
        self._pack = {table.code: struct.Struct(table.struct_format).pack for table in packed}
        self._nulls = {table.code: packed_cells(table, [None] * len(table.columns)) for table in packed}

    def frames(self, rows: Rows) -> list[Frame]:
        """One frame for each table."""
        self._uncommitted = {}
        return [self._frame(BY_CODE[code], content) for code, content in rows.items() if content]

    def _frame(self, table: Table, rows: list[Sequence[object]]) -> Frame:
        seq = self._next.get(table.code, 0)
        self._uncommitted[table.code] = seq + len(rows)
        stream = f"{self._prefix}/{table.name}"
        if not table.packed:
            return json_frame(table, stream, seq, rows)
        payload = b"".join([self._packed(table, r) for r in rows])
        return Frame(table, stream, seq, len(rows), PACKED, payload)

    def _packed(self, table: Table, row: Sequence[object]) -> bytes:
        pack = self._pack[table.code]
        try:
            return pack(*row)
        except struct.error:  # a None: the usual rows of the fast tables hold their NULLs packed already
            return pack(*(null if v is None else v for v, null in zip(row, self._nulls[table.code], strict=True)))

    def commit(self) -> None:
        """The frames made last are in the spool."""
        self._next |= self._uncommitted
        self._uncommitted = {}
