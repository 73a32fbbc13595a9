"""What was said once and is needed later: descriptions of ranks and nodes, changes of the mode.

The ingester removes the segments that told it. A watch that is started again reads it here.
"""

from __future__ import annotations

import os
from pathlib import Path

from starprof.model.tables.job import NODE, RANK
from starprof.model.tables.sync import SYNC_SWITCH
from starprof.spool.frame import Frame, frames

KEPT = frozenset({RANK.code, NODE.code, SYNC_SWITCH.code})
MAX_BYTES = 256 << 20


class KnownFrames:
    """A file of frames, in the spool."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._seen: set[tuple[str, int]] = set()
        self._fd = -1
        self._bytes = 0

    def load(self) -> list[Frame]:
        """What an earlier watch has kept."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return []
        found = [frame for frame, _ in frames(data)]
        self._seen = {(frame.stream, frame.seq) for frame in found}
        self._bytes = len(data)
        return found

    def keep(self, frame: Frame) -> None:
        """Keep a frame, if it is one that is needed later and not there already."""
        if frame.table.code in KEPT and (frame.stream, frame.seq) not in self._seen:
            self._seen.add((frame.stream, frame.seq))
            self._waiting.append(frame.encode())

    def flush(self) -> None:
        """Write what is to be kept; a full disk costs a later watch its memory, nothing else."""
        if not self._waiting or self._bytes > MAX_BYTES:
            self._waiting.clear()
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._bytes += os.write(self._fd, data)
        except OSError:
            return

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
