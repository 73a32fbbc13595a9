"""One pass over a run that is too long for memory: what is kept of it is bounded, however long it is.

Kept are, per step, the centre of the ranks' own time; per rank a histogram of its slowdown and how often it was last;
means over windows of steps; and the stretches in which a rank may have been late for too short a time to show in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.long import slowdown
from starprof.analysis.long.stretches import GRAIN, Stretch, Stretches, late_in_block
from starprof.analysis.long.windows import KEPT_COLUMNS, Windows, width_for
from starprof.analysis.long.work import BlockWork, Recipe, Singles, all_finite, block_work, centre_of, reference_of
from starprof.analysis.peers import peer_groups
from starprof.analysis.settings import DEFAULT, Settings
from starprof.model.rundata import RunData
from starprof.model.stepsource import StepBlock, StepSource

GPU_LOOK_STEPS = 256


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be held at a time, in rank-steps (of four bytes per column; raw ones of eight).

    Attributes:
        block_cells: rank-steps of a block of the scan, of which a few are held at once.
        raw_cells: raw rank-steps that the whole diagnosis looks at together.
        kept_cells: ranks times windows of the means.
        least_columns: steps of a block and windows of the means however many ranks there are.
        threads: blocks that are looked at side by side while the next one is read. More than one gains nothing on a
            machine of two cores: what is done for a number takes no longer than fetching it from memory.
    """

    block_cells: int = 1 << 19
    raw_cells: int = 3 << 16
    kept_cells: int = 1 << 17
    least_columns: int = 128
    threads: int = 1

    def block_steps(self, ranks: int) -> int:
        """Steps of a block of the scan, whole grains."""
        return max(self.least_columns, self.block_cells // max(1, ranks)) // GRAIN * GRAIN

    def raw_steps(self, ranks: int) -> int:
        """Raw steps that are looked at in one piece."""
        return max(self.least_columns, self.raw_cells // max(1, ranks))

    def windows(self, ranks: int) -> int:
        """Most windows that are kept."""
        return max(self.least_columns, self.kept_cells // max(1, ranks))


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True)
class RunScan:
    """What is left of a run after one pass.

    Attributes:
        centre_us: centre of the ranks' own time in each step, shape (S,).
        last: how often each rank needed longest for itself, shape (R,).
        stretches: in which a rank may have been late, the most costly first.
        run_us: wall time of the steps, as the replay sees it.
        steps: steps after warm-up.
        width: steps of a window.
        windowed: the run as one mean record per window.
    """

    centre_us: Singles
    last: Ints
    stretches: list[Stretch]
    run_us: float
    steps: int
    width: int
    windowed: RunData
    _slowdown: Ints

    @property
    def last_share(self) -> Floats:
        """Share of the steps in which each rank needed longest for itself, shape (R,)."""
        return np.asarray(self.last / max(1, int(self.last.sum())), dtype=np.float64)

    def slowdown(self, quantile: float = 0.5) -> Floats:
        """Quantile of each rank's own time over its peers' centre, shape (R,); NaN without records."""
        return slowdown.quantile(self._slowdown, quantile)


def scan_run(source: StepSource, settings: Settings = DEFAULT, budget: Budget = DEFAULT_BUDGET) -> RunScan:
    """The one pass over a run.

    Args:
        source: read once, in step order.
        settings: thresholds.
        budget: how much may be held at a time.
    """
    steps = len(source.numbers)
    first = min(settings.warm_up_steps, max(0, steps - 1))  # warm-up would be part of the first window's mean
    work = _Pass(source, first, settings, budget)
    for part in _side_by_side(work, budget):
        work.take(part)
    return work.result()


@dataclass(frozen=True, slots=True)
class _Part:
    """What is kept of one block."""

    place: int
    steps: int
    sums: dict[str, tuple[Floats, Floats | None]]
    centre: Singles
    slowdown: Ints | None
    last: Ints | None
    run_us: float
    stretches: list[Stretch]


class _Pass:
    """The pass while it goes on: `look` is called from several threads, `take` from one, in step order."""

    def __init__(self, source: StepSource, first: int, settings: Settings, budget: Budget) -> None:
        self.source, self.first, self.settings = source, first, settings
        self.end = len(source.numbers)
        infos = source.shell.ranks
        self.ranks = len(infos)
        self.size = budget.block_steps(self.ranks)
        self.recipe = Recipe.of(source.columns, _on_gpu(source))
        wanted = {*self.recipe.columns, *KEPT_COLUMNS} & set(source.columns)
        self.columns = tuple(sorted(wanted))
        self._groups = peer_groups([info.role for info in infos])
        width = width_for(self.end - first, budget.windows(self.ranks))
        self._windows = Windows(self.ranks, first, self.end - first, width)
        self._centre: list[Singles] = []
        self._slowdown = np.zeros((self.ranks, slowdown.BINS), np.int64)
        self._last = np.zeros(self.ranks, np.int64)
        self._stretches = Stretches(settings)
        self._run_us = 0.0

    def look(self, block: StepBlock, place: int) -> _Part:
        """Everything that is kept of a block."""
        sums = self._windows.sums_of(block, place)
        nothing = _Part(place, len(block.steps), sums, np.zeros(0, np.float32), None, None, 0.0, [])
        if "dur_us" not in block.columns:
            return nothing
        found = block_work(block, self.recipe)
        if not len(found.steps) or self.ranks < 2:
            return nothing
        centre = centre_of(found.work, found.whole)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = found.work / reference_of(found.work, found.whole, self._groups, centre)
        plain = found.whole and all_finite(ratio)
        return _Part(
            place,
            len(block.steps),
            sums,
            centre,
            slowdown.counted(ratio, plain),
            _last(found),
            _run_us(found),
            late_in_block(_in_block(ratio, found.rows, len(block.steps), plain), place, self.end, self.settings),
        )

    def take(self, part: _Part) -> None:
        """Add what is kept of the next block."""
        self._windows.add(part.place, part.steps, part.sums)
        self._centre.append(part.centre)
        if part.slowdown is not None and part.last is not None:
            self._slowdown += part.slowdown
            self._last += part.last
        self._run_us += part.run_us
        self._stretches.add(part.stretches)

    def result(self) -> RunScan:
        """What is left after the last block."""
        return RunScan(
            centre_us=np.concatenate(self._centre) if self._centre else np.zeros(0, np.float32),
            last=self._last,
            stretches=self._stretches.all(),
            run_us=self._run_us,
            steps=self.end - self.first,
            width=self._windows.width,
            windowed=self._windows.run(self.source),
            _slowdown=self._slowdown,
        )


def _side_by_side(work: _Pass, budget: Budget) -> Iterator[_Part]:
    """Look at a few blocks at once and give what is kept of them in order; no more blocks than that are held."""
    place = work.first
    waiting: deque[Future[_Part]] = deque()
    with ThreadPoolExecutor(budget.threads) as pool:
        for block in work.source.blocks(work.first, work.end, work.size, work.columns):
            waiting.append(pool.submit(work.look, block, place))
            place += len(block.steps)
            if len(waiting) > budget.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _on_gpu(source: StepSource) -> bool:
    """Whether GPU times count, judged as `own_time` does, on the first steps."""
    if "gpu_blocked_us" not in source.columns:
        return False
    end = min(GPU_LOOK_STEPS, len(source.numbers))
    for block in source.blocks(0, end, end, ("gpu_blocked_us", "dur_us")):
        recorded = ~np.isnan(block.columns["dur_us"])
        seen = (~np.isnan(block.columns["gpu_blocked_us"]) & recorded).sum(axis=0)
        there = np.flatnonzero(recorded.any(axis=0))
        return bool((seen[there] > 0.5 * recorded[:, there].sum(axis=0)).all())
    return False


def _in_block(ratio: Singles, rows: Ints, steps: int, plain: bool) -> Singles:
    """Ratios with a row for each step of the block; 1 where nothing is known."""
    if plain and len(rows) == steps:
        return ratio
    filled = np.ones((steps, ratio.shape[1]), np.float32)
    filled[rows] = np.where(np.isfinite(ratio), ratio, np.float32(1.0))
    return filled


def _last(found: BlockWork) -> Ints:
    """How often each rank needed longest, shape (R,)."""
    cycle = found.cycle if found.whole else np.where(np.isnan(found.cycle), -np.inf, found.cycle)
    return np.bincount(np.argmax(cycle, axis=1), minlength=cycle.shape[1])


def _run_us(found: BlockWork) -> float:
    """Wall time of the steps: the longest own time and the transfer."""
    longest = np.fmax.reduce(found.cycle, axis=1)
    return float((longest + found.transfer).sum(dtype=np.float64))
