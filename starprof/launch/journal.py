"""The recorder's own rows (signals, restarts, clock offsets), on their way through the spool like all others."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from starprof.errors import SpoolError
from starprof.model.columns import Table, row
from starprof.model.tables.job import CLOCK, EVENT
from starprof.spool.frame import json_frame
from starprof.spool.segment import SegmentWriter


class Journal:
    """Writes single rows, each at once into a sealed segment: they are rare, and each must survive our own death.

    Used by the supervisor and by the thread that talks to node 0. A row that can't be written stays queued for the
    next attempt: a full disk neither stops the job nor loses the row once there is room again.
    """

    def __init__(self, segments: Path, node: int) -> None:
        self._node = node
        self._source = f"n{node}-recorder-{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
        self._segments = segments
        self._writer: SegmentWriter | None = None
        self._next: dict[str, int] = {}
        self._queued: list[tuple[Table, list[object]]] = []
        self._lock = threading.Lock()

    def event(self, kind: str, *, value: int | None = None, detail: str | None = None) -> None:
        """One row of table `event`, now."""
        now_ns = time.monotonic_ns()
        self._add(EVENT, row(EVENT, node=self._node, mono_ns=now_ns, kind=kind, value=value, detail=detail))

    def clock(self, offset_ns: int, error_ns: int, method: str) -> None:
        """One measured offset of this node's monotonic clock to node 0's."""
        now_ns = time.monotonic_ns()
        cells = row(CLOCK, node=self._node, mono_ns=now_ns, offset_ns=offset_ns, error_ns=error_ns, method=method)
        self._add(CLOCK, cells)

    def flush(self) -> bool:
        """Try again to write what is queued; tells whether all is in the spool."""
        with self._lock:
            return self._write()

    def _add(self, table: Table, cells: list[object]) -> None:
        with self._lock:
            self._queued.append((table, cells))
            self._write()

    def _write(self) -> bool:
        try:
            if self._writer is None:
                self._writer = SegmentWriter(self._segments, self._source)
            while self._queued:
                table, cells = self._queued[0]
                stream = f"{self._source}/{table.name}"
                seq = self._next.get(stream, 0)
                self._writer.write([json_frame(table, stream, seq, [cells])])
                self._next[stream] = seq + 1
                del self._queued[0]
            self._writer.seal()
        except SpoolError:
            return False
        return True
