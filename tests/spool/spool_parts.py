"""Rows and rings for the tests of the spool."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from starprof.model import ring
from starprof.model.schema import INT_NULL, SCHEMA_VERSION, row
from starprof.model.tables.job import STEP
from starprof.spool.frame import Frame, packed_frame


def step_cells(step: int, rank: int = 0, **values: int) -> list[object]:
    return row(STEP, attempt=0, rank=rank, step=step, start_mono_ns=1_000_000 * (step + 1), dur_us=1000, **values)


def step_frame(first: int, count: int = 1, stream: str = "r/slots") -> Frame:
    return packed_frame(STEP, stream, first, [step_cells(first + i) for i in range(count)])


class TinyRing:
    """A ring writer as short as the layout allows; the real one is the hook's."""

    def __init__(self, path: Path, slots: int = 8) -> None:
        size = ring.HEADER_BYTES + slots * ring.SLOT_BYTES
        with path.open("wb+") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self.map = mmap.mmap(file.fileno(), size)
        self.path, self.slots, self.written, self.generation = path, slots, 0, 0
        self.map[: ring.HEADER.size] = ring.HEADER.pack(
            ring.MAGIC, ring.VERSION, ring.SLOT_BYTES, 0, slots, SCHEMA_VERSION, 0, 0, 0
        )

    def describe(self, text: bytes) -> None:
        self.map[ring.JSON_OFFSET : ring.JSON_OFFSET + len(text)] = text
        self.generation += 2
        self.map[32:40] = len(text).to_bytes(4, "little") + self.generation.to_bytes(4, "little")

    def put(self, kind: int, payload: bytes, *, publish: bool = True) -> None:
        at = ring.HEADER_BYTES + self.written % self.slots * ring.SLOT_BYTES
        head = ring.SLOT_HEADER.size
        self.map[at + head : at + head + len(payload)] = payload
        self.map[at : at + head] = ring.SLOT_HEADER.pack(self.written, kind, len(payload))
        self.written += 1
        if publish:
            self.map[ring.WRITTEN_OFFSET : ring.WRITTEN_OFFSET + 8] = ring.WRITTEN.pack(self.written)

    def step(self, step: int, rank: int = 0) -> None:
        self.put(ring.SLOT_STEP, packed_frame(STEP, "", 0, [step_cells(step, rank)]).payload)

    def event(self, kind: str, step: int | None = None, detail: str = "") -> None:
        cells = (0, 0, 5, INT_NULL if step is None else step, 7, kind.encode(), detail.encode())
        self.put(ring.SLOT_EVENT, ring.EVENT_STRUCT.pack(*cells))
