"""Gives the space of deleted rows back: DuckDB's files do not get smaller by themselves."""

from __future__ import annotations

import os
from pathlib import Path

from starprof.store.runfile import RunFile, copy_database

REWRITE_SUFFIX = ".rewrite"


def compact(run_file: Path) -> None:
    """Rewrite a run file without deleted rows and free blocks, atomically.

    The caller makes sure that nobody writes to the file meanwhile. Readers that have it open keep the old one.

    Raises:
        RunFileError: it can't be rewritten, e.g. the disk is full; the old file is untouched.
    """
    rewritten = run_file.with_name(run_file.name + REWRITE_SUFFIX)
    rewritten.unlink(missing_ok=True)
    log = run_file.with_name(run_file.name + ".wal")
    if log.exists():  # left by a crash; it would be replayed into the new file
        RunFile.open(run_file).close()
    try:
        copy_database(run_file, rewritten)
        _sync(rewritten)
        rewritten.replace(run_file)
        _sync(run_file.parent)
    finally:
        rewritten.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
