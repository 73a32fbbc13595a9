"""Replays steps with some operations as they were and the others as they should be.

What an operation takes is its duration where it is a rank's own work; a transfer or collective takes the time from
the moment that its last participant was there, because the rest of its duration is waiting. Ideally an operation
takes what its type takes on the mean (own work) or the median (communication, of which single calls are outliers)
over all ranks and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.whatif.graph import Graph, build
from starprof.analysis.whatif.trace import OpTrace, Schedule, Workers

BLOCK_BYTES = 12 << 20
"""Scenarios are replayed together as long as one matrix of them is not larger."""


@dataclass(frozen=True)
class Part:
    """One schedule, ready to be replayed; rows are in the graph's order.

    Attributes:
        schedule: what was measured, in its own order.
        graph: who waits for whom.
        worker: row in `Workers`, shape (N,).
        kind: index of the operation's name, shape (N,).
        takes_us: what each operation took, waiting left out, shape (N, S).
    """

    schedule: Schedule
    graph: Graph
    worker: Ints
    kind: Ints
    takes_us: Floats

    @cached_property
    def micro_batch(self) -> Ints:
        """Micro-batch and chunk of a pass as one number, shape (N,)."""
        chunk = np.maximum(self.schedule.chunk, 0)
        batch = np.where(self.schedule.micro_batch >= 0, self.schedule.micro_batch, self.schedule.number)
        return (batch * (int(chunk.max(initial=0)) + 1) + chunk)[self.graph.order]

    @cached_property
    def delay_us(self) -> Floats:
        """How long each operation began after what it waits for had ended, shape (N, S); 0 where it waits for none."""
        start = self.schedule.start_us[self.graph.order]
        ended = start + self.schedule.dur_us[self.graph.order]
        ready = self.graph.ready(ended)
        return np.maximum(np.where(np.isnan(ready), 0.0, start - ready), 0.0)


Mask = Callable[[Part], Bools]
"""Which operations of a part are meant, shape (N,)."""


@dataclass(frozen=True)
class Replay:
    """A run's steps, ready to be replayed.

    Attributes:
        names: operation names, by `Part.kind`.
        trace: what the replay was made of.
        parts: schedules.
    """

    trace: OpTrace
    parts: tuple[Part, ...]

    @property
    def workers(self) -> Workers:
        """Who is in the trace."""
        return self.trace.workers

    @cached_property
    def steps(self) -> Ints:
        """Step numbers, rising, shape (S,)."""
        return np.sort(np.concatenate([p.schedule.steps for p in self.parts]))

    @cached_property
    def _place(self) -> Ints:
        return np.argsort(np.concatenate([p.schedule.steps for p in self.parts]), kind="stable")

    def in_step_order(self, by_part: Sequence[Floats]) -> Floats:
        """Values per part, shape (..., S of the part), as one array over all steps."""
        ordered: Floats = np.concatenate(by_part, axis=-1)[..., self._place]
        return ordered

    @cached_property
    def measured_us(self) -> Floats:
        """Step times as measured: first start to last end, shape (S,)."""
        spans = []
        for part in self.parts:
            start, lasting = part.schedule.start_us, part.schedule.dur_us
            spans.append((start + lasting).max(axis=0) - start.min(axis=0))
        return self.in_step_order(spans)

    @cached_property
    def now_us(self) -> Floats:
        """Step times of the replay with every operation as it was: without launch delays, shape (S,)."""
        return self.in_step_order([p.graph.ends(p.takes_us).max(axis=0) for p in self.parts])

    @cached_property
    def ideal_us(self) -> Floats:
        """Step times with every operation ideal, shape (S,)."""
        ideal: Floats = self.only([_nothing])[0]
        return ideal

    @cached_property
    def ideal_of_kind(self) -> Floats:
        """What an operation of each name should take, microseconds, shape (names,)."""
        result = np.zeros(len(self.trace.names))
        for kind, role in enumerate(self.trace.roles):
            taken = [p.takes_us[p.kind == kind].ravel() for p in self.parts]
            values = np.concatenate(taken)
            if len(values):
                result[kind] = values.mean() if role.is_own else np.median(values)
        return result

    def only(self, masks: Sequence[Mask]) -> Floats:
        """Step times if only the operations of a mask are as they were and all others ideal, shape (masks, S)."""
        return self.in_step_order([self._part_only(part, masks) for part in self.parts])

    def fixed(self, masks: Sequence[Mask]) -> Floats:
        """Step times if the operations of a mask are ideal and all others as they were, shape (masks, S)."""
        return self.only([_not(mask) for mask in masks])

    def instead_us(self, takes_us: Sequence[Floats]) -> Floats:
        """Step times if the operations take something else, given per part, shape (S,)."""
        return self.in_step_order([p.graph.ends(t).max(axis=0) for p, t in zip(self.parts, takes_us, strict=True)])

    def _part_only(self, part: Part, masks: Sequence[Mask]) -> Floats:
        rows, steps = part.takes_us.shape
        ideal = self.ideal_of_kind[part.kind][:, None]
        result = np.empty((len(masks), steps))
        at_once = max(1, BLOCK_BYTES // max(1, 8 * rows * steps))
        for first in range(0, len(masks), at_once):
            some = masks[first : first + at_once]
            lasting = np.empty((rows, len(some) * steps))
            for at, mask in enumerate(some):
                block = lasting[:, at * steps : (at + 1) * steps]
                block[:] = ideal
                np.copyto(block, part.takes_us, where=mask(part)[:, None])
            result[first : first + len(some)] = part.graph.ends(lasting).max(axis=0).reshape(len(some), steps)
        return result


def replay_of(trace: OpTrace) -> Replay | None:
    """Make a trace ready; None when no schedule of it can be put in order."""
    parts = []
    for schedule in trace.schedules:
        graph = build(trace, schedule)
        if graph is not None:
            parts.append(_part(trace, schedule, graph))
    return Replay(trace, tuple(parts)) if parts else None


def with_starts(replay: Replay, later_us: Sequence[Floats]) -> Replay:
    """The replay with starts of operations moved, given per part in the order of its schedule.

    Who waits for whom stays: it is told from the order on each rank.
    """
    moved = [replace(p.schedule, start_us=p.schedule.start_us + t) for p, t in zip(replay.parts, later_us, strict=True)]
    trace = replace(replay.trace, schedules=tuple(moved))
    return Replay(trace, tuple(_part(trace, s, p.graph) for s, p in zip(moved, replay.parts, strict=True)))


def _part(trace: OpTrace, schedule: Schedule, graph: Graph) -> Part:
    start, lasting = schedule.start_us[graph.order], schedule.dur_us[graph.order]
    kind = schedule.kind[graph.order]
    own = np.array([role.is_own for role in trace.roles])[kind]
    alone = np.repeat(graph.sizes == 1, graph.sizes)  # the others were not recorded: all of it counts
    waiting_left_out = np.maximum(start + lasting - graph.last_start(start), 0.0)
    takes = np.where((own | alone)[:, None], lasting, waiting_left_out)
    return Part(schedule, graph, schedule.worker[graph.order], kind, takes)


def _nothing(part: Part) -> Bools:
    return np.zeros(len(part.kind), bool)


def _not(mask: Mask) -> Mask:
    return lambda part: ~mask(part)
