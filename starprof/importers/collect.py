"""From what the user names to files: folders, globs and archives are opened up, within bounds."""

from __future__ import annotations

import glob
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from starprof.errors import InputError
from starprof.importers.source import MAX_BYTES, Source

MAX_FILES = 100_000
MAX_RATIO = 1000
"""An archive that grows by more than this is a bomb, not a trace (deflate reaches 1032)."""
_COPY_BYTES = 1 << 20


def collect(paths: Sequence[str], scratch: Path) -> list[Source]:
    """All files behind the given paths, in a stable order.

    Args:
        paths: files, folders (searched to the bottom), globs, archives (tar, zip).
        scratch: an empty folder of ours for what archives hold; it must live as long as the sources.

    Raises:
        InputError: a path matches nothing, an archive is damaged, or there is too much.
    """
    sources: list[Source] = []
    for path in paths:
        for file in _files(path):
            sources += _opened(file, scratch, len(sources))
            if len(sources) > MAX_FILES:
                raise InputError(f"more than {MAX_FILES} files: name the ones to analyze")
    return sources


def _files(path: str) -> Iterator[Path]:
    given = Path(path)
    if given.is_dir():
        yield from sorted(p for p in given.rglob("*") if p.is_file() and not _hidden(p.relative_to(given)))
    elif given.exists():
        if not given.is_file():
            raise InputError(f"{path} is neither a file nor a folder")
        yield given
    else:
        found = sorted(Path(p) for p in glob.glob(path, recursive=True))  # noqa: PTH207 - the path may be absolute
        if not found:
            raise InputError(f"{path} does not exist")
        for file in found:
            yield from _files(str(file))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _opened(file: Path, scratch: Path, number: int) -> list[Source]:
    if zipfile.is_zipfile(file):
        return _unpacked(file, scratch, number, _zip_members(file))
    if _is_tar(file):
        return _unpacked(file, scratch, number, _tar_members(file))
    return [Source(str(file), file)]


def _is_tar(file: Path) -> bool:
    try:
        return tarfile.is_tarfile(file)
    except (OSError, EOFError, ValueError):
        return False


def _unpacked(file: Path, scratch: Path, number: int, members: Iterator[tuple[str, IO[bytes]]]) -> list[Source]:
    """Copies of an archive's members, under names of ours."""
    allowance = min(MAX_BYTES, max(file.stat().st_size, 1 << 20) * MAX_RATIO)
    sources: list[Source] = []
    try:
        for name, stream in members:
            target = scratch / f"{number + len(sources)}"
            with target.open("wb") as copy:
                while part := stream.read(_COPY_BYTES):
                    allowance -= len(part)
                    if allowance < 0:
                        raise InputError(f"{file} unpacks to more than can be true of a trace")
                    copy.write(part)
            sources.append(Source(f"{file}!{name}", target))
            if len(sources) > MAX_FILES:
                raise InputError(f"{file} holds more than {MAX_FILES} files")
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        NotImplementedError,
    ) as e:
        raise InputError(f"{file} can't be unpacked: {str(e) or type(e).__name__}") from e
    return sources


def _zip_members(file: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir() and not _hidden(Path(info.filename)):
                with archive.open(info) as stream:
                    yield info.filename, stream


def _tar_members(file: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(file) as archive:
        for info in archive:
            stream = archive.extractfile(info) if info.isfile() and not _hidden(Path(info.name)) else None
            if stream is not None:
                with stream:
                    yield info.name, stream
