"""Members of a tar archive, plain or compressed, in memory that the archive can't choose.

`tarfile` reads extended headers whole, however long they say they are; here no single read may be long. It also would
seek: here the archive is one pass forward, so that a compressed one is unpacked once.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    NotImplementedError,
    MemoryError,
    OverflowError,
)
"""What the standard library raises for damaged archives."""

MAX_READ = 1 << 24
"""Longest single read: no honest extended header is longer."""

_XZ_MEMORY = 1 << 28
_MAGICS: tuple[tuple[bytes, str], ...] = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"))


def is_tar(file: Path) -> bool:
    """Whether the file begins with the header of a tar member, once it is unpacked."""
    try:
        with _unpacked(file) as stream:
            tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except PermissionError:
        raise
    except DAMAGE:
        return False
    return True


def members(file: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each plain file; the content must be read before the next one.

    Raises:
        DAMAGE: the archive is damaged.
    """
    with (
        _unpacked(file) as stream,
        tarfile.open(fileobj=cast("IO[bytes]", _Forward(stream)), mode="r:") as archive,
    ):
        for info in archive:
            content = archive.extractfile(info) if info.isreg() else None
            if content is not None:
                with content:
                    yield info.name, content
            archive.members = []  # type: ignore[attr-defined] # it would remember every member of a long archive


@contextlib.contextmanager
def _unpacked(file: Path) -> Iterator[BinaryIO]:
    """The archive's own bytes."""
    with file.open("rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        kind = next((name for magic, name in _MAGICS if start.startswith(magic)), "")
        if kind == "gz":
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw))
        elif kind == "bz2":
            yield cast("BinaryIO", bz2.BZ2File(raw))
        elif kind == "xz":
            yield cast("BinaryIO", io.BufferedReader(_Xz(raw)))
        else:
            yield raw


class _Xz(io.RawIOBase):
    """An xz stream, unpacked with a bound on memory, which `lzma.LZMAFile` has not."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = b""
        while not data and not self._unpack.eof:
            packed = self._raw.read(1 << 16) if self._unpack.needs_input else b""
            if self._unpack.needs_input and not packed:
                raise EOFError("it is cut off")
            data = self._unpack.decompress(packed, max_length=len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Forward:
    """What `tarfile` needs of a file, going forward only and reading no more at once than is honest."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise ValueError("it has a header that is longer than any honest one")
        parts = []
        while size > 0 and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
            self._at += len(part)
        return b"".join(parts)

    def seek(self, position: int) -> int:
        if position < self._at:
            raise ValueError("its members overlap")
        while self._at < position and self.read(min(position - self._at, 1 << 20)):
            pass
        return self._at
