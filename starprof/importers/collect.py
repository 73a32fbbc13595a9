"""From what the user names to files: folders, globs and archives are opened up, within bounds.

Only plain files are opened: a pipe or a device could block or never end. Links are followed to files, and from what
the user names; links to folders inside a folder are not, so that loops can't trap the search.
"""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from starprof.errors import InputError
from starprof.importers import tarball
from starprof.importers.source import MAX_BYTES, Source

MAX_FILES = 100_000
MAX_RATIO = 1000
"""An archive that grows by more than this is a bomb, not a trace (deflate reaches 1032)."""

_COPY_BYTES = 1 << 20
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2}
"""What a member of a zip may be packed with; LZMA would let the file choose how much memory it takes."""


def collect(paths: Sequence[str], scratch: Path) -> list[Source]:
    """All files behind the given paths, in a stable order, each once.

    Args:
        paths: files, folders (searched to the bottom), globs, archives (tar, zip), `ARCHIVE!PART` for a member or a
            folder in one.
        scratch: an empty folder of ours for what archives hold; it must live as long as the sources.

    Raises:
        InputError: a path matches nothing or can't be read, an archive is damaged, or there is too much.
    """
    sources: list[Source] = []
    seen: set[tuple[int, int, str]] = set()
    for path in paths:
        whole, part = _parted(path)
        before = len(sources)
        for file, named in _files(whole):
            status = _status(file)
            if status is None or (status.st_dev, status.st_ino, part) in seen:
                continue
            seen.add((status.st_dev, status.st_ino, part))
            sources += _opened(file, scratch, len(sources), named=named, part=part)
            if len(sources) > MAX_FILES:
                raise InputError(f"more than {MAX_FILES} files: name the ones to analyze")
        if part and len(sources) == before:
            raise InputError(f"{whole} holds no {part}")
    return sources


def _parted(path: str) -> tuple[str, str]:
    """An archive and the part of it that is meant, "" for all of it."""
    whole, sign, part = path.partition("!")
    if not sign or not part or os.path.lexists(path) or not os.path.lexists(whole):
        return path, ""
    return whole, part.strip("/")


def _files(path: str) -> Iterator[tuple[Path, bool]]:
    """Plain files, and whether the user named the file itself."""
    given = Path(path)
    try:
        if given.is_dir():
            for file in _walk(given):
                yield file, False
        elif given.exists():
            if not given.is_file():
                raise InputError(f"{path} is neither a file nor a folder")
            yield given, True
        else:
            yield from _matches(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path} can't be read: {reason}") from error


def _matches(path: str) -> Iterator[tuple[Path, bool]]:
    """What a pattern stands for; `**` does not follow links."""
    given = Path(path)
    pattern = str(given.relative_to(given.anchor)) if given.is_absolute() else path
    if not any(sign in path for sign in "*?["):
        raise InputError(f"{path} does not exist")
    hidden = any(part.startswith(".") and part not in {".", ".."} for part in given.parts)
    found = 0
    for match in sorted(_few(Path(given.anchor or ".").glob(pattern), path)):
        if not hidden and _hidden(match.relative_to(given.anchor) if given.is_absolute() else match):
            continue
        found += 1
        if match.is_dir():
            for file in _walk(match):
                yield file, False
        elif match.is_file():
            yield match, True
    if not found:
        raise InputError(f"{path} matches nothing")


def _few(found: Iterator[Path], path: str) -> list[Path]:
    result: list[Path] = []
    for match in found:
        result.append(match)
        if len(result) > MAX_FILES:
            raise InputError(f"{path} matches more than {MAX_FILES} files: name the ones to analyze")
    return result


def _walk(folder: Path) -> Iterator[Path]:
    """Plain files below a folder, in order, without hidden ones.

    Raises:
        InputError: there are too many, or the folder itself can't be listed.
    """
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{folder} can't be read: permission denied")
    result: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        result += [Path(place) / name for name in names if not name.startswith(".")]
        if len(result) > MAX_FILES:
            raise InputError(f"{folder} holds more than {MAX_FILES} files: name the ones to analyze")
    yield from (file for file in sorted(result) if file.is_file())


def _status(file: Path) -> os.stat_result | None:
    """None when it has vanished meanwhile, or is no plain file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") and part not in {".", ".."} for part in path.parts)


def _opened(file: Path, scratch: Path, number: int, *, named: bool, part: str) -> list[Source]:
    """The file, or what it holds: an archive that was named, or that says by its name what it is.

    Checkpoints and other files that happen to be zips lie in the same folders, and are not unpacked.
    """
    plain = [] if part else [Source(str(file), file)]
    if not named and not file.name.lower().endswith(_ARCHIVES):
        return plain
    try:
        if zipfile.is_zipfile(file):
            return plain if _is_checkpoint(file) else _unpacked(file, scratch, number, _zip_members(file), part)
        if tarball.is_tar(file):
            return _unpacked(file, scratch, number, tarball.members(file), part)
    except tarball.DAMAGE as error:
        if isinstance(error, PermissionError):
            return plain
        raise InputError(f"{file} can't be unpacked: {str(error) or type(error).__name__}") from error
    return plain


def _is_checkpoint(file: Path) -> bool:
    """A file of torch.save: a zip with one pickle and its tensors."""
    with zipfile.ZipFile(file) as archive:
        return any(name.rpartition("/")[2] == "data.pkl" for name in archive.namelist()[:8])


def _unpacked(
    file: Path, scratch: Path, number: int, members: Iterator[tuple[str, IO[bytes]]], part: str
) -> list[Source]:
    """Copies of an archive's members (those of one part), under names of ours."""
    allowance = min(MAX_BYTES, max(file.stat().st_size, 1 << 20) * MAX_RATIO, shutil.disk_usage(scratch).free // 2)
    sources: list[Source] = []
    for name, stream in members:
        if _hidden(Path(name)) or (part and name.strip("/") != part and not name.startswith(f"{part}/")):
            continue
        target = scratch / f"{number + len(sources)}"
        with target.open("wb") as copy:
            while piece := stream.read(_COPY_BYTES):
                allowance -= len(piece)
                if allowance < 0:
                    raise InputError(f"{file} unpacks to more than can be true of a trace")
                copy.write(piece)
        sources.append(Source(f"{file}!{name}", target))
        if len(sources) > MAX_FILES:
            raise InputError(f"{file} holds more than {MAX_FILES} files")
    return sources


def _zip_members(file: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.is_dir() or _hidden(Path(info.filename)):
                continue
            if info.compress_type not in _METHODS:
                raise InputError(f"{file} is packed in a way that is not supported (method {info.compress_type})")
            with archive.open(info) as stream:
                yield info.filename, stream
