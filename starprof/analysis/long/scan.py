"""One pass over a run that is too long for memory: what is kept of it is bounded, however long it is.

Kept are, per step, the centre of the ranks' own time; per rank a histogram of its slowdown and how often it was last;
means over windows of steps, whose width doubles whenever there would be too many of them; and, from the offline rules
on each block of steps by itself, the stretches in which a rank was late for too short a time to show in those means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.comparison import Comparison
from starprof.analysis.detect import candidates, late_intervals
from starprof.analysis.own_time import OwnTime, own_time
from starprof.analysis.peers import peer_centre
from starprof.analysis.settings import Settings
from starprof.model.rundata import RunData, Steps
from starprof.model.schema import STEP_SPANS
from starprof.model.tables.job import STEP

MAX_STRETCHES = 4_096
KEPT_COLUMNS = (
    "dur_us",
    *STEP_SPANS,
    *(name for name in STEP.names if name.startswith("gpu_")),
    *("micro_batches", "samples", "tokens"),
)
LOG_RANGE = (-1.0, 2.5)
BINS = 512


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be held at a time, in rank-steps (of up to twenty columns of eight bytes each).

    Attributes:
        block_cells: raw rank-steps that are looked at together.
        kept_cells: ranks times windows of the means.
        least_columns: steps of a block and windows of the means however many ranks there are.
    """

    block_cells: int = 1 << 17
    kept_cells: int = 1 << 17
    least_columns: int = 128

    def block_steps(self, ranks: int) -> int:
        """Steps of a block that is looked at in one piece."""
        return max(self.least_columns, self.block_cells // max(1, ranks))

    def windows(self, ranks: int) -> int:
        """Most windows that are kept, an even number."""
        return max(self.least_columns, self.kept_cells // max(1, ranks)) // 2 * 2


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rank is late in the steps [start, end), by `excess` of the healthy step on average."""

    row: int
    start: int
    end: int
    excess: float

    @property
    def cost_steps(self) -> float:
        """Healthy steps that it was late by in all."""
        return self.excess * (self.end - self.start)


class RunScan:
    """Takes a run in block by block, in step order."""

    def __init__(self, ranks: int, blocks: int, settings: Settings, budget: Budget = DEFAULT_BUDGET) -> None:
        """Prepare for about this many blocks, for which the false-alarm rates are corrected."""
        self.settings = replace(
            settings,
            false_alarm_rate=settings.false_alarm_rate / blocks,
            spread_false_alarm_rate=settings.spread_false_alarm_rate / blocks,
            warm_up_steps=0,
            max_warm_up_share=0.0,
        )
        self.capacity = budget.windows(ranks)
        self.width = 1
        self.steps = 0
        self.stretches: list[Stretch] = []
        self.last = np.zeros(ranks, np.int64)
        self.run_us = 0.0
        self._warm_up = settings.warm_up_steps
        self._slowdown = np.zeros((ranks, BINS), np.int64)
        self._centre: list[Floats] = []
        self._sums: dict[str, Floats] = {}
        self._starts = np.zeros((ranks, self.capacity), np.int64)
        self._numbers = np.zeros(self.capacity, np.int64)
        self._records = np.zeros((ranks, self.capacity))
        self._base: RunData | None = None

    def add(self, block: RunData) -> None:
        """Take in the next steps: all ranks, all columns."""
        if self._base is None:
            # Warm-up steps would be part of the first window's mean.
            block = _without_first(block, self._warm_up)
            self._base = _without_first(block, len(block.steps.steps))
        own = own_time(block, self.settings)
        if own is not None and len(own.rows) > 1:
            self._compare(own)
        self._keep(block)
        self.steps += len(block.steps.steps)

    @property
    def centre_us(self) -> Floats:
        """Centre of the ranks' own time in each step, shape (S,)."""
        return np.concatenate(self._centre) if self._centre else np.zeros(0)

    @property
    def last_share(self) -> Floats:
        """Share of the steps in which each rank needed longest for itself, shape (R,)."""
        return np.asarray(self.last / max(1, int(self.last.sum())), dtype=np.float64)

    def slowdown(self, quantile: float = 0.5) -> Floats:
        """Quantile of each rank's own time over its peers' centre, shape (R,); NaN without records.

        From the histogram, interpolated within its bins of 0.7 %.
        """
        total = self._slowdown.sum(axis=1)
        below = np.cumsum(self._slowdown, axis=1)
        wanted = quantile * total
        place = np.minimum((below < wanted[:, None]).sum(axis=1), BINS - 1)
        rows = np.arange(len(total))
        inside = np.maximum(self._slowdown[rows, place], 1)
        part = np.clip((wanted - (below[rows, place] - self._slowdown[rows, place])) / inside, 0.0, 1.0)
        low, high = LOG_RANGE
        value = np.exp(low + (place + part) * (high - low) / BINS)
        return np.where(total > 0, value, np.nan)

    def decimated(self) -> RunData:
        """The run as one mean record per window of `width` steps, named by the window's first step."""
        if self._base is None:
            raise ValueError("no block was added")
        used = -(-self.steps // self.width)
        count = self._records[:, :used]
        known = count * 2 > count.max(axis=0, keepdims=True)
        columns = {
            name: np.where(known, sums[:, :used] / np.maximum(count, 1.0), np.nan) for name, sums in self._sums.items()
        }
        starts = np.where(known, self._starts[:, :used], 0)
        return replace(self._base, steps=Steps(self._numbers[:used], columns, starts))

    def _compare(self, own: OwnTime) -> None:
        """Centre, slowdown and last arrivals of a block, and the stretches in which its ranks are late."""
        work = own.work
        self._centre.append(np.nanmedian(work, axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(work / peer_centre(work, own.groups))
        low, high = LOG_RANGE
        seen = np.isfinite(ratio)
        place = np.clip((np.where(seen, ratio, low) - low) / (high - low) * BINS, 0, BINS - 1).astype(np.int64)
        flat = (own.rows[:, None] * BINS + place)[seen]
        self._slowdown += np.bincount(flat, minlength=self._slowdown.size).reshape(self._slowdown.shape)
        self.run_us += own.run_us
        self.last += np.bincount(own.rows[np.nanargmax(own.cycle, axis=0)], minlength=len(self.last))
        if work.shape[1] >= self.settings.min_steps:
            self._late_stretches(own)

    def _late_stretches(self, own: OwnTime) -> None:
        comparison = Comparison(own, self.settings).settled()
        noise, late = comparison.noise, comparison.capped
        for row in np.flatnonzero(candidates(late, noise, self.settings)):
            for part in late_intervals(int(row), late[row], noise, self.settings, own.shape[0]):
                first, last = int(own.steps[part.start]), int(own.steps[part.end - 1]) + 1
                self._note(Stretch(int(own.rows[row]), first, last, part.excess))
        if len(self.stretches) > MAX_STRETCHES:
            self.stretches = sorted(self.stretches, key=lambda s: -s.cost_steps)[: MAX_STRETCHES // 2]

    def _note(self, new: Stretch) -> None:
        """Join what goes on from the block before."""
        for i in range(len(self.stretches) - 1, -1, -1):
            old = self.stretches[i]
            if old.row == new.row and 0 <= new.start - old.end <= self.settings.min_slow_steps:
                length = old.end - old.start + new.end - new.start
                excess = (old.cost_steps + new.cost_steps) / length
                self.stretches[i] = Stretch(new.row, old.start, new.end, excess)
                return
        self.stretches.append(new)

    def _keep(self, block: RunData) -> None:
        """Add a block's records to the sums of their windows."""
        steps = block.steps
        count = len(steps.steps)
        while self.steps + count > self.capacity * self.width:
            self._halve()
        window = (self.steps + np.arange(count)) // self.width
        edges = np.flatnonzero(np.r_[True, np.diff(window) > 0])
        places = window[edges]
        recorded = ~np.isnan(steps["dur_us"])
        self._records[:, places] += np.add.reduceat(recorded.astype(np.float64), edges, axis=1)
        for name in set(KEPT_COLUMNS) & set(steps.columns):
            values = steps[name]
            if name not in self._sums and np.isnan(values).all():
                continue  # never measured, so far: stays unknown, not zero
            kept = self._sums.setdefault(name, np.zeros((len(recorded), self.capacity)))
            kept[:, places] += np.add.reduceat(np.where(recorded, np.nan_to_num(values, nan=0.0), 0.0), edges, axis=1)
        fresh = self._starts[:, places] == 0
        self._starts[:, places] = np.where(fresh, steps.start_mono_ns[:, edges], self._starts[:, places])
        new = (self.steps + edges) % self.width == 0
        self._numbers[places[new]] = steps.steps[edges[new]]

    def _halve(self) -> None:
        """Join neighbouring windows: half as many, twice as wide."""
        half = self.capacity // 2
        for sums in (*self._sums.values(), self._records):
            sums[:, :half] = sums[:, ::2] + sums[:, 1::2]
            sums[:, half:] = 0.0
        self._starts[:, :half] = np.where(self._starts[:, ::2] > 0, self._starts[:, ::2], self._starts[:, 1::2])
        self._starts[:, half:] = 0
        self._numbers[:half] = self._numbers[::2].copy()
        self.width *= 2


def rank_lateness(block: RunData, rows: Ints, settings: Settings) -> tuple[Ints, Floats]:
    """Step numbers of a block and the mean lateness of some ranks in each, share of the healthy step."""
    own = own_time(block, replace(settings, warm_up_steps=0, max_warm_up_share=0.0))
    if own is None:
        return np.zeros(0, np.int64), np.zeros(0)
    late = Comparison(own, settings).capped[np.isin(own.rows, rows)]
    return own.steps, late.mean(axis=0) if len(late) else np.zeros(len(own.steps))


def _without_first(block: RunData, count: int) -> RunData:
    steps = block.steps
    kept = slice(count, None)
    columns = {name: values[:, kept].copy() for name, values in steps.columns.items()}
    return replace(block, steps=Steps(steps.steps[kept], columns, steps.start_mono_ns[:, kept].copy()))
