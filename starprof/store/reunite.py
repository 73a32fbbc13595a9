"""Spools of other nodes that belong to a run: what they could not deliver to node 0 is folded in there later.

Both sides know the run's id, and the ledger of node 0's file knows how far each stream got: rows that were delivered
twice are cut off, as if the connection had never been lost.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starprof.errors import RunFileError
from starprof.spool.layout import SPOOL_SUFFIX, Spool
from starprof.store.ingest import fold
from starprof.store.query import open_for_reading
from starprof.store.runfile import RunFile, arrow_rows


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording to read: a run file or spool, and spools of the same run that go into it."""

    path: Path
    parts: tuple[Spool, ...] = ()


def is_bare_spool(path: Path) -> bool:
    """Whether it is a spool directory that has no run file yet."""
    return path.is_dir() and not path.with_name(path.name.removesuffix(SPOOL_SUFFIX)).is_file()


def reunite(inputs: Sequence[Path]) -> list[Recording]:
    """The recordings among the inputs: bare spools go to the run file, or else to the first spool, of their run.

    Raises:
        RunFileError: an input can't be read.
    """
    ids = {path: _run_id(path) for path in inputs}
    home: dict[str, Path] = {}
    for path in sorted(inputs, key=is_bare_spool):
        home.setdefault(ids[path], path)
    parts: dict[Path, list[Spool]] = {}
    kept = []
    for path in inputs:
        if ids[path] and is_bare_spool(path) and home[ids[path]] != path:
            parts.setdefault(home[ids[path]], []).append(Spool(path))
        else:
            kept.append(path)
    return [Recording(path, tuple(parts.get(path, ()))) for path in kept]


@contextmanager
def opened(recording: Recording) -> Iterator[tuple[RunFile, str]]:
    """A recording open for reading, and what the user should know; the inputs are left alone.

    Raises:
        RunFileError: it can't be read.
    """
    if not recording.parts and not is_bare_spool(recording.path):
        with open_for_reading(recording.path) as reading:
            yield reading.run, reading.note
        return
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder) / "run.starprof"
        note = _copy(recording.path, run_file)
        for part in recording.parts:
            _add(part, run_file)
        with RunFile.open_read_only(run_file) as run:
            yield run, note


def _copy(path: Path, run_file: Path) -> str:
    if is_bare_spool(path):
        _check(path)
        fold(Spool(path), run_file, final=True, consume=False)
        return ""
    with open_for_reading(path) as reading:
        shutil.copyfile(reading.run.path, run_file)
        log = reading.run.path.with_name(reading.run.path.name + ".wal")
        if log.exists():
            shutil.copyfile(log, run_file.with_name(run_file.name + ".wal"))
        return reading.note


def _add(part: Spool, run_file: Path) -> None:
    """Fold a spool in; what the run is called and how it ended stays as node 0 knows it."""
    with RunFile.open(run_file) as run:
        facts = run.query("SELECT * FROM run")
    fold(part, run_file, final=True, consume=False)
    if facts:
        with RunFile.open(run_file) as run:
            run.replace("run", arrow_rows("run", facts))


def _run_id(path: Path) -> str:
    """Id of the run, "" when it is not known."""
    if is_bare_spool(path):
        _check(path)
        try:
            return str(json.loads(Spool(path).run_json.read_text()).get("run_id") or "")
        except (OSError, ValueError):
            return ""
    with open_for_reading(path) as reading:
        rows = reading.run.query("SELECT run_id FROM run")
    return str(rows[0][0]) if rows else ""


def _check(path: Path) -> None:
    if not Spool(path).segments.is_dir():
        raise RunFileError(f"{path} is neither a run file nor a spool directory")
