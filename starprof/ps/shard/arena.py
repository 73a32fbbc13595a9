"""Places for gradients in a file that is mapped into memory: what is in them is there after a kill of the process.

The kernel keeps what was written to a mapped file when the process is gone, so nothing has to be copied or synced for
that. A gradient's bytes go from the connection straight into its place. Each place begins with a page that tells what
is in it; that is written last, and until then the place is empty.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError

PAGE = mmap.PAGESIZE
_LENGTH_BYTES = 4


class Arena:
    """Equal places, numbered from 0. Only those that were ever used take room."""

    def __init__(self, path: Path, slot_bytes: int, slots: int) -> None:
        """Map the file, which is made if it isn't there.

        Raises:
            SpoolError: that can't be.
        """
        self._slot_bytes = max(slot_bytes, 1)
        self._stride = PAGE + -(-self._slot_bytes // PAGE) * PAGE
        self._slots = slots
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            used = os.fstat(self._fd).st_size
            os.ftruncate(self._fd, self._stride * slots)
            self._map = mmap.mmap(self._fd, self._stride * slots)
        except OSError as error:
            raise SpoolError(f"{path} can't be mapped: {error}") from error
        self.memory = memoryview(self._map)
        self._told: dict[int, Any] = {}
        for slot in range(min(slots, used // self._stride)):
            told = self._read(slot)
            if told is not None:
                self._told[slot] = told
        self._free = [slot for slot in reversed(range(slots)) if slot not in self._told]
        self._taken: set[int] = set()

    @property
    def filled(self) -> Iterator[tuple[int, Any]]:
        """Places that are in use, and what is in them."""
        yield from sorted(self._told.items())

    def take(self) -> int | None:
        """An empty place; None: there is none."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def view(self, slot: int, size: int | None = None) -> memoryview:
        """The bytes of a place, `size` of them."""
        begin = slot * self._stride + PAGE
        return self.memory[begin : begin + (self._slot_bytes if size is None else size)]

    def fill(self, slot: int, told: Any) -> None:
        """A place that was taken is complete, and this is what is in it."""
        data = json.dumps(told).encode()
        if len(data) > PAGE - _LENGTH_BYTES:
            raise SpoolError("what is told of a gradient is too long: it has too many parameters without one")
        begin = slot * self._stride
        self.memory[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + len(data)] = data
        self.memory[begin : begin + _LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._taken.discard(slot)
        self._told[slot] = told

    def free(self, slot: int) -> None:
        """Nobody needs what is in a place."""
        if slot in self._told or slot in self._taken:
            begin = slot * self._stride
            self.memory[begin : begin + _LENGTH_BYTES] = bytes(_LENGTH_BYTES)
            self._told.pop(slot, None)
            self._taken.discard(slot)
            self._free.append(slot)

    def sync(self) -> None:
        """Have the disk itself hold all that was written."""
        self._map.flush()

    def _read(self, slot: int) -> Any:
        begin = slot * self._stride
        length = int.from_bytes(self.memory[begin : begin + _LENGTH_BYTES], "little")
        if not 0 < length <= PAGE - _LENGTH_BYTES:
            return None
        try:
            return json.loads(bytes(self.memory[begin + _LENGTH_BYTES : begin + _LENGTH_BYTES + length]))
        except ValueError:
            return None
