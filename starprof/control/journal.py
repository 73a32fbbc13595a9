"""What control did, on its way into the run file: updates, switches of the mode, and each rank's part in them.

The coordinator's process and the engine in every rank have one each. Rows go through the spool like all others: into
segments, which the ingester folds in exactly once. Nothing here waits for a disk to sync.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from starprof.errors import SpoolError
from starprof.model.columns import Table, row
from starprof.model.ranklists import listed
from starprof.model.tables.sync import ADVISOR_ACTION, NATIVE, SYNC_NOISE, SYNC_STEP, SYNC_SWITCH, SYNC_UPDATE
from starprof.model.valuelists import gradient_cells
from starprof.spool.frame import Frame, json_frame, packed_frame
from starprof.spool.segment import SEALED, SegmentWriter
from starprof.sync.noise_scale import Estimate, Squares
from starprof.sync.policies import Update
from starprof.sync.protocol.messages import Close

__all__ = ["NATIVE", "ControlJournal"]

HOLD_S = 1.0
"""Rows are written together that come within this time: one system call instead of hundreds."""

SEAL_S, SEAL_BYTES = 30.0, 1 << 20
"""Age and size from which a segment is handed over. The ingester of the same machine reads it before that too."""

ROWS_AT_ONCE = 500
"""Rows that are written without waiting for more."""

ROWS_AT_MOST = 10_000
"""Rows that wait while nothing can be written; the oldest of more are lost, which the ingester records as a gap."""

TEXT_AT_MOST = 1_000
_INT_LIMIT = 2**63
_IN_JSON = {table.name: table for table in (SYNC_UPDATE, SYNC_SWITCH, SYNC_NOISE, ADVISOR_ACTION)}
_P = ParamSpec("_P")


def _harmless(ours: Callable[_P, None]) -> Callable[_P, None]:
    """The caller trains, or keeps others training: whatever goes wrong here is counted, and told once."""

    @functools.wraps(ours)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        journal = args[0]
        assert isinstance(journal, ControlJournal)
        if journal.pid != os.getpid():  # a forked child: the lock may be held for ever, the rows are the parent's
            return
        try:
            ours(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary
            journal.swallow(error)

    return call


class ControlJournal:
    """Writes the rows of one process. Its methods may be called from several threads, and never raise.

    Rows wait up to `HOLD_S` for others, and are then written by whatever is called next: whoever has nothing to say for
    a while (a rank that waits, a coordinator without arrivals) calls `tick` now and then. A kill loses what waits.

    Attributes:
        errors: what went wrong so far, swallowed.
        pid: of the process that it writes for; in a forked child its methods do nothing.
    """

    def __init__(self, segments: Path, node: int, *, attempt: int = 0) -> None:
        """Begin without touching a file.

        Args:
            segments: folder of segments of this node's spool.
            node: id of this node.
            attempt: restart count of the job.
        """
        self.errors = 0
        self.pid = os.getpid()
        self._segments = segments
        self._node = node
        self._attempt = attempt
        self._source = f"n{node}-control-{self.pid}-{time.monotonic_ns() // 1000}"
        self._lock = threading.Lock()
        self._held: dict[str, list[list[Any]]] = {}
        self._next: dict[str, int] = {}
        self._tried_s = -math.inf
        self._failed = False
        self._writer: _Segments | None = None
        ours = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(ours))

    @_harmless
    def update(
        self,
        update: Close | Update,
        *,
        mode: str,
        options: Mapping[str, object] | None = None,
        epoch: int | None = None,
        mono_ns: int | None = None,
    ) -> None:
        """A round was closed, or is known better than before: the newest row of one version, epoch and try counts.

        Args:
            update: what the coordinator told the ranks, or what the policy decided.
            mode: that decided it.
            options: of the mode.
            epoch: of the coordinator, where `update` does not tell it.
            mono_ns: when, if not now.
        """
        close = update if isinstance(update, Close) else None
        version = update.round if isinstance(update, Close) else update.onto
        gradients = zip(update.gradients, update.weights, strict=True)
        rows = [(g.worker, g.number, g.version, g.samples, w * max(g.steps, 1)) for g, w in gradients]
        cells = gradient_cells(version, rows)
        self._add(
            SYNC_UPDATE,
            row(
                SYNC_UPDATE,
                node=self._node,
                mono_ns=time.monotonic_ns() if mono_ns is None else _whole(mono_ns),
                attempt=self._attempt,
                version=_whole(version),
                epoch=_known(close.epoch if close is not None else epoch),
                retries=_whole(close.attempt) if close is not None else 0,
                mode=_text(mode),
                options=_json(options),
                released=_released(close) if close is not None else None,
                native=int(close.native) if close is not None else 0,
                **cells,
            ),
        )

    @_harmless
    def switch(
        self,
        *,
        from_mode: str,
        to_mode: str,
        asked_by: str,
        version: int | None,
        reason: str = "",
        from_options: Mapping[str, object] | None = None,
        to_options: Mapping[str, object] | None = None,
        epoch: int | None = None,
        took_us: int | None = None,
        mono_ns: int | None = None,
    ) -> None:
        """The mode was changed; written at once, with all that waits.

        Args:
            from_mode: before, `NATIVE` or the name of a mode.
            to_mode: after.
            asked_by: user, advisor or coordinator.
            version: from which it holds; None: it did not come about.
            reason: why, or why not.
            from_options: of the mode before.
            to_options: of the mode after.
            epoch: of the coordinator.
            took_us: from the wish to the first update of the new mode.
            mono_ns: when it began to hold, if not now.
        """
        self._add(
            SYNC_SWITCH,
            row(
                SYNC_SWITCH,
                node=self._node,
                mono_ns=time.monotonic_ns() if mono_ns is None else _whole(mono_ns),
                attempt=self._attempt,
                epoch=_known(epoch),
                version=_known(version),
                from_mode=_text(from_mode),
                from_options=_json(from_options),
                to_mode=_text(to_mode),
                to_options=_json(to_options),
                asked_by=_text(asked_by),
                reason=_text(reason) or None,
                took_us=_known(took_us),
            ),
        )
        self.flush()

    @_harmless
    def rank_step(
        self,
        *,
        rank: int,
        step: int,
        number: int | None,
        version: int,
        waited_us: int | None,
        updates: int,
        skipped: int = 0,
        not_finite: int | None = None,
    ) -> None:
        """A rank has ended a step in rounds.

        Args:
            rank: whose.
            step: its number in the rank's step records.
            number: of the gradient that it handed in, None for none.
            version: of its parameters at the end of the step.
            waited_us: from handing in to its release.
            updates: that it applied, replayed ones included.
            skipped: batches that it left out before the step.
            not_finite: updates that it left out, as it has come to know since the step before; None: it can't know.
        """
        cells = (self._attempt, rank, step, number, version, waited_us, updates, skipped, not_finite)
        self._add(SYNC_STEP, [_known(cell) for cell in cells])

    @_harmless
    def noise(self, *, version: int, mode: str, gradients: int, squares: Squares, estimate: Estimate) -> None:
        """The gradients of an update were looked at.

        Args:
            version: of the parameters that it was applied to.
            mode: that it was made in.
            gradients: that were looked at.
            squares: what they tell.
            estimate: running one, with this.
        """
        self._add(
            SYNC_NOISE,
            row(
                SYNC_NOISE,
                node=self._node,
                mono_ns=time.monotonic_ns(),
                attempt=self._attempt,
                version=_whole(version),
                mode=_text(mode),
                gradients=_whole(gradients),
                local=squares.local,
                mean=squares.update,
                share=squares.share,
                scale=_finite(estimate.scale),
                low=_finite(estimate.low),
                high=_finite(estimate.high),
            ),
        )

    @_harmless
    def advisor(self, cells: Mapping[str, Any]) -> None:
        """What an advisor did; written at once.

        Args:
            cells: of table `advisor_action`, without node, time and attempt.
        """
        told = {**cells, "options": _json(cells.get("options"))}
        here = {"node": self._node, "mono_ns": time.monotonic_ns(), "attempt": self._attempt}
        self._add(ADVISOR_ACTION, row(ADVISOR_ACTION, **here, **told))
        self.flush()

    @_harmless
    def tick(self) -> None:
        """Write what has waited long enough; for loops that wait for something else."""
        if any(self._held.values()) and time.monotonic() - self._tried_s >= HOLD_S:
            with self._lock:
                self._write()

    @_harmless
    def flush(self) -> None:
        """Write what waits; where that has just failed, the next `tick` tries again."""
        with self._lock:
            if not self._failed:
                self._write()

    @_harmless
    def close(self) -> None:
        """Write what waits and hand the segment over; the journal can still be used afterwards."""
        with self._lock:
            self._write()
            if self._writer is not None:
                writer, self._writer = self._writer, None
                writer.close()

    def swallow(self, error: Exception) -> None:
        """Count an error, and tell the first one."""
        self.errors += 1
        if self.errors == 1:
            told = f"starprof: what control does is not recorded completely: {type(error).__name__}: {error}\n"
            try:
                os.write(2, told.encode("utf-8", "replace"))
            except OSError:
                return  # nobody listens

    def forget(self) -> None:
        """In a forked child: let go of the segment, whose lock would else outlive the parent."""
        if self._writer is not None:
            self._writer.let_go()
            self._writer = None

    def _add(self, table: Table, cells: list[Any]) -> None:
        with self._lock:
            held = self._held.setdefault(table.name, [])
            held.append(cells)
            if len(held) > ROWS_AT_MOST:
                del held[0]
                self._next[table.name] = self._next.get(table.name, 0) + 1
            many = len(held) >= ROWS_AT_ONCE and not self._failed
            if many or time.monotonic() - self._tried_s >= HOLD_S:
                self._write()

    def _write(self) -> None:
        """Write all rows that wait, or none; they stay where they can't be written."""
        if not any(self._held.values()):
            return
        self._tried_s = time.monotonic()
        self._failed = True
        try:
            if self._writer is None:
                self._writer = _Segments(self._segments, self._source)
            self._writer.write([self._frame(name, rows) for name, rows in self._held.items() if rows])
            for name, rows in self._held.items():
                self._next[name] = self._next.get(name, 0) + len(rows)
                rows.clear()
            if self._writer.is_due():
                self._writer.seal()
            self._failed = False
        except SpoolError:
            self.forget()  # the ingester finds what is in the part
            raise

    def _frame(self, name: str, rows: list[list[Any]]) -> Frame:
        stream, seq = f"{self._source}/{name}", self._next.get(name, 0)
        if name == SYNC_STEP.name:
            return packed_frame(SYNC_STEP, stream, seq, rows)
        return json_frame(_IN_JSON[name], stream, seq, rows)


class _Segments(SegmentWriter):
    """Segments that are handed over without a sync: a crash of the machine may cost rows, a step never waits."""

    def __init__(self, folder: Path, source: str) -> None:
        super().__init__(folder, source, seal_bytes=1 << 60, seal_seconds=float("inf"))

    def is_due(self) -> bool:
        """Whether it is time to hand the segment over."""
        return self._bytes >= SEAL_BYTES or time.monotonic() - self._opened_s >= SEAL_S

    def seal(self) -> None:
        """See the class."""
        if self._fd is None or not self._bytes:
            return
        try:
            self._path.rename(self._path.with_suffix(SEALED))
        except OSError as error:
            raise self._failure(error) from error
        self.let_go()

    def let_go(self) -> None:
        """Close the segment, whatever is in it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _forget(journal: weakref.ref[ControlJournal]) -> None:
    """What a forked child does about its parent's journal, if that is still there."""
    ours = journal()
    if ours is not None:
        ours.forget()


def _released(close: Close) -> str | None:
    """Who goes on with it; None where that is who contributed, as it mostly is."""
    return None if set(close.release) == set(close.members) else listed(close.release)


def _whole(value: object) -> int:
    """A number that fits a cell, also where it came as another library's."""
    whole = int(value)  # type: ignore[call-overload]
    if not -_INT_LIMIT < whole < _INT_LIMIT:
        raise ValueError(f"{whole} fits no column")
    return int(whole)


def _known(value: object) -> int | None:
    return None if value is None else _whole(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: object) -> str:
    """A text that every reader can decode."""
    return str(value)[:TEXT_AT_MOST].encode("utf-8", "replace").decode()


def _json(options: Mapping[str, object] | None) -> str | None:
    return json.dumps(dict(options), default=str, sort_keys=True) if options else None
