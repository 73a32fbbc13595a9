"""Gives the space of deleted rows back: DuckDB reuses free blocks, but its files never get smaller by themselves."""

from __future__ import annotations

import os
from pathlib import Path

from starprof.store.runfile import RunFile, copy_database

REWRITE_SUFFIX = ".rewrite"
WORTH_SHARE = 0.05
"""Share of the file that has to be free before it is worth rewriting it."""


def compact(run_file: Path, *, wait_s: float = 0.0) -> bool:
    """Rewrite a run file without its free blocks, atomically; False when that is not worth it.

    The caller makes sure that nobody writes to the file meanwhile. Readers that have it open keep the old one.

    Raises:
        RunFileError: it can't be rewritten, e.g. the disk is full; the old file is untouched.
    """
    with RunFile.open(run_file, wait_s=wait_s) as run:
        run.checkpoint()
        ((total, free),) = run.query(
            "SELECT total_blocks, free_blocks FROM pragma_database_size() WHERE database_name = 'run'"
        )
    log = run_file.with_name(run_file.name + ".wal")
    if free < WORTH_SHARE * total or log.exists():  # a log would be replayed into the new file
        return False
    rewritten = run_file.with_name(run_file.name + REWRITE_SUFFIX)
    rewritten.unlink(missing_ok=True)
    try:
        copy_database(run_file, rewritten)
        _sync(rewritten)
        rewritten.replace(run_file)
        _sync(run_file.parent)
    finally:
        rewritten.unlink(missing_ok=True)
    return True


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
