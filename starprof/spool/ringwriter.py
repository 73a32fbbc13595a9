"""Writes a rank's ring: a file that is mapped into the rank, so that a kill of the rank loses nothing.

The layout is `starprof.model.ring`. A slot's number is written first and `written` last, so a reader of another
process never takes a half-written slot for a whole one. Standard library only; no locks, no threads.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from starprof.model import ring
from starprof.model.columns import INT_NULL
from starprof.model.schema import SCHEMA_VERSION
from starprof.model.tables.job import STEP

_STEP_SLOT = struct.Struct("<QII" + STEP.struct_format[1:])
_STEP_BYTES = _STEP_SLOT.size - ring.SLOT_HEADER.size
_EVENT_SLOT = struct.Struct("<QII" + ring.EVENT_STRUCT.format[1:])
_EVENT_BYTES = ring.EVENT_STRUCT.size
_WRITTEN_CELL = ring.WRITTEN_OFFSET // 8
_HEARTBEAT_CELL = 5  # offset 40
_KIND_BYTES = 24
_DETAIL_BYTES = 200


class RingWriter:
    """One new ring file.

    Args:
        path: the ring's final path; the file appears there complete with its header.
        slots: capacity; the reader must come by before it wraps.

    Raises:
        OSError: the file can't be made, e.g. the disk is full or read-only.
    """

    def __init__(self, path: Path, slots: int = ring.DEFAULT_SLOTS) -> None:
        self.path = path
        self._slots = slots
        self._written = 0
        self._generation = 0
        size = ring.HEADER_BYTES + slots * ring.SLOT_BYTES
        making = path.with_name("." + path.name)
        fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            # A store to a page that a full disk can't back would be a SIGBUS in the user's process.
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size)
            # Every page once, now: the first store into one costs 40 us, in the middle of a step.
            for page in range(0, size, mmap.PAGESIZE):
                self._map[page] = 0
            head = (ring.MAGIC, ring.VERSION, ring.SLOT_BYTES, 0, slots, SCHEMA_VERSION, 0, 0, 0)
            ring.HEADER.pack_into(self._map, 0, *head)
            making.rename(path)
        except BaseException:
            making.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        self._cells = memoryview(self._map)[:64].cast("Q")

    def step(self, mono_ns: int, cells: list[int]) -> None:
        """Write one row of table `step`.

        Args:
            mono_ns: now.
            cells: the row in column order, `INT_NULL` where not measured.
        """
        n = self._written
        at = ring.HEADER_BYTES + n % self._slots * ring.SLOT_BYTES
        _STEP_SLOT.pack_into(self._map, at, n, ring.SLOT_STEP, _STEP_BYTES, *cells)
        self._written = n + 1
        self._cells[_HEARTBEAT_CELL] = mono_ns
        self._cells[_WRITTEN_CELL] = n + 1

    def event(
        self,
        kind: str,
        mono_ns: int,
        *,
        attempt: int,
        rank: int,
        step: int | None = None,
        value: int | None = None,
        detail: str = "",
    ) -> None:
        """Write one event; `kind` is of `starprof.model.events`, a long `detail` is cut."""
        n = self._written
        at = ring.HEADER_BYTES + n % self._slots * ring.SLOT_BYTES
        numbers = (attempt, rank, mono_ns, INT_NULL if step is None else step, INT_NULL if value is None else value)
        text = (kind.encode()[:_KIND_BYTES], detail.encode(errors="replace")[:_DETAIL_BYTES])
        _EVENT_SLOT.pack_into(self._map, at, n, ring.SLOT_EVENT, _EVENT_BYTES, *numbers, *text)
        self._written = n + 1
        self._cells[_HEARTBEAT_CELL] = mono_ns
        self._cells[_WRITTEN_CELL] = n + 1

    def describe(self, description: Mapping[str, object]) -> None:
        """Replace the rank's description.

        Raises:
            ValueError: its JSON does not fit into the header page.
        """
        data = json.dumps(description, separators=(",", ":")).encode()
        if len(data) > ring.JSON_MAX_BYTES:
            raise ValueError(f"description of {len(data)} bytes does not fit into the ring's header")
        self._seal(self._generation + 1, None)  # odd: readers keep off
        self._map[ring.JSON_OFFSET : ring.JSON_OFFSET + len(data)] = data
        self._seal(self._generation + 1, len(data))

    def _seal(self, generation: int, length: int | None) -> None:
        self._generation = generation
        words = memoryview(self._map)[32:40].cast("I")
        if length is not None:
            words[0] = length
        words[1] = generation
        words.release()

    def close(self) -> None:
        """Unmap the file, which stays."""
        self._cells.release()
        self._map.close()
