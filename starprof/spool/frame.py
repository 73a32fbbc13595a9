"""Spool frames: the unit that is written at once, checked on reading, and folded in exactly once.

A frame carries consecutive rows of ONE table in ONE stream. A stream is named by whoever makes the rows (a ring,
or an agent's table) and numbers its rows from 0 without holes, so `seq` (number of the frame's first row) and
`rows` are enough to fold every row in exactly once, whoever carried it and however often it was sent. A hole
in the numbers is what was lost; the ingester records it as a gap. The frames of a ring's two tables share one
stream, numbered by slot (see `starprof.spool.ringreader`).

    0  4s   magic "SPF1"
    4  u32  crc32 of everything after this field
    8  u32  payload bytes       12  u16  table code     14  u8  encoding     15  u8  stream name bytes
   16  u64  seq                 24  u32  rows           28  stream name, payload

Encodings: PACKED, rows of 8-byte cells as `Table.struct_format` says; JSON, a list of row lists.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from starprof.errors import SpoolError
from starprof.model.columns import Type
from starprof.model.schema import BY_CODE, Table, packed_cells

MAGIC = b"SPF1"
PACKED = 1
JSON = 2
_HEADER = struct.Struct("<4sIIHBBQI")
_PREFIX_BYTES = 8
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
STREAMED_BYTES = 16 * 1024 * 1024
"""Longest payload that is sent to another node as a stream: a whole ring at once is shorter."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame; `payload` is still encoded (see `json_rows`)."""

    table: Table
    stream: str
    seq: int
    rows: int
    encoding: int
    payload: bytes

    def check(self) -> None:
        """A good checksum does not prove that the rows fit the table; of JSON frames `json_rows` checks the rest.

        Raises:
            SpoolError: they don't.
        """
        name = self.table.name
        if self.encoding == PACKED:
            if not self.table.packed:
                raise SpoolError(f"table {name} has text, but its rows are packed")
            if len(self.payload) != self.rows * 8 * len(self.table.columns):
                raise SpoolError(f"rows of table {name} are of another version")
        elif self.encoding != JSON:
            raise SpoolError(f"encoding {self.encoding} is not known")

    def json_rows(self) -> list[list[object]]:
        """Rows of a JSON frame, as many as it says, whose cells fit their columns.

        Raises:
            SpoolError: they don't.
        """
        name, width = self.table.name, len(self.table.columns)
        try:
            rows: list[list[object]] = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise SpoolError(f"rows of table {name} are no JSON") from error
        as_told = isinstance(rows, list) and len(rows) == self.rows
        if not as_told or any(not isinstance(cells, list) or len(cells) != width for cells in rows):
            raise SpoolError(f"rows of table {name} are of another version")
        for position, column in enumerate(self.table.columns):
            if not all(_fits(cells[position], column.type) for cells in rows):
                raise SpoolError(f"a cell of {name}.{column.name} is no {column.type.value}")
        return rows

    def encode(self) -> bytes:
        """The frame as bytes, with its checksum."""
        name = self.stream.encode()
        head = _HEADER.pack(MAGIC, 0, len(self.payload), self.table.code, self.encoding, len(name), self.seq, self.rows)
        body = b"".join((head[_PREFIX_BYTES:], name, self.payload))
        return b"".join((MAGIC, zlib.crc32(body).to_bytes(4, "little"), body))


def _fits(cell: object, kind: Type) -> bool:
    if cell is None:
        return True
    if kind is Type.TEXT:
        return isinstance(cell, str)
    if kind is Type.FLOAT:
        return isinstance(cell, (int, float))
    return isinstance(cell, int) and -(2**63) <= cell < 2**63


def json_frame(table: Table, stream: str, seq: int, rows: Sequence[Sequence[object]]) -> Frame:
    """A frame of a table with text columns."""
    return Frame(table, stream, seq, len(rows), JSON, json.dumps(rows, separators=(",", ":")).encode())


def packed_frame(table: Table, stream: str, seq: int, rows: Iterable[Sequence[int | float | None]]) -> Frame:
    """A frame of a packed table; None becomes the packed NULL."""
    pack = struct.Struct(table.struct_format).pack
    cells = [pack(*packed_cells(table, r)) for r in rows]
    return Frame(table, stream, seq, len(cells), PACKED, b"".join(cells))


def frames(data: bytes | memoryview) -> Iterator[tuple[Frame, int]]:
    """Whole, valid frames at the start of `data`, each with the offset of its end; stops at the first that is not.

    A torn tail (killed writer, power loss) is therefore simply where the iteration ends.
    """
    view = memoryview(data)
    at = 0
    while len(view) - at >= _HEADER.size:
        magic, crc, payload_len, code, encoding, name_len, seq, rows = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + name_len + payload_len
        if magic != MAGIC or payload_len > MAX_PAYLOAD_BYTES or end > len(view) or code not in BY_CODE:
            return
        if zlib.crc32(view[at + _PREFIX_BYTES : end]) != crc:
            return
        name_at = at + _HEADER.size
        name = bytes(view[name_at : name_at + name_len]).decode(errors="backslashreplace")
        payload = bytes(view[name_at + name_len : end])
        yield Frame(BY_CODE[code], name, seq, rows, encoding, payload), end
        at = end


def scan(data: bytes | memoryview, codes: Container[int]) -> tuple[list[Frame], int]:
    """Frames of the tables `codes` at the start of `data`, and where the last whole frame of any table ends.

    Frames of other tables are stepped over unchecked: whoever follows many nodes looks at few of their rows.
    """
    view = memoryview(data)
    found: list[Frame] = []
    at = 0
    while len(view) - at >= _HEADER.size:
        magic, _, payload_len, code, _, name_len, _, _ = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + name_len + payload_len
        if magic != MAGIC or payload_len > MAX_PAYLOAD_BYTES or end > len(view):
            break
        if code in codes:
            whole = next(frames(view[at:end]), None)
            if whole is None:
                break
            found.append(whole[0])
        at = end
    return found, at


def whole_frames(data: bytes | bytearray, prefix: bytes) -> tuple[int, int]:
    """Where the last whole frame at the start of `data` ends, and how many rows there are up to it.

    Raises:
        SpoolError: something that is no frame, that is too long, or of a stream whose name begins otherwise.
    """
    at = rows = 0
    size = len(data)
    while size - at >= _HEADER.size:
        magic, _, payload_len, code, _, name_len, _, count = _HEADER.unpack_from(data, at)
        name_at = at + _HEADER.size
        if magic != MAGIC or code not in BY_CODE or payload_len > STREAMED_BYTES:
            raise SpoolError("this is no frame that can be streamed")
        end = name_at + name_len + payload_len
        if size < name_at + len(prefix):
            break
        if data[name_at : name_at + len(prefix)] != prefix or name_len < len(prefix):
            raise SpoolError("a frame of somebody else's stream")
        if end > size:
            break
        rows += count
        at = end
    return at, rows
