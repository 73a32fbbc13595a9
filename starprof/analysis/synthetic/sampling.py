"""The common time base of a synthetic run's counters, and what of each rank's time they count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic.faults import CPU_PHASES, CpuHog, Pinned, Quota, window

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats, Ints
    from starprof.analysis.synthetic.run import SyntheticRun
    from starprof.model.rundata import Steps

Parts = Sequence[Mapping[str, "Floats"]]


class Sampling:
    """When samples are taken, and how counters grow between them.

    Attributes:
        edges_ns: begin of each step and end of the last, shape (S + 1,).
        ticks_ns: moments of the samples, shape (N,).
        tick_s: the same in seconds since the first.
    """

    def __init__(self, run: SyntheticRun, steps: Steps, parts: Parts) -> None:
        self.run, self.steps, self.parts = run, steps, parts
        start = steps.start_mono_ns[0].astype(np.float64)
        self.edges_ns = np.r_[start, start[-1] + steps["dur_us"][0, -1] * 1e3]
        period = 1e9 / run.rate_hz
        self.ticks_ns = np.arange(self.edges_ns[0], self.edges_ns[-1] + period, period)
        self.tick_s = (self.ticks_ns - self.ticks_ns[0]) / 1e9

    @cached_property
    def mono_ns(self) -> Ints:
        """The ticks as samples hold them."""
        return self.ticks_ns.astype(np.int64)

    @cached_property
    def step_of_tick(self) -> Ints:
        """Step in which each tick lies, shape (N,)."""
        place = np.searchsorted(self.edges_ns, self.ticks_ns, side="right") - 1
        return np.clip(place, 0, self.run.steps - 1)

    def cumulative(self, per_step: Floats) -> Floats:
        """Counter at every tick of something that grows by `per_step`, shape (S,), within each step."""
        grown: Floats = np.rint(np.interp(self.ticks_ns, self.edges_ns, np.r_[0.0, np.cumsum(per_step)]))
        return grown

    def active(self, start: int, end: int | None) -> Bools:
        """Ticks within some steps."""
        last = self.run.steps if end is None else end
        on: Bools = (self.ticks_ns >= self.edges_ns[start]) & (self.ticks_ns <= self.edges_ns[last])
        return on

    def in_steps(self, start: int, end: int | None) -> Bools:
        """Mask of the steps in a window, shape (S,)."""
        return window(self.run.steps, start, end)

    @cached_property
    def members(self) -> tuple[Ints, ...]:
        """Ranks of each node."""
        return tuple(np.flatnonzero(self.run.node_of == node) for node in range(self.run.nodes))

    @cached_property
    def hogged(self) -> Floats:
        """Time per step that foreign processes took from each rank, shape (R, S)."""
        return self._lost(CpuHog)

    @cached_property
    def pinned(self) -> Floats:
        """Time per step that a narrow mask took."""
        return self._lost(Pinned)

    @cached_property
    def throttled(self) -> Floats:
        """Time per step that a quota took."""
        return self._lost(Quota)

    def _lost(self, kind: type) -> Floats:
        total = np.zeros((self.run.ranks, self.run.steps))
        for fault, part in zip(self.run.faults, self.parts, strict=True):
            if isinstance(fault, kind):
                total += getattr(fault, "counted", 1.0) * np.sum(list(part.values()), axis=0)
        return total

    @cached_property
    def busy(self) -> Floats:
        """CPU time per step of each rank, shape (R, S)."""
        spans = np.sum([self.steps[f"{name}_us"] for name in CPU_PHASES if name != "data_wait"], axis=0)
        busy: Floats = np.maximum(spans - self.hogged - self.throttled, 0.0)
        return busy

    def cpu_of(self, rank: int) -> int:
        """Logical CPU that a rank runs on."""
        return rank % self.run.cores
