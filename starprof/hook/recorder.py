"""The state of recording in one rank: who runs the loop, what the current step has spent, and the ring.

A process begins FRESH: the patches are in place, nothing is recorded and no file exists. The first sign of
training (`activate`) makes it a rank with a ring. A forked child is FRESH again, so data-loader workers and other
helpers never record, and a forked rank gets a ring of its own. There are no locks and no threads: only the thread
that runs the loop changes the phases, or autograd's threads while that one is inside a backward pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import get_worker_info

from starprof.hook import identity
from starprof.hook.boundary import Guard, uncompiled
from starprof.hook.gpuclock import GPU_SPANS, GpuClock
from starprof.hook.phases import CHECKPOINT, COMPILE, EVAL, PhaseMachine, spans_us
from starprof.model import env, events
from starprof.model.columns import INT_NULL
from starprof.model.tables.job import STEP
from starprof.spool.layout import Spool
from starprof.spool.ringwriter import RingWriter

SAMPLE_EVERY = 64
"""Steps between two measurements of our own cost."""
RETRIES_EVERY = 16
"""Steps between two reads of the allocator's statistics, which cost tens of microseconds."""
LOOK_FOR_GPU_STEPS = 64
"""Steps in which a GPU may still turn up."""
NOBODY = 0

_FIRST_GPU_CELL = STEP.names.index("gpu_forward_us")
_RETRIES_CELL = STEP.names.index("alloc_retries")
_NOT_ON_CPU = (INT_NULL,) * (_RETRIES_CELL - _FIRST_GPU_CELL + 1)
_STEP_EVENTS = ((EVAL, events.EVALUATION), (CHECKPOINT, events.CHECKPOINT), (COMPILE, events.COMPILE))


class Recorder:
    """One per process; see the module.

    Attributes:
        owner: thread that runs the loop, NOBODY while nothing is recorded.
        machine: phases of the current step.
        depth: 1 while the loop is inside a backward pass.
        step: number of the current step.
        passed_over: steps after the current one that this rank leaves out, so that numbers mean the same on all ranks.
        started: step 0 has begun: data were fetched for it, or a root module was called.
        explicit: the user marks the steps with `starprof.step()`; optimizers end none.
        backwards: backward passes begun since the process became a rank.
        arrival_ns, first_bucket_ns: when they happened in this step, 0 = not.
        sync_point: the next collective is where this rank is ready to reduce.
        at_step_end: called with the step's number at the boundaries where something is due (`attend_at`); each
            returns the step at which it wants to be called next.
        attend_at: the next such step.
    """

    def __init__(self, spool: Path, guard: Guard, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.spool = Spool(spool)
        self.guard = guard
        self.clock = clock
        guard.report = self._report_error
        self.at_step_end: list[Callable[[int], int]] = []
        self.use_gpu: list[Callable[[], None]] = []
        self.detail: dict[str, Any] = {}
        self.roles: dict[str, int] = {}
        self.framework = "none"
        self.machine = PhaseMachine(clock)
        self.reset()

    def reset(self) -> None:
        """FRESH: also in a forked child, where the parent's ring must not be touched."""
        self.owner = NOBODY
        self.start_ns = self.machine.reset()
        self.attend_at = 0
        self.ring: RingWriter | None = None
        self.gpu: GpuClock | None = None
        self.refused = False
        self.started = False
        self.explicit = False
        self.depth = 0
        self.step = 0
        self.passed_over = 0
        self.backwards = 0
        self._described: dict[str, Any] = {}
        self._retries = 0
        self._boundary_ns = 0
        self.rank = 0
        self.attempt = 0
        self._clear_step()

    def _clear_step(self) -> None:
        self.arrival_ns = 0
        self.first_bucket_ns = 0
        self.sync_point = False
        self.micro_batches = 0
        self.collectives = 0
        self.samples = INT_NULL
        self.tokens = INT_NULL

    # Becoming a rank.

    def activate(self) -> bool:
        """A sign of training: make this process a rank, unless it is a helper. Returns whether it is one."""
        if self.owner != NOBODY:
            return True
        if self.refused or self.guard.off or get_worker_info() is not None:
            return False
        with uncompiled():
            return self._become_rank()

    def _become_rank(self) -> bool:
        self.rank, self.attempt = identity.global_rank(), identity.attempt()
        try:
            self.ring = self._new_ring()
        except OSError as error:
            self.refused = True
            self.guard.errors += 1
            os.write(
                2, f"starprof: rank {self.rank} is not recorded: no ring in {self.spool.rings}: {error}\n".encode()
            )
            return False
        self.start_ns = self.machine.reset()
        self.owner = get_ident()
        self.describe()
        self.event(events.RANK_START, value=os.getpid())
        return True

    def _new_ring(self) -> RingWriter:
        self.spool.rings.mkdir(parents=True, exist_ok=True)
        name = f"n{identity.node()}-{os.getpid()}-{time.monotonic_ns()}.ring"
        return RingWriter(self.spool.rings / name)

    def follow_rank(self) -> None:
        """A process group was made: become a rank, with a new ring if the rank is another one than before."""
        if self.owner != NOBODY and identity.global_rank() != self.rank:
            self.reset()
        if self.activate():
            self.describe()

    def describe(self) -> None:
        """Bring the ring's description up to date."""
        if self.ring is None:
            return
        with uncompiled():
            description = identity.describe(self.framework, self.roles, self.detail)
            if description != self._described:
                self._described = description
                self.ring.describe(description)

    # Spans.

    def counts(self) -> bool:
        """Whether the calling thread is the loop's, or one of autograd's working for it."""
        if get_ident() == self.owner:
            return True
        return self.depth > 0 and torch._C._current_autograd_node() is not None

    def enter(self, phase: int) -> int | None:
        """Begin a span; None if the call is not part of the loop, else what `leave` needs."""
        return self.machine.enter(phase) if get_ident() == self.owner or self.counts() else None

    def begin_step_again(self) -> None:
        """Nothing has been trained yet: step 0 begins now."""
        self._clear_step()
        self.started = True
        self.start_ns = self.machine.restart()

    def count_batch(self, samples: int | None, tokens: int | None) -> None:
        """A batch was fetched for this step."""
        if samples is not None:
            self.samples = samples if self.samples == INT_NULL else self.samples + samples
        if tokens is not None:
            self.tokens = tokens if self.tokens == INT_NULL else self.tokens + tokens

    def event(self, kind: str, value: int | None = None, detail: str = "") -> None:
        """Write an event of this rank, tied to the current step."""
        if self.ring is not None:
            self.ring.event(
                kind, self.clock(), attempt=self.attempt, rank=self.rank, step=self.step, value=value, detail=detail
            )

    def _report_error(self, count: int, detail: str) -> None:
        self.event(events.HOOK_ERROR, value=count, detail=detail)

    # Step boundary.

    def finish_step(self) -> None:
        """The step ends here: write its record."""
        now, spent = self.machine.cut()
        start, number, guard = self.start_ns, self.step, self.guard
        duration, spans = spans_us(now - start, spent)
        arrival, first_bucket = self.arrival_ns, self.first_bucket_ns
        cells = [
            self.attempt,
            self.rank,
            number,
            start,
            duration,
            *spans,
            (arrival - start) // 1000 if arrival else INT_NULL,
            (first_bucket - start) // 1000 if first_bucket else INT_NULL,
            self.micro_batches,
            self.collectives,
            self.samples,
            self.tokens,
            *_NOT_ON_CPU,
            guard.own_ns + self._boundary_ns if guard.special else INT_NULL,
        ]
        if self.gpu is None:
            if self.ring is not None:
                self.ring.step(now, cells)
        else:
            cells[_RETRIES_CELL] = self._new_retries(number)
            self.gpu.finish(cells)
            self._write_ready(now, flush=False)
        self.start_ns = now
        self.step = number + 1 + self.passed_over
        self.passed_over = 0
        self._clear_step()
        guard.failed = ""
        if spans[EVAL] or spans[CHECKPOINT] or spans[COMPILE]:
            self._step_events(number, spans)
        if number >= self.attend_at or guard.special:
            self._attend(now, number)

    def attend(self) -> None:
        """Something is due at the end of this step."""
        self.attend_at = self.step

    def _attend(self, now: int, number: int) -> None:
        """What is not due at every step."""
        guard = self.guard
        usual_ns = self.clock() - now
        with uncompiled():
            due = [callback(number) for callback in self.at_step_end]
            if number < LOOK_FOR_GPU_STEPS:
                self._early(number)
                due.append(number + 1)
        sample_at = number - number % SAMPLE_EVERY + SAMPLE_EVERY - 1
        guard.sampling = number == sample_at
        if guard.sampling:
            # A record can't hold its own writing: it gets that of the step before.
            self._boundary_ns = usual_ns
            guard.own_ns = 0
            sample_at += SAMPLE_EVERY
        self.attend_at = min([*due, sample_at])

    def _write_ready(self, now: int, *, flush: bool) -> None:
        if self.gpu is None or self.ring is None:
            return
        for cells, times in self.gpu.ready(flush=flush):
            cells[_FIRST_GPU_CELL : _FIRST_GPU_CELL + GPU_SPANS] = [INT_NULL if t is None else t for t in times]
            self.ring.step(now, cells)

    def _step_events(self, number: int, spans: list[int]) -> None:
        if self.ring is None:
            return
        for phase, kind in _STEP_EVENTS:
            if spans[phase]:
                self.ring.event(
                    kind, self.clock(), attempt=self.attempt, rank=self.rank, step=number, value=spans[phase]
                )

    def _early(self, number: int) -> None:
        """What becomes known during the first steps."""
        if number == 0:
            self.event(events.STEP_LATE_START, value=process_age_us())
        if self.gpu is None and torch.cuda.is_initialized():
            self.gpu = GpuClock(lambda: torch.cuda.Event(enable_timing=True))
            for callback in self.use_gpu:
                callback()
        if number in (0, 1, 7, LOOK_FOR_GPU_STEPS - 1):
            self.describe()

    def _new_retries(self, number: int) -> int:
        """Allocator retries since they were last read, NULL in the steps between."""
        if number % RETRIES_EVERY:
            return INT_NULL
        total = int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))
        new, self._retries = total - self._retries, total
        return max(new, 0)

    # The end.

    def finish(self) -> None:
        """The process exits in an orderly way: write what is pending, and say what was not seen."""
        if self.ring is None:
            return
        now, spent = self.machine.cut()
        self._write_ready(now, flush=True)
        self._step_events(self.step, spans_us(now - self.start_ns, spent)[1])
        if self.step == 0:
            self.event(events.HOOK_NOTE, detail="no step boundary seen")
        if self.guard.failed:
            self.ended_by(self.guard.failed)
        self.event(events.RANK_EXIT, detail="exit")
        self.owner = NOBODY
        self.refused = True

    def ended_by(self, exception: str) -> None:
        """An exception of the user's ended the loop (or the process)."""
        self.guard.failed = ""
        self.event(events.EXCEPTION, detail=exception)


def process_age_us() -> int | None:
    """Microseconds since this process was started (since its `exec` does not change that)."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])
    started_s = ticks / os.sysconf("SC_CLK_TCK")
    return round((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1e6)


def from_environment(guard: Guard) -> Recorder | None:
    """The recorder that the launcher asked for; None when it asked for none: off means off."""
    spool = os.environ.get(env.SPOOL)
    if not spool or os.environ.get(env.DISABLE) == "1":
        return None
    return Recorder(Path(spool), guard)
