"""Runs the collectors: cheap ones at every tick, dear ones once a second, slow ones in threads of their own.

A collector that fails costs only its own rows: it is closed, opened again later, and the time between is a gap.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from starprof.agent.buffer import RowBuffer
from starprof.collectors.base import Collector, NodeContext, Rows, Unavailable
from starprof.collectors.registry import Entry
from starprof.model.schema import BY_NAME, Table, row

_SECOND_NS = 1_000_000_000
_SLACK_NS = 50_000_000
_FIRST_RETRY_NS = 10 * _SECOND_NS
_LAST_RETRY_NS = 300 * _SECOND_NS
_SOURCE_ERRORS = (Unavailable, OSError, ValueError, LookupError, ArithmeticError, struct.error)
"""What a source that changed its form or vanished makes of the code that reads it."""


class Guarded:
    """One open collector, and what happens when it fails."""

    def __init__(self, collector: Collector, context: NodeContext) -> None:
        self.collector = collector
        self._context = context
        self._good_ns: int | None = None
        self._reason = ""
        self._retry_ns = 0
        self._wait_ns = _FIRST_RETRY_NS

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """One round; a failure ends in a closed collector that is opened again later."""
        if self._reason and mono_ns < self._retry_ns:
            return
        try:
            if self._reason:
                self.collector.open(self._context, rows)
            self.collector.sample(mono_ns, rows)
        except _SOURCE_ERRORS as error:
            self.collector.close()
            self._reason = f"{type(error).__name__}: {error}"
            self._retry_ns = mono_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, _LAST_RETRY_NS)
            return
        if self._reason:
            self._tell_gap(mono_ns, rows)
            self._reason, self._wait_ns = "", _FIRST_RETRY_NS
        self._good_ns = mono_ns

    def _tell_gap(self, mono_ns: int | None, rows: Rows) -> None:
        gap = BY_NAME["gap"]
        cells = row(
            gap,
            source=self.collector.name,
            node=self._context.node,
            from_mono_ns=self._good_ns,
            to_mono_ns=mono_ns,
            reason=self._reason,
        )
        rows.add(gap, cells)

    def close(self, rows: Rows) -> None:
        """Close; a failure that still lasts is told."""
        if self._reason:
            self._tell_gap(None, rows)
        else:
            self.collector.close()


class _Mailbox:
    """Rows of another thread, until the sampling thread fetches them."""

    def __init__(self) -> None:
        self._rows: deque[tuple[Table, Sequence[object]]] = deque()

    def add(self, table: Table, row_: Sequence[object]) -> None:
        self._rows.append((table, row_))

    def empty_into(self, rows: Rows) -> None:
        while self._rows:
            rows.add(*self._rows.popleft())


class _SlowThread:
    """A collector whose reads may block: opened and sampled once a second beside everything else."""

    def __init__(self, collector: Collector, context: NodeContext) -> None:
        self._collector = collector
        self._context = context
        self._stop = threading.Event()
        self.mailbox = _Mailbox()
        self._thread = threading.Thread(target=self._run, name=collector.name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if not _open(self._collector, self._context, self.mailbox):
            return
        guarded = Guarded(self._collector, self._context)
        while not self._stop.is_set():
            began_ns = time.monotonic_ns()
            guarded.sample(began_ns, self.mailbox)
            left_ns = began_ns + _SECOND_NS - time.monotonic_ns()
            self._stop.wait(max(left_ns, _SLACK_NS) / _SECOND_NS)
        guarded.close(self.mailbox)

    def stop(self) -> None:
        """Ask it to end; one that hangs in a driver is left behind."""
        self._stop.set()
        self._thread.join(timeout=0.1)


class Sampler:
    """All collectors of one node."""

    def __init__(self, entries: Iterable[Entry], context: NodeContext, rows: RowBuffer) -> None:
        """Open the collectors; each that can't be opened becomes a row of table `unavailable`."""
        self._rows = rows
        self._cheap: list[Guarded] = []
        self._dear: list[Guarded] = []
        self._due_ns: list[int] = []
        self._threads: list[_SlowThread] = []
        for entry in entries:
            try:
                collector = entry.create()
            except Unavailable as error:
                rows.add(BY_NAME["unavailable"], [context.node, entry.name, str(error)])
                continue
            if getattr(collector, "slow", False):
                self._threads.append(_SlowThread(collector, context))
            elif _open(collector, context, rows):
                (self._dear if collector.dear else self._cheap).append(Guarded(collector, context))

    def sample(self, mono_ns: int) -> None:
        """One tick. Dear collectors take turns within each second."""
        for guarded in self._cheap:
            guarded.sample(mono_ns, self._rows)
        if len(self._due_ns) != len(self._dear):
            self._due_ns = [mono_ns + i * _SECOND_NS // len(self._dear) for i in range(len(self._dear))]
        for i, guarded in enumerate(self._dear):
            due_ns = self._due_ns[i]
            if mono_ns >= due_ns - _SLACK_NS:
                self._due_ns[i] = max(due_ns + _SECOND_NS, mono_ns)
                guarded.sample(mono_ns, self._rows)

    def fetch(self) -> None:
        """Take over the rows of the threads."""
        for thread in self._threads:
            thread.mailbox.empty_into(self._rows)

    def close(self) -> None:
        """Stop the threads and close the collectors."""
        for thread in self._threads:
            thread.stop()
        for guarded in (*self._cheap, *self._dear):
            guarded.close(self._rows)
        self.fetch()


def _open(collector: Collector, context: NodeContext, rows: Rows) -> bool:
    try:
        collector.open(context, rows)
    except _SOURCE_ERRORS as error:
        reason = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        rows.add(BY_NAME["unavailable"], [context.node, collector.name, reason])
        return False
    return True
