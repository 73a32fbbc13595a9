"""Follows a spool while others write it: every frame once, soon after it was written, of the tables that are asked for.

The spool is the only thing between those who bring records and those who look at them: nobody waits for a reader, and
a reader that dies loses nothing. A segment that is open here stays readable after the ingester has removed it.
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from starprof.errors import SpoolError
from starprof.model.schema import BY_CODE
from starprof.spool.frame import MAGIC, PACKED, Frame, scan
from starprof.spool.segment import list_segments

READ_BYTES = 8 << 20
"""At most so much of one segment at once."""


@dataclass
class _Open:
    """A segment that is being read: everything before `offset` is done with."""

    fd: int
    offset: int = 0
    stuck_at: int = -1


class SpoolTail:
    """Reads the segments of one spool.

    Attributes:
        duplicates: rows that had come before, after a lost connection.
        lost: rows that never came although later ones did.
        damaged: places that hold no frame, and frames whose rows don't fit their table.
    """

    def __init__(self, folder: Path, codes: Container[int]) -> None:
        """Follow the segments in `folder`; only frames of the tables `codes` are told."""
        self.duplicates = self.lost = self.damaged = 0
        self._folder = folder
        self._codes = codes
        self._open: dict[tuple[str, int], _Open] = {}
        self._done: set[tuple[str, int]] = set()
        self._next: dict[str, int] = {}

    def poll(self) -> list[Frame]:
        """What is new, in the order in which it was written, source by source."""
        try:
            there = list_segments(self._folder)
        except OSError:
            there = []
        present = {(segment.source, segment.number): segment for segment in there}
        found: list[Frame] = []
        for key in [key for key in self._open if key not in present]:  # folded in and removed
            self._read_whole(key, found)
        self._done &= present.keys()
        for key, segment in present.items():
            if key in self._done:
                continue
            if key not in self._open:
                try:
                    self._open[key] = _Open(os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    continue  # sealed or folded in since it was listed: seen again, or not needed
            if segment.sealed:
                self._read_whole(key, found)
                self._done.add(key)
            else:
                self._read(self._open[key], found, complete=False)
        return found

    def seen(self, frame: Frame) -> None:
        """This frame is known already, from elsewhere."""
        self._next[frame.stream] = max(self._next.get(frame.stream, 0), frame.seq + frame.rows)

    def close(self) -> None:
        """Let go of all files."""
        for one in self._open.values():
            os.close(one.fd)
        self._open.clear()

    def _read_whole(self, key: tuple[str, int], found: list[Frame]) -> None:
        one = self._open.pop(key)
        self._read(one, found, complete=True)
        os.close(one.fd)

    def _read(self, one: _Open, found: list[Frame], *, complete: bool) -> None:
        """Take what is there; of a segment that is complete, also what lies behind a damaged place."""
        while data := os.pread(one.fd, READ_BYTES, one.offset):
            frames, end = scan(data, self._codes)
            found += [new for frame in frames if (new := self._new(frame)) is not None]
            one.offset += end
            if end:
                continue
            if not complete:
                return  # the writer is at it
            self.damaged += 1
            again = data.find(MAGIC, 1)
            if again < 0:
                return
            one.offset += again

    def _new(self, frame: Frame) -> Frame | None:
        """The rows of a frame that have not come yet."""
        try:
            frame.check()
        except SpoolError:
            self.damaged += 1
            return None
        known = self._next.get(frame.stream)
        end = frame.seq + frame.rows
        if known is not None and end <= known:
            self.duplicates += frame.rows
            return None
        self._next[frame.stream] = end
        if known is None or frame.seq == known:
            return frame
        if frame.seq > known:
            # Streams of ranks hold rows of two tables; the other one's may be what is missing, if it isn't asked for.
            self.lost += frame.seq - known
            return frame
        self.duplicates += known - frame.seq
        if frame.encoding != PACKED:
            return frame  # descriptions, events: taken in twice they are what they were
        row_bytes = 8 * len(BY_CODE[frame.table.code].columns)
        rest = frame.payload[(known - frame.seq) * row_bytes :]
        return Frame(frame.table, frame.stream, known, end - known, PACKED, rest)
