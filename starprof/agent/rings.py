"""The rings of this node's ranks: found, drained, and closed when their process is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starprof.agent.buffer import RowBuffer
from starprof.agent.placement import placed
from starprof.collectors.base import NodeContext
from starprof.collectors.procfile import ProcFile, optional, read_once
from starprof.collectors.procstat import parse_stat
from starprof.errors import SpoolError
from starprof.model import events, ring
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import Frame
from starprof.spool.ringreader import RingBatch, RingReader, rank_frame

_EVENT = BY_NAME["event"]
_ATTEMPT = BY_NAME["attempt"]
_SECOND_NS = 1_000_000_000
_DESCRIBE_NS = 5 * _SECOND_NS
"""How often a description that is already known is looked at again."""
_SILENT_NS = 30 * _SECOND_NS
"""A ring whose process can't be seen from here counts as alive for that long after its last sign of life."""
_TICK_NS = 10_000_000
_NEVER_NS = 1 << 62
_BUSY_SLOTS = 500
_TOUCHED_SLOTS = 1000
"""The agent's memory holds no more of each ring than this."""
_EVENT_KIND_AT = 40
"""Offset of the kind in an event slot: five integers stand before it."""


@dataclass
class OpenRing:
    """One ring that is being drained.

    Attributes:
        next_slot: first slot that is not yet in the spool.
        drained_to: first slot that was not yet read; becomes `next_slot` when the frames are written.
        generation: version of the description that is in the spool; `described` becomes it like `drained_to`.
        touched: slots read since their pages were last released.
        process: the rank's /proc/PID/stat; None when its process ended before, or can't be seen from here.
    """

    reader: RingReader
    next_slot: int
    drained_to: int
    generation: int = -1
    described: int = -1
    described_ns: int = 0
    pid: int | None = None
    rank: int | None = None
    attempt: int = 0
    process: ProcFile | None = None
    said_exit: bool = False
    touched: int = 0

    def close(self) -> None:
        """Unmap the ring."""
        self.reader.close()
        if self.process is not None:
            self.process.close()


class Rings:
    """All rings of one node.

    Attributes:
        busy: a ring fills so fast that it should be drained more often than once a second.
    """

    def __init__(self, folder: Path, context: NodeContext, next_slots: Mapping[str, int]) -> None:
        """`next_slots`: where an earlier agent stopped, by ring stem."""
        self.busy = False
        self._folder = str(folder)
        self._context = context
        self._prefix = f"n{context.node}-"
        self._open: dict[str, OpenRing] = {}
        self._done: dict[str, int] = {}
        self._from = dict(next_slots)
        self._attempts: set[int] = set()
        self._oom_kills = self._count_oom_kills()

    def find(self) -> None:
        """Open rings that appeared; one that is not ready is tried again."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - only names are needed
        except OSError:
            return
        for name in names:
            stem, suffix = os.path.splitext(name)  # noqa: PTH122 - no Path objects where it is called twice a second
            if suffix != ".ring" or not stem.startswith(self._prefix) or stem in self._open or stem in self._done:
                continue
            try:
                reader = RingReader(Path(self._folder, name))
            except SpoolError:
                continue
            first = self._from.pop(stem, 0)
            self._open[stem] = OpenRing(reader, first, first)

    def drain(self, mono_ns: int, rows: RowBuffer) -> list[Frame]:
        """Read what is new in every ring. Call `commit` when the frames are written, else they come again."""
        found: list[Frame] = []
        self.busy = False
        for stem, ring_ in self._open.items():
            known = ring_.rank is not None and ring_.generation == ring_.described
            if not known or mono_ns - ring_.described_ns >= _DESCRIBE_NS:
                found += self._describe(stem, ring_, mono_ns, rows)
            if ring_.reader.written > ring_.next_slot:
                batch = ring_.reader.read(ring_.next_slot)
                count = batch.next_slot - ring_.next_slot
                self.busy = self.busy or count > _BUSY_SLOTS
                ring_.touched += count
                if ring_.touched > _TOUCHED_SLOTS:
                    ring_.touched = 0
                    ring_.reader.release()
                found += batch.frames(stem, self._context.node)
                ring_.drained_to = batch.next_slot
                ring_.said_exit = ring_.said_exit or _tells_exit(batch)
        return found

    def commit(self) -> bool:
        """What was drained is in the spool; returns whether there was anything."""
        moved = False
        for ring_ in self._open.values():
            moved = moved or ring_.next_slot != ring_.drained_to
            ring_.next_slot = ring_.drained_to
            ring_.generation = ring_.described
        return moved

    def _describe(self, stem: str, ring_: OpenRing, mono_ns: int, rows: RowBuffer) -> list[Frame]:
        ring_.described_ns = mono_ns
        described = ring_.reader.description()
        if described is None or described[0] == ring_.generation:
            return []
        if described[0] != ring_.described:
            self._learn(ring_, described[1], mono_ns, rows)
        ring_.described = described[0]
        frame = rank_frame(stem, described[0], placed(described[1], self._context.gpu_cards()))
        return [] if frame is None else [frame]

    def _learn(self, ring_: OpenRing, content: Mapping[str, Any], mono_ns: int, rows: RowBuffer) -> None:
        """Take pid, rank and attempt from the description; the newest attempt's process is the rank's."""
        pid, rank, attempt = content.get("pid"), content.get("rank"), content.get("attempt")
        ring_.attempt = attempt if isinstance(attempt, int) else 0
        if isinstance(pid, int) and pid != ring_.pid:
            ring_.pid = pid
            ring_.process = self._process_of(ring_.reader.stem, pid)
        if not isinstance(rank, int):
            return
        ring_.rank = rank
        if ring_.attempt not in self._attempts and self._context.node == 0:
            self._attempts.add(ring_.attempt)
            world_size = content.get("world_size")
            cells = row(_ATTEMPT, attempt=ring_.attempt, started_mono_ns=mono_ns, world_size=world_size)
            rows.add(_ATTEMPT, cells)
        self._publish_pids()

    def _process_of(self, stem: str, pid: int) -> ProcFile | None:
        """The process that wrote a ring; not a later one with its pid (the name says when the ring was made)."""
        process = optional(self._context.proc / str(pid) / "stat", 512)
        made = stem.rpartition("-")[2]
        if process is None or not made.isdecimal():
            return process
        try:
            started_ns = parse_stat(process.read()).start_ticks * _SECOND_NS // os.sysconf("SC_CLK_TCK")
        except OSError:
            started_ns = _NEVER_NS
        # Start times count from boot, the ring's name is CLOCK_MONOTONIC: it stands still while suspended.
        suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        if started_ns - suspended_ns > int(made) + _TICK_NS:
            process.close()
            return None
        return process

    def _publish_pids(self) -> None:
        """Tell the collectors which processes are the ranks."""
        living = sorted(
            (r for r in self._open.values() if r.rank is not None and r.process is not None and _running(r.process)),
            key=lambda r: (r.attempt, r.reader.heartbeat_ns),
        )
        self._context.rank_pids = {r.rank: r.pid for r in living}  # type: ignore[misc]

    def close_ended(self, mono_ns: int, rows: RowBuffer) -> None:
        """Let go of rings whose process ended and that are drained; a silent exit becomes an event.

        Call it after `commit`: a process that is gone before the drain can't have written after it.
        """
        ended = [stem for stem, r in self._open.items() if r.process is not None and not _running(r.process)]
        for stem in ended:
            ring_ = self._open[stem]
            if ring_.reader.written > ring_.next_slot and ring_.reader.read(ring_.next_slot).slots:
                continue
            if not ring_.said_exit:
                self._tell_exit(ring_, mono_ns, rows)
            self._done[stem] = ring_.next_slot
            self._open.pop(stem).close()
        if ended:
            self._publish_pids()

    def _tell_exit(self, ring_: OpenRing, mono_ns: int, rows: RowBuffer) -> None:
        who = {"node": self._context.node, "attempt": ring_.attempt, "rank": ring_.rank, "mono_ns": mono_ns}
        kills = self._count_oom_kills()
        detail = "ended without a word: killed (SIGKILL) or crashed"
        if kills > self._oom_kills >= 0:
            detail = "ended without a word while the kernel killed a process for lack of memory"
            cells = row(_EVENT, **who, kind=events.OOM_KILL, value=ring_.pid, detail="most likely this rank")
            rows.add(_EVENT, cells)
        self._oom_kills = kills
        rows.add(_EVENT, row(_EVENT, **who, kind=events.RANK_EXIT, detail=detail))

    def _count_oom_kills(self) -> int:
        """Kills by the kernel's out-of-memory killer since boot, -1 where it does not tell."""
        try:
            _, _, rest = read_once(self._context.proc / "vmstat").partition(b"\noom_kill ")
        except OSError:
            return -1
        return int(rest.split(None, 1)[0]) if rest else -1

    @property
    def seen(self) -> bool:
        """Whether there was any ring so far."""
        return bool(self._open or self._done)

    def alive(self, mono_ns: int) -> bool:
        """Whether any rank still runs (or wrote lately, where its process can't be seen)."""
        return any(
            _running(r.process) if r.process is not None else mono_ns - r.reader.heartbeat_ns < _SILENT_NS
            for r in list(self._open.values())  # called by another thread than the one that drains
        )

    def next_slots(self) -> dict[str, int]:
        """Where a successor goes on, by ring stem."""
        return self._from | self._done | {stem: r.next_slot for stem, r in self._open.items()}

    def close(self) -> None:
        """Unmap all rings."""
        for ring_ in self._open.values():
            ring_.close()
        self._open.clear()


def _running(process: ProcFile) -> bool:
    """Whether a process exists and is no zombie; the descriptor can't be fooled by a pid that is used again."""
    try:
        return not parse_stat(process.read()).ended
    except OSError:
        return False


def _tells_exit(batch: RingBatch) -> bool:
    kind = events.RANK_EXIT.encode()
    return any(slot.kind == ring.SLOT_EVENT and slot.payload[_EVENT_KIND_AT:].startswith(kind) for slot in batch.slots)
