"""One file to import, whatever it is packed in; what comes out of it is bounded."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from starprof.errors import InputError

HEAD_BYTES = 64 * 1024
MAX_BYTES = 64 << 30
"""Of one file, unpacked."""

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Source:
    """A file's content.

    Attributes:
        name: what the user is shown: the path as given, with `!member` for a part of an archive.
        path: where the bytes lie (a temporary file for a part of an archive).
        max_bytes: more than this, unpacked, is an error.
    """

    name: str
    path: Path
    max_bytes: int = MAX_BYTES

    @cached_property
    def head(self) -> bytes:
        """The first `HEAD_BYTES`, unpacked; less when the file is damaged there.

        Raises:
            InputError: the file can't be read at all.
        """
        parts, room = [], HEAD_BYTES
        if self._says_empty():
            return b""
        try:
            with self.open() as stream:
                while room > 0 and (part := stream.read(min(room, 8192))):
                    parts.append(part)
                    room -= len(part)
        except InputError:
            if not parts:
                raise
        return b"".join(parts)

    def _says_empty(self) -> bool:
        """Whether there is nothing to read; files of /proc say so too, and some of them would block."""
        try:
            return self.path.stat().st_size == 0
        except OSError as error:
            raise InputError(f"{self.name} can't be read: {_reason(error)}") from error

    @property
    def base(self) -> str:
        """File name without folders, archive, and `.gz`."""
        return self.name.rpartition("!")[2].rpartition("/")[2].removesuffix(".gz")

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked content as a buffered stream.

        Raises:
            InputError: it can't be read, is damaged, or is longer than `max_bytes`; also while it is being read.
        """
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                stream = gzip.GzipFile(fileobj=raw) if packed else raw
                with io.BufferedReader(_Bounded(self, cast("io.BufferedIOBase", stream)), 1 << 18) as buffered:
                    yield cast("BinaryIO", buffered)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.name} can't be read: {_reason(error)}") from error

    def text_lines(self, max_line_bytes: int = 1 << 20) -> Iterator[str]:
        """Lines without their ends, undecodable bytes replaced.

        Raises:
            InputError: see `open`; or a line is longer than `max_line_bytes`.
        """
        with self.open() as stream:
            while line := stream.readline(max_line_bytes + 1):
                if len(line) > max_line_bytes:
                    raise InputError(f"{self.name} is no text file: it has a line of more than {max_line_bytes} bytes")
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")


class _Bounded(io.RawIOBase):
    """Passes reads on and counts."""

    def __init__(self, source: Source, stream: io.BufferedIOBase) -> None:
        self._source = source
        self._stream = stream
        self._left = source.max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        # Not `read`: of a gzip file that is cut off it would drop what came before the end.
        data = self._stream.read1(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise InputError(f"{self._source.name} is larger than {self._source.max_bytes >> 30} GiB unpacked")
        buffer[: len(data)] = data
        return len(data)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is cut off or damaged" if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)) else str(error)
