"""Carries rows and rings into the spool, in a thread of its own: a slow disk must not delay the samples."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from starprof.agent.buffer import RowBuffer, Rows, Streams
from starprof.agent.rings import Rings
from starprof.agent.state import AgentState, StateFile
from starprof.collectors.base import NodeContext
from starprof.errors import SpoolError
from starprof.model import events
from starprof.model.schema import BY_CODE, BY_NAME, row
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter

_SECOND_NS = 1_000_000_000
_RETRY_NS = 2 * _SECOND_NS
"""How long a spool that could not be written is left alone; the rings hold the ranks' records meanwhile."""
_KEPT_ROWS = 10_000
"""At most so many rare rows (events, names) wait for a full disk to have room again."""
_WAKE_S = 1.0


class Carrier:
    """Drains rings at each `wake` (or once a second) and writes what `hand_over` left."""

    def __init__(self, spool: Spool, context: NodeContext, state: AgentState, next_slots: Mapping[str, int]) -> None:
        """`next_slots`: where the agent before stopped reading each ring.

        Raises:
            SpoolError: the spool can't be written.
        """
        source = f"n{context.node}"
        self._writer = SegmentWriter(spool.segments, source)
        self._streams = Streams(f"{source}-{state.pid}-{time.monotonic_ns()}")
        self.rings = Rings(spool.rings, context, next_slots)
        self._node = context.node
        self._state = state
        try:
            self._state_file = StateFile(spool.agents / f"{source}.json")
        except OSError as error:
            raise SpoolError(f"can't write the spool in {spool.agents}: {error.strerror}") from error
        self._handed: deque[tuple[int, Rows]] = deque()
        self._own = RowBuffer()
        self._kept: Rows = {}
        self._dropped = 0
        self._failed_ns: int | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread works; when it does not, the agent has to end and be started again."""
        return self._thread.is_alive()

    def hand_over(self, mono_ns: int, rows: Rows) -> None:
        """Give the rows sampled until `mono_ns` to the thread."""
        self._handed.append((mono_ns, rows))

    def wake(self) -> None:
        """Let it work now."""
        self._wake.set()

    def finish(self) -> bool:
        """Drain and write a last time, seal, and end; returns whether everything is in the spool."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        return self._state.clean

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_WAKE_S)
            self._wake.clear()
            now_ns = time.monotonic_ns()
            if self._failed_ns is None or now_ns - self._failed_ns >= _RETRY_NS:
                self._carry(now_ns)
        self._finish()

    def _finish(self) -> None:
        written = self._carry(time.monotonic_ns())
        self.rings.close()
        try:
            self._writer.close()
        except SpoolError:
            written = False
        self._state.clean = written
        self._save_state()
        self._state_file.close()

    def _carry(self, now_ns: int) -> bool:
        """One round; returns whether all that it had is now in the spool."""
        self.rings.find()
        frames = self.rings.drain(now_ns, self._own)
        rows, sampled_ns = self._gather()
        frames += self._streams.frames(_joined(rows, self._loss(now_ns)) if self._dropped else rows)
        try:
            self._writer.write(frames)
        except SpoolError:
            self._keep_rare(rows)
            self._failed_ns = now_ns
            return False
        self._failed_ns = None
        self._dropped = 0
        self._streams.commit()
        moved = self.rings.commit()
        self.rings.close_ended(now_ns, self._own)
        if moved or sampled_ns is not None:
            self._state.last_mono_ns = sampled_ns or self._state.last_mono_ns
            self._save_state()
        return True

    def _gather(self) -> tuple[Rows, int | None]:
        """All rows that wait, and up to when they were sampled (None: no samples among them)."""
        rows, self._kept = _joined(self._kept, self._own.take()), {}
        sampled_ns = None
        while self._handed:
            sampled_ns, part = self._handed.popleft()
            rows = _joined(rows, part)
        return rows, sampled_ns

    def _loss(self, now_ns: int) -> Rows:
        """The note of what was dropped while the spool could not be written."""
        buffer = RowBuffer()
        event = {"kind": events.DISK_FULL, "value": self._dropped, "detail": "the spool could not be written"}
        buffer.add(BY_NAME["event"], row(BY_NAME["event"], node=self._node, mono_ns=now_ns, **event))
        gap = {"source": "agent", "node": self._node, "from_mono_ns": self._state.last_mono_ns, "to_mono_ns": now_ns}
        reason = "the spool could not be written (disk full?)"
        buffer.add(BY_NAME["gap"], row(BY_NAME["gap"], **gap, lost_rows=self._dropped, reason=reason))
        return buffer.take()

    def _keep_rare(self, rows: Rows) -> None:
        """The spool can't be written: samples are dropped and counted, rare rows wait."""
        for code, content in rows.items():
            kept = [] if BY_CODE[code].sampled else content[-_KEPT_ROWS:]
            self._dropped += len(content) - len(kept)
            if kept:
                self._kept[code] = kept

    def _save_state(self) -> None:
        self._state.next_slots = self.rings.next_slots()
        try:
            self._state_file.save(self._state)
        except OSError:
            return  # a full disk: the successor reads the rings from an older slot, the ledger cuts what is double


def _joined(first: Rows, second: Rows) -> Rows:
    """Rows of both, per table in this order."""
    return {code: [*first.get(code, ()), *second.get(code, ())] for code in first | second}
