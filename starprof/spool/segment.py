"""Segments: the append-only files in which frames reach the ingester. Standard library only.

A source (an agent) writes `<source>.<number>.part`, one write(2) for each batch of frames, and renames the
synced file to `.seg`. A killed writer therefore loses nothing that `write` returned for, and leaves at worst
one torn frame at the end of one `.part`. The writer holds a flock on its `.part`, so that "is its writer
alive" has an exact answer; a lock dies with its process.

Numbers grow with time, also over restarts of the writer and when all earlier segments are already folded in:
they start at the microseconds of the monotonic clock (a segment takes longer than one). Segments of one source
are folded in by number.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starprof.errors import SpoolError
from starprof.spool.frame import MAGIC, Frame, frames

PART = ".part"
SEALED = ".seg"
_NAME = re.compile(r"(?P<source>[A-Za-z0-9_-]+)\.(?P<number>\d+)(?P<suffix>\.part|\.seg)")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One segment file; sorts by source, then by number."""

    source: str
    number: int
    path: Path

    @property
    def sealed(self) -> bool:
        """Complete and synced: nobody writes to it any more."""
        return self.path.suffix == SEALED


def list_segments(folder: Path) -> list[Segment]:
    """Every segment and part in a folder, in the order in which they have to be folded in."""
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(Segment(match["source"], int(match["number"]), path))
    return sorted(found)


def claim(path: Path) -> int | None:
    """Lock a `.part` whose writer is gone; None while the writer lives (or when the part is no longer there).

    The caller closes the returned descriptor, after it has unlinked or renamed the file.
    """
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    if _lock(fd) and os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return None


def readable_frames(data: bytes) -> Iterator[tuple[Frame, int, int]]:
    """All valid frames with where they begin and end, also those behind a damaged place."""
    at = 0
    view = memoryview(data)
    while 0 <= at < len(data):
        begin = at
        for frame, end in frames(view[at:]):
            yield frame, begin, at + end
            begin = at + end
        at = data.find(MAGIC, begin + 1)


class SegmentWriter:
    """Writes the frames of one source; used by one thread of one process.

    Raises:
        SpoolError: from every method, when the folder can't be written; what `write` was given is then not
            in the spool (give it again later), and everything before it still is.
    """

    def __init__(self, folder: Path, source: str, *, seal_bytes: int = 4 << 20, seal_seconds: float = 5.0) -> None:
        if not _NAME.fullmatch(f"{source}.0{PART}"):
            raise ValueError(f"not a segment source: {source!r}")
        self._folder = folder
        self._source = source
        self._seal_bytes = seal_bytes
        self._seal_seconds = seal_seconds
        self._fd: int | None = None
        self._path = folder
        self._bytes = 0
        self._opened_s = 0.0
        self._number = max(self._adopt_abandoned() + 1, time.monotonic_ns() // 1000)

    def write(self, frames: Sequence[Frame]) -> None:
        """Append all frames or none, by one system call; seal the segment when it is large or old enough."""
        self.write_encoded(b"".join(frame.encode() for frame in frames))

    def write_encoded(self, data: bytes) -> None:
        """The same with frames that somebody else has encoded."""
        if not data:
            self.seal_if_old()
            return
        fd = self._fd if self._fd is not None else self._open_part()
        try:
            written = os.write(fd, data)
        except OSError as error:
            os.ftruncate(fd, self._bytes)
            raise self._failure(error) from error
        if written < len(data):
            os.ftruncate(fd, self._bytes)
            raise self._failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        self._bytes += written
        self.seal_if_old()

    def seal_if_old(self) -> None:
        """Seal the segment when it is large or old enough."""
        if self.older(self._seal_bytes, self._seal_seconds):
            self.seal()

    def older(self, most_bytes: int, seconds: float) -> bool:
        """Whether the segment that is being written has that size or age."""
        if self._fd is None:
            return False
        return self._bytes >= most_bytes or time.monotonic() - self._opened_s >= seconds

    def descriptor(self) -> int | None:
        """Of what was written and is not sealed yet, for the caller to sync and close; None: all is sealed."""
        return None if self._fd is None else os.dup(self._fd)

    def adopt(self, path: Path) -> None:
        """Take in a whole, synced file as a segment of its own, after all that was written before."""
        self.seal()
        try:
            path.rename(self._folder / f"{self._source}.{self._number:016d}{SEALED}")
            self._number += 1
            sync_folder(self._folder)
        except OSError as error:
            raise self._failure(error) from error

    def seal(self) -> None:
        """Make what was written durable and hand it to the ingester; nothing to do without frames."""
        if self._fd is None or not self._bytes:  # a part with only failed writes stays in use
            return
        try:
            os.fsync(self._fd)
            self._path.rename(self._path.with_suffix(SEALED))
            os.close(self._fd)
            self._fd = None
            sync_folder(self._folder)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Seal, and release the part also when sealing fails (it is then found as an abandoned part)."""
        try:
            self.seal()
            if self._fd is not None:
                self._path.unlink(missing_ok=True)
        finally:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _open_part(self) -> int:
        """Create and lock the next part; a part that somebody claimed before we had the lock is left to him."""
        while True:
            path = self._folder / f"{self._source}.{self._number:016d}{PART}"
            self._number += 1
            try:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise self._failure(error) from error
            if _lock(fd) and os.fstat(fd).st_nlink:
                self._fd, self._path, self._bytes, self._opened_s = fd, path, 0, time.monotonic()
                return fd
            os.close(fd)

    def _adopt_abandoned(self) -> int:
        """Seal the parts that a killed writer of this source left; returns the highest number in the folder."""
        last = -1
        try:
            for segment in list_segments(self._folder):
                if segment.source != self._source:
                    continue
                last = max(last, segment.number)
                if not segment.sealed:
                    _seal_abandoned(segment.path)
        except OSError as error:
            raise self._failure(error) from error
        return last

    def _failure(self, error: OSError) -> SpoolError:
        if error.errno in _NO_SPACE:
            return SpoolError(f"no space left for the spool in {self._folder}: free some; rows are dropped until then")
        return SpoolError(f"can't write the spool in {self._folder}: {error.strerror}")


def _seal_abandoned(path: Path) -> None:
    """Cut the torn tail off and rename, unless the writer lives."""
    fd = claim(path)
    if fd is None:
        return
    try:
        ends = [end for _, _, end in readable_frames(path.read_bytes())]
        if not ends:
            path.unlink()
            return
        os.ftruncate(fd, ends[-1])
        os.fsync(fd)
        path.rename(path.with_suffix(SEALED))
        sync_folder(path.parent)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
