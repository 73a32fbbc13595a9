"""The agent: one small process per node that samples at a fixed rate and carries everything into the spool.

    main thread      absolute deadlines on CLOCK_MONOTONIC -> collectors -> rows, handed over once a second
    carrier thread   rings + rows -> frames -> segment
    slow threads     collectors that may block in a driver

It outlives the recorder: while ranks run it goes on, and a restarted agent continues where the spool ends.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from starprof.agent.buffer import RowBuffer
from starprof.agent.carrier import Carrier
from starprof.agent.nodeinfo import boot_id, node_row
from starprof.agent.sampler import Sampler
from starprof.agent.state import AgentState, load_state
from starprof.agent.stop import StopSignal
from starprof.agent.watch import ClockWatch, ParentWatch
from starprof.collectors.base import NodeContext
from starprof.collectors.procfile import ProcFile
from starprof.collectors.registry import COLLECTORS
from starprof.model import events
from starprof.model.schema import BY_NAME, row
from starprof.spool.layout import Spool

_SECOND_NS = 1_000_000_000
_STALL_NS = _SECOND_NS
_NO_RANK_YET_NS = 10 * _SECOND_NS
"""How long an agent whose recorder died waits for the job's first rank."""
_COLLECT_GARBAGE_NS = 600 * _SECOND_NS
_COUNT_DESCRIPTORS_NS = 10 * _SECOND_NS
_DESCRIPTORS = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run an agent.

    Attributes:
        parent: process id of the recorder; None runs until SIGTERM.
    """

    spool: Path
    node: int = 0
    rate_hz: float = 10.0
    parent: int | None = None
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


class Agent:
    """One run of the agent.

    Raises:
        SpoolError: the spool can't be written at all.
    """

    def __init__(self, settings: Settings) -> None:
        self._period_ns = round(_SECOND_NS / settings.rate_hz)
        self._rows = RowBuffer()
        spool = Spool(settings.spool)
        own = {os.getpid()} | ({settings.parent} if settings.parent is not None else set())
        self._context = NodeContext(
            settings.node, settings.proc, settings.sys, own_pids=own, supervisor_pid=settings.parent
        )
        self._start_ns = time.monotonic_ns()
        boot = boot_id(settings.proc)
        before = load_state(spool.agents / f"n{settings.node}.json")
        if before is not None and not before.clean and before.boot_id == boot:
            self._gap(before.last_mono_ns, self._start_ns, "the agent ended without finishing and was started again")
        state = AgentState(os.getpid(), boot, self._start_ns)
        self._carrier = Carrier(spool, self._context, state, before.next_slots if before else {})
        self._parent = ParentWatch(Path("/proc"), settings.parent)
        self._clock = ClockWatch()
        self._statm = ProcFile("/proc/self/statm", 128)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._stop = StopSignal()
        self._ticks = 0
        self._late = 0
        self._descriptors_ns = 0
        self._garbage_ns = self._start_ns + _COLLECT_GARBAGE_NS

    def run(self) -> int:
        """Sample until SIGTERM, or until recorder and ranks are gone; returns the exit code."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the job; the recorder tells us when to end
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _allow_descriptors()
        self._carrier.start()
        self._tell_start()
        sampler = Sampler(COLLECTORS, self._context, self._rows)
        gc.collect()
        gc.freeze()  # nothing of the start-up is ever garbage
        gc.disable()
        healthy = written = False
        try:
            healthy = self._loop(sampler)
            sampler.sample(time.monotonic_ns())
        finally:  # also when a collector has a bug: what was recorded must reach the spool
            sampler.close()
            self._each_second(time.monotonic_ns(), sampler)
            written = self._carrier.finish()
        return 0 if written and healthy else 1

    def _loop(self, sampler: Sampler) -> bool:
        """Tick until told to end; returns False when the carrier thread died."""
        due_ns = last_ns = time.monotonic_ns()
        second_ns = half_ns = due_ns
        while True:
            now_ns = time.monotonic_ns()
            if now_ns - due_ns > self._period_ns // 2:
                self._late += 1
            if now_ns - last_ns > _STALL_NS + self._period_ns:
                self._gap(last_ns, now_ns, "the agent did not run: node overloaded, suspended or stopped")
            self._ticks += 1
            sampler.sample(now_ns)
            last_ns = now_ns
            if now_ns >= second_ns:
                second_ns, half_ns = now_ns + _SECOND_NS - self._period_ns // 2, now_ns + _SECOND_NS // 2
                if not self._each_second(now_ns, sampler):
                    return self._carrier.running
            elif now_ns >= half_ns and self._carrier.rings.busy:
                half_ns = second_ns + _SECOND_NS
                self._carrier.wake()
            due_ns += self._period_ns
            left_ns = due_ns - time.monotonic_ns()
            if left_ns < 0:  # rounds that were missed are not made up for
                due_ns += -(left_ns // self._period_ns) * self._period_ns
                left_ns = due_ns - time.monotonic_ns()
            if self._stop.sleep(left_ns / _SECOND_NS):
                return True

    def _each_second(self, now_ns: int, sampler: Sampler) -> bool:
        """Own cost, clocks, garbage; hand the rows over. Returns whether to go on."""
        sampler.fetch()
        self._sample_self(now_ns)
        self._check_clock(now_ns)
        self._carrier.hand_over(now_ns, self._rows.take())
        self._carrier.wake()
        if now_ns >= self._garbage_ns:
            self._garbage_ns = now_ns + _COLLECT_GARBAGE_NS
            gc.collect()
        return self._carrier.running and not self._abandoned(now_ns)

    def _tell_start(self) -> None:
        node = self._context.node
        self._rows.add(BY_NAME["node"], node_row(self._context))
        if node == 0:
            clock = row(BY_NAME["clock"], node=0, mono_ns=self._start_ns, offset_ns=0, error_ns=0, method="same-boot")
            self._rows.add(BY_NAME["clock"], clock)

    def _sample_self(self, now_ns: int) -> None:
        rss_bytes = int(self._statm.read().split()[1]) * self._page_bytes
        cpu_us = time.process_time_ns() // 1000
        descriptors = None
        if now_ns >= self._descriptors_ns:  # listing them is dear
            self._descriptors_ns = now_ns + _COUNT_DESCRIPTORS_NS
            descriptors = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - without the one that lists
        cells = (self._context.node, now_ns, cpu_us, rss_bytes, self._ticks, self._late, descriptors)
        self._rows.add(BY_NAME["agent_sample"], cells)

    def _check_clock(self, now_ns: int) -> None:
        jumped_ns = self._clock.jump_ns(time.monotonic_ns(), time.time_ns())
        if jumped_ns:
            event = {"kind": events.CLOCK_JUMP, "value": jumped_ns // 1000, "detail": "the wall clock was set"}
            self._rows.add(BY_NAME["event"], row(BY_NAME["event"], node=self._context.node, mono_ns=now_ns, **event))

    def _abandoned(self, now_ns: int) -> bool:
        """Whether the recorder is gone and nothing is left to record."""
        if not self._parent.gone(now_ns) or self._carrier.rings.alive(now_ns):
            return False
        assert self._parent.gone_ns is not None
        return self._carrier.rings.seen or now_ns - self._parent.gone_ns > _NO_RANK_YET_NS

    def _gap(self, from_ns: int, to_ns: int, reason: str) -> None:
        gap = {"source": "agent", "node": self._context.node, "from_mono_ns": from_ns, "to_mono_ns": to_ns}
        self._rows.add(BY_NAME["gap"], row(BY_NAME["gap"], **gap, reason=reason))


def _allow_descriptors() -> None:
    """Room for the kept-open files of many processes, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
