"""A file on its way from another node into node 0's spool: synced and renamed before it counts as here."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from starprof.errors import TransportError
from starprof.launch.inbox import Inbox, Peer
from starprof.spool.segment import SEALED

MAX_FILE_BYTES = 256 << 20
_SEGMENT = re.compile(r"[A-Za-z0-9_-]{1,128}\.[0-9]{1,20}\.seg")
_RING = re.compile(r"n[0-9]+-[A-Za-z0-9_-]{1,128}\.ring")


class Incoming:
    """The files of one node, one at a time. A part of a file that came before a connection broke is kept."""

    def __init__(self, inbox: Inbox, peer: Peer) -> None:
        self._inbox = inbox
        self._spool = inbox.spool
        self._peer = peer
        self._name = ""
        self._target: Path | None = None
        self._size = 0
        self._have = 0

    def offer(self, offer: dict[str, Any]) -> int | None:
        """Bytes of the offered file that are here already; None when it is complete.

        Raises:
            TransportError: it is no file that a node may bring.
            OSError: the spool can't be written.
        """
        name, size = offer.get("name"), offer.get("size")
        if not isinstance(name, str) or not isinstance(size, int) or not 0 <= size <= MAX_FILE_BYTES:
            raise TransportError("a node offered something that is no spool file")
        self._target, self._size, self._name = self._place(name), size, name
        if (name, size) in self._peer.stored:
            return None
        partial = self._partial
        self._have = partial.stat().st_size if partial.exists() else 0
        if self._have > size:
            partial.unlink()
            self._have = 0
        return self._have

    def append(self, data: bytes) -> None:
        """Take in the next bytes.

        Raises:
            TransportError: nothing was offered, or more comes than was offered.
            OSError: the spool can't be written.
        """
        if self._target is None or self._have + len(data) > self._size:
            raise TransportError("a node sent more than it offered")
        with self._partial.open("ab") as file:
            file.write(data)
        self._have += len(data)

    def finish(self, sha256: bytes) -> bool:
        """Put the file in its place for good; False when it is not what the node has, it is then dropped.

        Raises:
            TransportError: nothing was offered.
            OSError: the spool can't be written.
        """
        if self._target is None:
            raise TransportError("a node finished a file that it had not offered")
        target, partial = self._target, self._partial
        self._target = None
        with partial.open("ab+") as file:
            file.seek(0)
            same = self._have == self._size and hashlib.file_digest(file, "sha256").digest() == sha256
            os.fsync(file.fileno())
        if not same:
            partial.unlink()
            return False
        if target.suffix == SEALED:
            self._inbox.adopt(partial)
        else:
            partial.rename(target)
        self._peer.stored.append((self._name, self._size))
        return True

    @property
    def _partial(self) -> Path:
        assert self._target is not None
        return self._target.with_name(self._target.name + ".incoming")

    def _place(self, name: str) -> Path:
        if _SEGMENT.fullmatch(name):
            # The node's id in front: two nodes can never write over each other's files.
            return self._spool.segments / f"from{self._peer.node}-{name}"
        if _RING.fullmatch(name) and name.startswith(f"n{self._peer.node}-"):
            return self._spool.rings / name
        raise TransportError("a node offered something that is no spool file")
