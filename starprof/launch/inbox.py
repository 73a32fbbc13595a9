"""What one run gets from other nodes: who they are, and the segment in which their records are gathered.

Records of all nodes go into one segment, in the order in which they come: one sync of one file makes those of a
thousand nodes durable. Every frame says which stream it belongs to and which rows of it it holds, so the ledger and
whoever follows the spool need to know no more; but the rows of a stream must stay in order, so files that come whole
are put behind what was written before.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter, sync_folder

MAX_NODES = 4096
SEAL_BYTES = 32 << 20
SEAL_S = 5.0
SOURCE = "nodes"
_REMEMBERED = 64


@dataclass
class Peer:
    """Another node of this run.

    Attributes:
        hang_up: ends its connection; None while it has none.
        done: it said that it delivered everything.
        stored: names of the newest files that came whole: their good news may have been lost on the way.
    """

    node: int
    host: str
    recorder: str
    hang_up: Callable[[], None] | None = None
    done: bool = False
    seen_s: float = field(default_factory=time.monotonic)
    stored: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass
class _Batch:
    """Streamed frames that are not on the disk yet, and who is to be told when they are."""

    data: list[bytes] = field(default_factory=list)
    size: int = 0
    told: dict[Callable[[int], None], int] = field(default_factory=dict)


class Inbox:
    """Of one run. `place` and `add` are called by the thread of the connections, the rest by others."""

    def __init__(self, spool: Spool, run_id: str) -> None:
        self.spool = spool
        self.run_id = run_id
        self.rows = 0
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._waiting = _Batch()
        self._written: dict[Callable[[int], None], int] = {}
        self._disk = threading.Lock()
        self._writer: SegmentWriter | None = None

    def peers(self) -> list[Peer]:
        """Who has joined."""
        with self._lock:
            return list(self._peers.values())

    def place(self, wish: dict[str, Any], hang_up: Callable[[], None]) -> Peer | str:
        """The peer that asks to come in, or why it may not; a connection that it had before is ended."""
        with self._lock:
            found = self._find(wish)
            if isinstance(found, str):
                return found
            former, found.hang_up = found.hang_up, hang_up
            found.seen_s = time.monotonic()
        if former is not None:
            former()  # the node lost its connection and we had not noticed yet
        return found

    def left(self, peer: Peer, hang_up: Callable[[], None]) -> None:
        """A connection is over."""
        with self._lock:
            if peer.hang_up == hang_up:
                peer.hang_up = None

    def _find(self, wish: dict[str, Any]) -> Peer | str:
        recorder, host = str(wish.get("recorder", ""))[:64], str(wish.get("host", ""))[:255]
        for peer in self._peers.values():
            if peer.recorder == recorder:
                return peer
        wanted = wish.get("node")
        if len(self._peers) >= MAX_NODES:
            return f"this run has {MAX_NODES} nodes already"
        if wanted is None:
            wanted = next(n for n in range(1, MAX_NODES + 2) if n not in self._peers)
        if type(wanted) is not int or not 1 <= wanted < 1 << 31:
            return "a node that joins has an id from 1 on"
        taken = self._peers.get(wanted)
        if taken is not None and (taken.hang_up is not None or taken.host != host):
            return f"node {wanted} is recorded by {taken.host} already: give another --node-rank, or none"
        self._peers[wanted] = Peer(wanted, host, recorder)
        return self._peers[wanted]

    # Streamed frames.

    def add(self, data: bytes, rows: int, upto: int, told: Callable[[int], None]) -> None:
        """Whole frames have come; `told(upto)` is called from the disk's thread once they are durable."""
        with self._lock:
            self._waiting.data.append(data)
            self._waiting.size += len(data)
            self._waiting.told[told] = upto
            self.rows += rows

    @property
    def waiting_bytes(self) -> int:
        """What is not written yet."""
        return self._waiting.size

    def write(self) -> None:
        """Write what has come: from then on whoever follows the spool sees it.

        Raises:
            SpoolError: the disk is full, or the like; nothing is lost.
        """
        with self._disk:
            self._write()

    def sync(self) -> None:
        """Make what is written durable, and say so. Writing goes on meanwhile: a slow disk must not delay the view.

        Raises:
            SpoolError: that can't be; nothing was said.
        """
        with self._disk:
            told, self._written = self._written, {}
            descriptor = None if self._writer is None else self._writer.descriptor()
        try:
            if descriptor is not None and told:
                os.fdatasync(descriptor)
                sync_folder(self.spool.segments)
        except OSError as error:
            with self._disk:
                self._written = told | self._written
            raise SpoolError(f"can't write in {self.spool.segments}: {error.strerror}") from error
        finally:
            if descriptor is not None:
                os.close(descriptor)
        for tell, upto in told.items():
            tell(upto)
        with self._disk:
            if self._writer is not None and self._writer.older(SEAL_BYTES, SEAL_S):
                self._writer.seal()

    def adopt(self, path: Path) -> None:
        """Put a file that has come whole behind what came before it.

        Raises:
            SpoolError: that can't be.
        """
        with self._disk:
            self._write()
            self._open().adopt(path)

    def close(self) -> None:
        """Bring everything to the disk, and seal it.

        Raises:
            SpoolError: that can't be.
        """
        with self._disk:
            self._write()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _write(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, _Batch()
        if not batch.data:
            return
        try:
            self._open().write_encoded(b"".join(batch.data))
        except SpoolError:
            with self._lock:  # what could not be written comes first
                self._waiting = _Batch(
                    batch.data + self._waiting.data, batch.size + self._waiting.size, batch.told | self._waiting.told
                )
            raise
        self._written |= batch.told

    def _open(self) -> SegmentWriter:
        if self._writer is None:
            # Sealed by `sync` alone: it waits for the disk, which writing must not.
            self._writer = SegmentWriter(self.spool.segments, SOURCE, seal_bytes=1 << 60, seal_seconds=float("inf"))
        return self._writer
