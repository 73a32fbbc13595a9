"""What one run gets from other nodes: who they are, and the segment in which their records are gathered.

Records of all nodes go into one segment, in the order in which they come: one sync of one file makes those of a
thousand nodes durable. Every frame says which stream it belongs to and which rows of it it holds, so the ledger and
whoever follows the spool need to know no more; but the rows of a stream must stay in order, so files that come whole
are put behind what was written before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter

MAX_NODES = 4096
SEAL_BYTES = 32 << 20
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
    """Of one run. `place` and `add` are called by the thread of the connections, `commit` by that of the disk."""

    def __init__(self, spool: Spool, run_id: str) -> None:
        self.spool = spool
        self.run_id = run_id
        self.rows = 0
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._waiting = _Batch()
        self._failed: _Batch | None = None
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
        """What is not on the disk yet."""
        failed = self._failed
        return self._waiting.size + (failed.size if failed is not None else 0)

    def commit(self) -> None:
        """Bring what has come to the disk, and say so.

        Raises:
            SpoolError: the disk is full, or the like; nothing is lost, nothing was said.
        """
        with self._disk:
            self._commit()

    def adopt(self, path: Path) -> None:
        """Put a file that has come whole behind what came before it.

        Raises:
            SpoolError: that can't be.
        """
        with self._disk:
            self._commit()
            self._open().adopt(path)

    def close(self) -> None:
        """Bring everything to the disk, and seal it.

        Raises:
            SpoolError: that can't be.
        """
        with self._disk:
            self._commit()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _commit(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, _Batch()
        if self._failed is not None:  # what could not be written comes first
            before, self._failed = self._failed, None
            batch = _Batch(before.data + batch.data, before.size + batch.size, before.told | batch.told)
        if not batch.data:
            if self._writer is not None:
                self._writer.seal_if_old()
            return
        try:
            writer = self._open()
            writer.write_encoded(b"".join(batch.data))
            writer.sync()
        except SpoolError:
            self._failed = batch
            raise
        for told, upto in batch.told.items():
            told(upto)

    def _open(self) -> SegmentWriter:
        if self._writer is None:
            self._writer = SegmentWriter(self.spool.segments, SOURCE, seal_bytes=SEAL_BYTES)
        return self._writer
