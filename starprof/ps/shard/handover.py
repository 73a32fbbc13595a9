"""A shard's files on their way to another process, which goes on from them as it would after a kill."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from starprof.errors import TransportError
from starprof.ps.messages import Inherit, Inherited
from starprof.ps.speech import send, word
from starprof.ps.wire import connect

PIECE_BYTES = 8 << 20
ANSWER_S = 30.0
MOST_BYTES = 1 << 44


def give(files: list[Path], shard: int, address: tuple[str, int], secret: bytes) -> None:
    """Send some files to the process that listens there; holes in them are not sent.

    Raises:
        TransportError: it has not taken them.
    """
    connection = connect(address, secret)
    try:
        send(connection, Inherited(shard, 0))
        connection.receive(ANSWER_S)
        for path in files:
            with path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                send(connection, Inherit(path.name, 0, size))
                for begin, end in _filled(stream.fileno(), size):
                    for at in range(begin, end, PIECE_BYTES):
                        stream.seek(at)
                        piece = stream.read(min(PIECE_BYTES, end - at))
                        send(connection, Inherit(path.name, at, size), memoryview(piece))
        send(connection, Inherited(shard, len(files)))
        answer = word(connection.receive(ANSWER_S))
        if answer != Inherited(shard, len(files)):
            raise TransportError("the other side has not taken the shard")
    except OSError as error:
        raise TransportError(f"a shard's files can't be read: {error}") from error
    finally:
        connection.close()


def _filled(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Parts of a file that are not holes."""
    parts, at = [], 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            break  # holes up to the end
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        parts.append((begin, end))
        at = end
    return parts


class Heir:
    """The side that takes files over."""

    def __init__(self, folder: Path) -> None:
        """Into this folder."""
        self._folder = folder
        self._open = False
        self._names: set[str] = set()

    def begin(self, allowed: bool) -> None:
        """Somebody wants to hand a shard over.

        Raises:
            TransportError: this process is one already.
        """
        if not allowed:
            raise TransportError("this process keeps a shard already")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink()
        self._open, self._names = True, set()

    def room(self, inherit: Inherit, size: int) -> memoryview:
        """Where a piece goes; the last one's is written by then.

        Raises:
            TransportError: it is no piece of a shard's file.
        """
        self._check(inherit)
        if size > PIECE_BYTES or inherit.at + size > inherit.size:
            raise TransportError("a piece of a file is too long")
        descriptor = os.open(self._folder / inherit.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, inherit.size)
            page = inherit.at - inherit.at % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(descriptor, inherit.at - page + size, offset=page)
        finally:
            os.close(descriptor)
        return memoryview(mapped)[inherit.at - page :]

    def empty(self, inherit: Inherit) -> None:
        """A file begins."""
        self._check(inherit)
        descriptor = os.open(self._folder / inherit.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, inherit.size)
        finally:
            os.close(descriptor)

    def _check(self, inherit: Inherit) -> None:
        plain = inherit.name.replace("-", "").replace(".", "").isalnum() and not inherit.name.startswith(".")
        if not self._open or not plain or not 0 <= inherit.at <= inherit.size <= MOST_BYTES:
            raise TransportError("what is handed over is no shard")
        self._names.add(inherit.name)

    def complete(self, files: int) -> None:
        """All has come.

        Raises:
            TransportError: it has not.
        """
        if not self._open or len(self._names) != files:
            raise TransportError("a shard's files are not complete")
        self._open = False
