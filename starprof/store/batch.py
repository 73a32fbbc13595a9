"""What makes folding in exactly once: the ledger decides which rows are new, the batch holds them for one commit.

The ledger knows, for each stream, the number of the next row that is missing. A frame that begins earlier
overlaps with what is there and is cut; one that begins later leaves a hole, which becomes a row in table `gap`.
Rows, gaps and ledger are committed in one transaction.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from starprof.model.columns import INT_NULL, Kind, Table, Type, row
from starprof.model.schema import TABLES
from starprof.model.tables.job import GAP, RANK
from starprof.spool.frame import JSON, PACKED, Frame, json_frame
from starprof.spool.ringreader import RANK_STREAM, SLOTS_STREAM
from starprof.store.base import ReadableRun, WritableRun
from starprof.store.runfile import arrow_rows

_POSITIONS = {t.name: {name: i for i, name in enumerate(t.names)} for t in TABLES}
_CLOCKS = {
    t.name: next((c.name for c in t.columns if c.kind is Kind.TIME and c.name.endswith("mono_ns")), None)
    for t in TABLES
}
"""The column that tells when a row was taken, by table."""

_NODE_OF_NAME = re.compile(r"n(\d+)\b")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream is folded in, and when its newest row was taken (None: its rows have no time)."""

    next_seq: int
    last_mono_ns: int | None


@dataclass
class Batch:
    """Rows for one transaction.

    Attributes:
        rows: accepted so far. duplicates: cut off because they were there already. gaps: holes found.
        raw_bytes: size of the rows that are held, for bounding memory.
    """

    ledger: dict[str, Position]
    rows: int = 0
    duplicates: int = 0
    gaps: int = 0
    raw_bytes: int = 0
    _packed: dict[str, tuple[Table, list[bytes]]] = field(default_factory=dict)
    _plain: dict[str, tuple[Table, list[list[object]]]] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)

    @classmethod
    def resume(cls, run: ReadableRun) -> Batch:
        """An empty batch with the ledger of a run."""
        positions = run.query("SELECT stream, next_seq, last_mono_ns FROM ledger")
        return cls({stream: Position(next_seq, mono) for stream, next_seq, mono in positions})

    def next_seq(self, stream: str) -> int:
        """Number of the row that the stream misses next."""
        position = self.ledger.get(stream)
        return position.next_seq if position else 0

    def accept(self, frame: Frame) -> None:
        """Take the rows of a frame that are new.

        Raises:
            SpoolError: its rows do not fit the table; none is taken.
        """
        known = self.next_seq(frame.stream)
        end = frame.seq + frame.rows
        if end <= known:
            self.duplicates += frame.rows
            return
        frame.check()
        if frame.seq < known:
            self.duplicates += known - frame.seq
            frame = _without_first(frame, known - frame.seq)
        rows = frame.json_rows() if frame.encoding == JSON else None
        first, last = _times(frame, rows)
        if frame.seq > known and not frame.stream.endswith(RANK_STREAM):
            self._add_gap(frame, rows, frame.seq - known, first)
        if rows is None:
            self._packed.setdefault(frame.table.name, (frame.table, []))[1].append(frame.payload)
        else:
            self._plain.setdefault(frame.table.name, (frame.table, []))[1].extend(rows)
        before = self.ledger.get(frame.stream)
        if last is None and before:
            last = before.last_mono_ns
        self.ledger[frame.stream] = Position(end, last)
        self._changed.add(frame.stream)
        self.rows += frame.rows
        self.raw_bytes += len(frame.payload)

    def accept_damage(self, name: str, reason: str) -> None:
        """Record that a file was damaged; saying it twice records it once."""
        cells = row(GAP, source=name, node=_node_of(name), reason=reason)
        self.accept(json_frame(GAP, f"damaged/{name}", 0, [cells]))

    def flush(self, run: WritableRun) -> None:
        """Write the rows that are held; the caller has a transaction open."""
        for table, payloads in self._packed.values():
            run.append(table.name, arrow_of_packed(table, b"".join(payloads)))
        for table, rows in self._plain.values():
            if table is RANK:
                newest = {tuple(r[:2]): r for r in rows}
                run.replace(table.name, arrow_rows(table.name, list(newest.values())), keys=table.names[:2])
            else:
                run.append(table.name, arrow_rows(table.name, rows))
        self._packed.clear()
        self._plain.clear()
        self.raw_bytes = 0

    def finish(self, run: WritableRun) -> None:
        """Write the rows that are held and the ledger; the caller commits."""
        self.flush(run)
        positions = [(s, self.ledger[s].next_seq, self.ledger[s].last_mono_ns) for s in sorted(self._changed)]
        run.replace("ledger", arrow_rows("ledger", positions), keys=["stream"])
        self._changed.clear()

    def _add_gap(self, frame: Frame, rows: list[list[object]] | None, lost: int, first_mono_ns: int | None) -> None:
        position = self.ledger.get(frame.stream)
        lapped = frame.stream.endswith(SLOTS_STREAM)
        cells = row(
            GAP,
            source=frame.stream,
            node=_cell(frame, rows, "node", _node_of(frame.stream)),
            rank=_cell(frame, rows, "rank", None),
            from_mono_ns=position.last_mono_ns if position else None,
            to_mono_ns=first_mono_ns,
            lost_rows=lost,
            reason="overwritten in the ring before they were read" if lapped else "rows of the stream never arrived",
        )
        self._plain.setdefault(GAP.name, (GAP, []))[1].append(cells)
        self.gaps += 1


def arrow_of_packed(table: Table, payload: bytes) -> pa.Table:
    """Packed rows as an Arrow table; the packed NULLs become real ones."""
    width = len(table.columns)
    columns = np.ascontiguousarray(np.frombuffer(payload, "<i8").reshape(-1, width).T)
    arrays = []
    for column, cells in zip(table.columns, columns, strict=True):
        if column.type is Type.FLOAT:
            values = cells.view("<f8")
            arrays.append(_array(pa.float64(), values, np.isnan(values)))
        else:
            arrays.append(_array(pa.int64(), cells, cells == INT_NULL))
    return pa.table(arrays, names=list(table.names))


def _array(kind: pa.DataType, values: np.ndarray, null: np.ndarray) -> pa.Array:
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def _without_first(frame: Frame, count: int) -> Frame:
    """The frame without rows that are already there."""
    if frame.encoding == PACKED:
        payload = frame.payload[count * 8 * len(frame.table.columns) :]
        return replace(frame, seq=frame.seq + count, rows=frame.rows - count, payload=payload)
    return json_frame(frame.table, frame.stream, frame.seq + count, frame.json_rows()[count:])


def _times(frame: Frame, rows: list[list[object]] | None) -> tuple[int | None, int | None]:
    """When the first and the last row were taken."""
    name = _CLOCKS[frame.table.name]
    if name is None:
        return None, None
    return _cell_at(frame, rows, 0, name), _cell_at(frame, rows, frame.rows - 1, name)


def _cell(frame: Frame, rows: list[list[object]] | None, name: str, otherwise: int | None) -> int | None:
    return _cell_at(frame, rows, 0, name) if name in _POSITIONS[frame.table.name] else otherwise


def _cell_at(frame: Frame, rows: list[list[object]] | None, index: int, name: str) -> int | None:
    position = _POSITIONS[frame.table.name][name]
    if rows is not None:
        cell = rows[index][position]
        return cell if isinstance(cell, int) else None
    (value,) = struct.unpack_from("<q", frame.payload, 8 * (index * len(frame.table.columns) + position))
    return None if value == INT_NULL else int(value)


def _node_of(name: str) -> int | None:
    """Node of a stream or file name such as n3-17-99/slots."""
    match = _NODE_OF_NAME.match(name)
    return int(match[1]) if match else None
