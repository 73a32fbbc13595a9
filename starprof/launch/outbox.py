"""This node's records on their way: read from its segments as they are written, and kept until node 0 has them.

The segments are the buffer: what node 0 has not taken stays in them, however long it is away. Their size is bounded:
beyond it the oldest samples of counters go first, and only then the oldest steps and events; what goes is counted.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starprof.errors import SpoolError
from starprof.model.schema import TABLES
from starprof.spool.frame import whole_frames
from starprof.spool.segment import Segment, list_segments, readable_frames

READ_BYTES = 512 << 10
MOST_FLYING_BYTES = 8 << 20
"""Sent and not taken yet; node 0 says once in a tenth of a second what it has taken."""

_RARE = frozenset(table.code for table in TABLES if not table.sampled)


@dataclass
class _Reading:
    """One segment.

    Attributes:
        sent, taken: bytes that are on their way, and that node 0 has.
        sealed: nobody writes to it any more.
        whole: it has to be sent as a file: it holds something else than frames of this node.
    """

    path: Path
    sent: int = 0
    taken: int = 0
    sealed: bool = False
    whole: bool = False
    thinned: bool = False


class Outbox:
    """Of one node; used by one thread."""

    def __init__(self, segments: Path, node: int) -> None:
        self._folder = segments
        self._prefix = b"n%d-" % node
        self._reading: dict[tuple[str, int], _Reading] = {}
        self._flying: deque[tuple[int, tuple[str, int], int]] = deque()
        self._streamed = 0
        self._told = 0

    @property
    def flying_bytes(self) -> int:
        """Sent and not taken yet."""
        return self._streamed - self._told

    def rewind(self) -> None:
        """A new connection: everything that was not taken is sent again."""
        self._flying.clear()
        self._streamed = self._told = 0
        for one in self._reading.values():
            one.sent = one.taken

    def look(self) -> None:
        """See which segments there are."""
        present: dict[tuple[str, int], Segment] = {(s.source, s.number): s for s in list_segments(self._folder)}
        for key in [key for key in self._reading if key not in present]:
            del self._reading[key]
        for key, segment in present.items():
            one = self._reading.setdefault(key, _Reading(segment.path))
            one.path, one.sealed = segment.path, segment.sealed
        self._reading = {key: self._reading[key] for key in present}  # source by source, by number

    def pieces(self) -> Iterator[bytes]:
        """What is to be streamed now, in order; at most so much that `MOST_FLYING_BYTES` are on their way."""
        stopped: set[str] = set()
        for key, one in list(self._reading.items()):
            if key[0] in stopped:
                continue
            while self.flying_bytes < MOST_FLYING_BYTES and not one.whole:
                data = self._next(one)
                if not data:
                    break
                one.sent += len(data)
                self._streamed += len(data)
                self._flying.append((self._streamed, key, one.sent))
                yield data
            if one.whole or not one.sealed or one.sent < _size(one.path):
                stopped.add(key[0])  # the rows of a source stay in order

    def taken(self, upto: int) -> None:
        """Node 0 has so many bytes of this connection on its disk."""
        self._told = upto
        while self._flying and self._flying[0][0] <= upto:
            _, key, end = self._flying.popleft()
            one = self._reading.get(key)
            if one is not None:
                one.taken = max(one.taken, end)

    def clear(self) -> None:
        """Remove the segments that node 0 has."""
        for key, one in list(self._reading.items()):
            if one.sealed and not one.whole and one.taken and one.taken >= _size(one.path):
                one.path.unlink(missing_ok=True)
                del self._reading[key]

    def files(self) -> list[Path]:
        """Sealed segments that have to be sent as they are, once everything that was streamed is taken."""
        if self.flying_bytes:
            return []
        first: dict[str, _Reading] = {}
        for key, one in self._reading.items():
            first.setdefault(key[0], one)
        return [one.path for one in first.values() if one.whole and one.sealed]

    @property
    def backlog(self) -> bool:
        """Whether there was more to send than may be on its way at once."""
        return self.flying_bytes >= MOST_FLYING_BYTES // 2

    @property
    def empty(self) -> bool:
        """Whether node 0 has everything that is sealed here."""
        return not any(one.sealed for one in self._reading.values())

    def shrink(self, most_bytes: int) -> int:
        """Keep the sealed segments below a size; tells how many rows had to go."""
        sizes = {key: _size(one.path) for key, one in self._reading.items() if one.sealed}
        over = sum(sizes.values()) - most_bytes
        dropped = 0
        for remove in (False, True):
            for key, size in list(sizes.items()):
                one = self._reading[key]
                if over <= 0:
                    return dropped
                if one.sent > 0 or (one.thinned and not remove):
                    continue  # a part of it may be on node 0's disk: what is sent must stay as it is
                rows, left = _thin(one.path, nothing=remove)
                dropped += rows
                over -= size - left
                sizes[key], one.thinned = left, True
                if not left:
                    del self._reading[key], sizes[key]
        return dropped

    def _next(self, one: _Reading) -> bytes:
        """The next whole frames of a segment, as many as `READ_BYTES` hold, but at least one."""
        wanted = READ_BYTES
        while True:
            try:
                with one.path.open("rb") as file:
                    file.seek(one.sent)
                    data = file.read(wanted)
            except FileNotFoundError:
                return b""  # sealed since we looked: under its other name at the next look
            try:
                end, _ = whole_frames(data, self._prefix)
            except SpoolError:
                # What came before it is streamed already. Of a part, the writer may be at it.
                one.whole = one.sealed and one.sent == one.taken
                return b""
            if end:
                return data[:end]
            if len(data) < wanted:
                # Nothing more, or a torn frame at the end of a part: its sealing cuts that off.
                one.whole = one.sealed and bool(data) and one.sent == one.taken
                return b""
            wanted *= 4


def _thin(path: Path, *, nothing: bool) -> tuple[int, int]:
    """Take the samples of counters (or everything) out of a segment; rows that are gone, and bytes that are left."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, 0
    kept, dropped = [], 0
    for frame, begin, end in readable_frames(data):
        if not nothing and frame.table.code in _RARE:
            kept.append(data[begin:end])
        else:
            dropped += frame.rows
    if not kept:
        path.unlink(missing_ok=True)
        return dropped, 0
    left = b"".join(kept)
    temporary = path.with_name(path.name + ".thin")
    with temporary.open("wb") as file:
        file.write(left)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return dropped, len(left)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
