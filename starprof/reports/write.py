"""Puts a report on disk: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from starprof.errors import StarprofError, UsageError


def check_target(path: Path, *, force: bool) -> None:
    """Refuse early, before minutes of work.

    Raises:
        UsageError: the file exists and `force` is not set, or its folder does not exist.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file with -o")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; add --force to overwrite it")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist")


def write(path: Path, content: str) -> int:
    """Write `content` beside `path` and rename it there, so that no reader ever sees half of it.

    Returns:
        Size in bytes.

    Raises:
        StarprofError: the file can't be written.
    """
    raw = content.encode("utf-8")
    scratch: str | None = None
    try:
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except OSError as error:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)
        raise StarprofError(f"can't write {path}: {error.strerror or error}") from error
    return len(raw)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
