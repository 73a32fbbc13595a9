"""Folds a spool into its run exactly once: the short process that runs from time to time while recording.

    python -m starprof.store.ingest SPOOL RUN [--final] [--max-size BYTES]

RUN is a run file, or the address of a database (see `starprof.store.clickhouse.address`).

Segments are read in order, their new rows are committed together with the ledger, and only then are the files
removed: killed at any point, the next run goes on where the last commit left off. Parts that are still being
written are read too, but left alone. `--final` also empties the rings of ranks that are gone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starprof.errors import RunFileError, SpoolError, StarprofError
from starprof.model.columns import row
from starprof.model.tables.job import RUN
from starprof.spool.frame import Frame
from starprof.spool.layout import Spool
from starprof.spool.ringreader import SLOTS_STREAM, RingReader, is_mapped, rank_frame
from starprof.spool.segment import Segment, claim, list_segments, readable_frames
from starprof.spool.smallprocess import leave_pandas_out
from starprof.store.base import WritableRun
from starprof.store.batch import Batch
from starprof.store.clickhouse.address import is_address
from starprof.store.rollup import keep_below
from starprof.store.runfile import RunFile, RunFileLocked, arrow_rows

COMMIT_BYTES = 96 << 20
"""Raw bytes of one transaction: enough that DuckDB writes whole row groups at once, past its log."""

APPEND_BYTES = 1 << 20
"""Raw bytes that are turned into Arrow at once."""

PLACE = "store"
"""Key in the spool's run.json: the database that the run goes to; missing = a run file."""

BUSY_EXIT_CODE = 75
"""Another process has the spool or the run file: try again later (EX_TEMPFAIL)."""

_RING_NODE = re.compile(r"n(\d+)-")
_RETRY_S = 0.05
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What one fold did.

    Attributes:
        rows: rows added. duplicates: rows that were there already. gaps: holes that were recorded.
        damaged: files with unreadable places, now `*.bad`.
        left: files that stay because their writer lives; empty after a final fold means the spool is done with.
    """

    rows: int
    duplicates: int
    gaps: int
    damaged: tuple[Path, ...]
    left: tuple[Path, ...]


def fold(
    spool: Spool,
    run_file: Path,
    *,
    final: bool = False,
    consume: bool = True,
    wait_s: float = 5.0,
    max_size_bytes: int | None = None,
) -> FoldReport:
    """Fold everything that is new into the run file.

    Args:
        spool: where to read.
        run_file: created when it is missing.
        final: also empty the rings; the job is over, or its recorder is gone.
        consume: remove what was folded in; off, the spool is only read.
        wait_s: how long to wait for another ingester or a reader.
        max_size_bytes: roll old samples up when the file is larger.

    Raises:
        RunFileLocked: the spool or the file is in use for longer than `wait_s`.
        RunFileError: the file can't be written, or holds another run.
        SpoolError: the spool can't be read or cleared.
    """
    with at_work_on(spool, wait_s if consume else None):
        check_place(spool, None)
        with RunFile.open(run_file, wait_s=wait_s) as run:
            report = fold_into(run, spool, final=final, consume=consume)
        if max_size_bytes is not None:
            keep_below(run_file, max_size_bytes, wait_s=wait_s)
        return report


@contextmanager
def at_work_on(spool: Spool, wait_s: float | None) -> Iterator[None]:
    """Keep other ingesters away, unless the spool is only read."""
    try:
        with nullcontext() if wait_s is None else ingester_lock(spool, wait_s):
            yield
    except OSError as error:
        raise SpoolError(f"can't fold in {spool.root}: {error.strerror}: {error.filename or ''}") from error


def fold_into(
    run: WritableRun, spool: Spool, *, final: bool, consume: bool = True, describe: bool = True
) -> FoldReport:
    """Fold everything that is new into an open run; `describe`: the spool also says what the run is called."""
    if describe:
        _write_run_row(spool, run)
    this = _Fold(spool, run, consume)
    this.take_segments()
    if final:
        this.take_rings()
        write_attempts(run)
    return this.report()


@dataclass
class _Fold:
    """One pass over a spool."""

    spool: Spool
    run: WritableRun
    consume: bool
    batch: Batch = field(init=False)
    damaged: list[Path] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)
    _done: list[tuple[Path, int | None, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.batch = Batch.resume(self.run)

    def report(self) -> FoldReport:
        batch = self.batch
        return FoldReport(batch.rows, batch.duplicates, batch.gaps, tuple(self.damaged), tuple(self.left))

    def take_segments(self) -> None:
        """Fold in sealed segments and parts, source by source, by number."""
        self._take_all(list_segments(self.spool.segments), lambda segment: segment.path, self._take_segment)

    def take_rings(self) -> None:
        """Fold in what is still in the rings; a ring that no process maps any more is then removed."""
        self._take_all(sorted(self.spool.rings.glob("*.ring")), lambda path: path, self._take_ring)

    def _take_all(self, sources: Sequence[_T], path_of: Callable[[_T], Path], take: Callable[[_T], None]) -> None:
        """Take sources in transactions of bounded size; only after the commit let go of their files."""
        waiting = list(sources)
        while waiting:
            with self.run.transaction():
                taken_bytes = 0
                while waiting and taken_bytes < COMMIT_BYTES:
                    source = waiting.pop(0)
                    taken_bytes += _size(path_of(source))
                    take(source)
                self.batch.finish(self.run)
            self._let_go()

    def _take_segment(self, segment: Segment) -> None:
        claimed = None
        writer_lives = False
        if self.consume and not segment.sealed:
            claimed = claim(segment.path)
            writer_lives = claimed is None
        try:
            data = segment.path.read_bytes()
        except FileNotFoundError:  # sealed since it was listed: the next pass reads it under its new name
            return
        reason, end = None, 0
        for frame, begin, stop in readable_frames(data):
            if begin != end:
                reason = f"{begin - end} unreadable bytes at {end}"
            reason = self._accept(frame) or reason
            end = stop
        if segment.sealed and end < len(data):
            reason = f"{len(data) - end} unreadable bytes at its end"
        if writer_lives:
            self.left.append(segment.path)
        else:
            self._finish(segment.path, claimed, reason)

    def _take_ring(self, path: Path) -> None:
        in_use = is_mapped(path)  # asked first: what a process wrote before it went is then read below
        try:
            reader = RingReader(path)
        except SpoolError as error:
            if not in_use:
                self._finish(path, None, str(error))
            return
        try:
            self._read_ring(reader)
        finally:
            reader.close()
        if in_use:
            self.left.append(path)
        else:
            self._finish(path, None, None)

    def _read_ring(self, reader: RingReader) -> None:
        described = reader.description()
        rank = rank_frame(reader.stem, *described) if described else None
        if rank:
            self._accept(rank)
        node = _RING_NODE.match(reader.stem)
        batch = reader.read(self.batch.next_seq(reader.stem + SLOTS_STREAM))
        for frame in batch.frames(reader.stem, int(node[1]) if node else 0):
            self._accept(frame)

    def _accept(self, frame: Frame) -> str | None:
        """Take a frame; what is wrong with it otherwise."""
        try:
            self.batch.accept(frame)
        except SpoolError as error:
            return str(error)
        if self.batch.raw_bytes >= APPEND_BYTES:
            self.batch.flush(self.run)
        return None

    def _finish(self, path: Path, claimed: int | None, damage: str | None) -> None:
        """Remember a file that is read to its end."""
        if damage:
            self.batch.accept_damage(path.name, damage)
        self._done.append((path, claimed, damage is not None))

    def _let_go(self) -> None:
        """Remove the files whose rows are committed; a damaged one is moved aside."""
        for path, claimed, damaged in self._done:
            if self.consume and damaged:
                path.rename(path.with_name(path.name + ".bad"))
            elif self.consume:
                path.unlink(missing_ok=True)
            if damaged:
                self.damaged.append(path)
            if claimed is not None:
                os.close(claimed)
        self._done.clear()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # sealed or taken meanwhile
        return 0


def known_of(spool: Spool) -> dict[str, Any]:
    """What the recorder knows of the run; it may not have written that yet."""
    try:
        known = json.loads(spool.run_json.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def check_place(spool: Spool, database: str | None) -> None:
    """What was recorded into one place goes on there: only its ledger knows what has arrived.

    Raises:
        SpoolError: it belongs somewhere else.
    """
    begun = known_of(spool).get(PLACE)
    if begun and begun != database:
        raise SpoolError(
            f"{spool.root} belongs to a run in {begun}: `starprof store push {spool.root} {begun}` folds it in there"
        )


def _write_run_row(spool: Spool, run: WritableRun) -> None:
    """Bring table `run` up to date with what the recorder knows.

    Raises:
        RunFileError: the file belongs to another recording.
    """
    known = known_of(spool)
    if not known:
        return
    if isinstance(known.get("command"), list):
        known["command"] = shlex.join(known["command"])
    cells = row(RUN, **{name: known.get(name) for name in RUN.names})
    there = run.query(f"SELECT {run.select_list(RUN)} FROM run")  # noqa: S608 - the schema's own names
    if there and there[0][0] != cells[0]:
        raise RunFileError(f"{run.place} already holds another run ({there[0][1]}): choose another output file")
    if not there or list(there[0]) != cells:
        run.replace("run", arrow_rows("run", [cells]))


def write_attempts(run: WritableRun) -> None:
    """Derive table `attempt`: when its first node first saw a step, and how many ranks took part."""
    rows = run.query("""
        SELECT r.attempt, arg_min(s.first_ns, (r.node, s.first_ns)), coalesce(max(r.world_size), count(*))
        FROM rank r LEFT JOIN (SELECT attempt, rank, min(start_mono_ns) AS first_ns FROM step GROUP BY ALL) s
            ON s.attempt = r.attempt AND s.rank = r.rank
        GROUP BY r.attempt ORDER BY r.attempt""")
    run.replace("attempt", arrow_rows("attempt", rows))


@contextmanager
def ingester_lock(spool: Spool, wait_s: float) -> Iterator[None]:
    """One ingester at a time for each spool; the lock dies with its process."""
    fd = os.open(spool.root / "ingest.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    give_up = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    holder = os.pread(fd, 20, 0).decode() or "?"
                    raise RunFileLocked(f"{spool.root} is being folded in by process {holder}: try again") from None
                time.sleep(_RETRY_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the ingester process; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m starprof.store.ingest", description="Fold a spool into a run file."
    )
    parser.add_argument("spool", type=Path)
    parser.add_argument("run")
    parser.add_argument("--final", action="store_true", help="also empty the rings: the job is over")
    parser.add_argument("--max-size", type=int, metavar="BYTES", help="roll old samples up when the file is larger")
    chosen = parser.parse_args(arguments)
    leave_pandas_out()
    try:
        if is_address(chosen.run):
            from starprof.store.clickhouse.folding import fold_into_database

            fold_into_database(Spool(chosen.spool), chosen.run, final=chosen.final)
        else:
            fold(Spool(chosen.spool), Path(chosen.run), final=chosen.final, max_size_bytes=chosen.max_size)
    except RunFileLocked as error:
        sys.stderr.write(f"starprof: {error}\n")
        return BUSY_EXIT_CODE
    except StarprofError as error:
        sys.stderr.write(f"starprof: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
