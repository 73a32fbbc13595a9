"""Kept-open kernel files: one `pread` from offset 0 is one fresh snapshot.

Opening a file in /proc or /sys costs more than reading it, so what is read at every tick stays open. A descriptor
of /proc/PID/... also stays tied to that one process: when it ends, reading fails, even if its pid is used again.
"""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = 4096


class ProcFile:
    """One kernel file that stays open until `close`."""

    __slots__ = ("_size", "fd")

    def __init__(self, path: Path | str, size: int = _PAGE_BYTES) -> None:
        """Open `path`; `size` is the first guess of its length in bytes.

        Raises:
            OSError: it does not exist or may not be opened.
        """
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        """The content, for files that the kernel makes in one piece; the buffer grows until it fits.

        Raises:
            OSError: what it described is gone.
        """
        data = os.pread(self.fd, self._size, 0)
        while len(data) == self._size:
            self._size *= 2
            data = os.pread(self.fd, self._size, 0)
        return data

    def read_all(self) -> bytes:
        """The content of a list that the kernel hands out page by page (vmstat, cpuinfo, interrupts, mountinfo).

        Raises:
            OSError: what it described is gone.
        """
        parts = []
        at = 0
        while data := os.pread(self.fd, self._size, at):
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class TickFile(ProcFile):
    """A file that several collectors need: read once per tick, whoever asks first; the last one to close closes it."""

    __slots__ = ("_data", "_mono_ns", "users")

    def __init__(self, path: Path | str, size: int = _PAGE_BYTES) -> None:
        super().__init__(path, size)
        self._mono_ns = -1
        self._data = b""
        self.users = 0

    def at(self, mono_ns: int) -> bytes:
        """The content as of the tick `mono_ns`."""
        if mono_ns != self._mono_ns:
            self._data = self.read()
            self._mono_ns = mono_ns
        return self._data

    def close(self) -> None:
        """One user less; call it once for each `shared`."""
        self.users -= 1
        if self.users <= 0:
            super().close()


def shared(files: dict[str, TickFile], path: Path, size: int = _PAGE_BYTES) -> TickFile:
    """The one `TickFile` of `path` among `files` (`NodeContext.shared`), opened when it is not yet.

    Raises:
        OSError: it can't be opened.
    """
    name = str(path)
    found = files.get(name)
    if found is None or found.fd < 0:
        found = files[name] = TickFile(path, size)
    found.users += 1
    return found


def read_once(path: Path | str) -> bytes:
    """Open, read and close: for what is read seldom.

    Raises:
        OSError: it does not exist or may not be read.
    """
    file = ProcFile(path)
    try:
        return file.read_all()
    finally:
        file.close()


def optional(path: Path | str, size: int = _PAGE_BYTES) -> ProcFile | None:
    """A kept-open file, or None where it does not exist or may not be opened."""
    try:
        return ProcFile(path, size)
    except OSError:
        return None
