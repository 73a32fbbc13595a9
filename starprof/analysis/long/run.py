"""The diagnosis of a run that does not fit into memory.

One pass (`scan.RunScan`) leaves means over windows of steps, which the whole diagnosis then judges as if they were
steps; onsets and ends that it finds are looked up in the raw steps around them, and stretches too short for the
windows are judged by the whole diagnosis on the raw steps around each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.changepoint import onset
from starprof.analysis.diagnose import diagnose
from starprof.analysis.noise import measure_noise, without_steps
from starprof.analysis.long.scan import DEFAULT_BUDGET, Budget, RunScan, Stretch, rank_lateness
from starprof.analysis.settings import DEFAULT, Settings
from starprof.model.rundata import RunData
from starprof.model.verdict import Cost, Finding, Verdict

Window = Callable[[int, int], RunData]
"""Reads the steps [first, end) of a run with all ranks and columns."""

MAX_LOOKED_AT = 8
AROUND = 64
MIN_SLOW_WINDOWS = 4


@dataclass(frozen=True)
class _Run:
    """Where a run is read from, within which steps, and how."""

    window: Window
    first: int
    end: int
    settings: Settings
    budget: Budget

    def raw(self, first: int, end: int) -> RunData:
        """Some of the run's steps, no more than a block."""
        first = max(self.first, first)
        ranks = len(self.window(first, min(first + 1, self.end)).ranks)
        return self.window(first, min(end, self.end, first + self.budget.block_steps(ranks)))

    @property
    def unwarmed(self) -> Settings:
        """Thresholds for a part of the run: it has no warm-up of its own."""
        return replace(self.settings, warm_up_steps=0, max_warm_up_share=0.0)


def diagnose_long(
    window: Window, first: int, end: int, settings: Settings = DEFAULT, budget: Budget = DEFAULT_BUDGET
) -> Verdict:
    """The verdict on the steps [first, end) of a run, never holding more than a block of them.

    What is small and short at once can stay unseen: less than `MIN_SLOW_WINDOWS` windows of `RunScan.width` steps, and
    too little to stand out of a single block's noise.

    Args:
        window: reads some of the steps; called in step order once, and again for a few of them.
        first: first step.
        end: step after the last.
        settings: thresholds, as for `diagnose`.
        budget: how much may be held at a time.
    """
    run = _Run(window, first, end, settings, budget)
    scan = scan_run(window, first, end, settings, budget)
    least = max(MIN_SLOW_WINDOWS, -(-settings.min_slow_steps // scan.width))
    coarse = diagnose(scan.decimated(), replace(run.unwarmed, min_slow_steps=least))
    found = [_sharpened(run, _per_step(f, scan.width), scan.width) for f in coarse.findings]
    short = [f for stretch in _too_short(scan, found) for f in _looked_at(run, stretch)]
    return _together(coarse, found, short, scan)


def scan_run(
    window: Window, first: int, end: int, settings: Settings = DEFAULT, budget: Budget = DEFAULT_BUDGET
) -> RunScan:
    """The one pass over the steps [first, end)."""
    ranks = len(window(first, min(first + 1, end)).ranks)
    size = budget.block_steps(ranks)
    starts = range(first, end, size)
    scan = RunScan(ranks, len(starts), settings, budget)
    for start in starts:
        scan.add(window(start, min(start + size, end)))
    return scan


def _per_step(finding: Finding, width: int) -> Finding:
    """A finding on windows, told in steps: a column stands for `width` of them."""
    ended = None if finding.end_step is None else finding.end_step + width - 1
    return replace(finding, cost_seconds=round(finding.cost_seconds * width, 6), end_step=ended)


def _sharpened(run: _Run, finding: Finding, width: int) -> Finding:
    """Look up the onset in the raw steps around the window in which it lies."""
    if width == 1 or not finding.ranks or finding.onset_step is None or finding.onset_step - width <= run.first:
        return finding
    low, high = finding.onset_interval or (finding.onset_step, finding.onset_step)
    steps, late = _series(run, finding.ranks, low - width, high + 2 * width)
    if len(late) < 2 * run.settings.min_slow_steps:
        return finding
    stepwise = without_steps(late[None, :])
    noise = measure_noise(stepwise, stepwise, run.settings)
    edge = max(1, width // 2)
    before, after = float(np.median(late[:edge])), float(np.median(late[-edge:]))
    if after <= before:
        return finding
    best = _best_cut(late, before, after)
    place, (near, far) = onset(late, best, before, after, float(noise.sigma[0]), noise.memory)
    exact = int(steps[place])
    words = tuple(line.replace(f"step {finding.onset_step}", f"step {exact}") for line in finding.evidence)
    return replace(finding, onset_step=exact, onset_interval=(int(steps[near]), int(steps[far])), evidence=words)


def _best_cut(late: Floats, before: float, after: float) -> int:
    """The cut between two known levels with the least squared error; never the first or last step."""
    error = np.cumsum((late - before) ** 2 - (late - after) ** 2)
    return int(np.argmin(error[1:-2])) + 2


def _series(run: _Run, ranks: tuple[int, ...], first: int, end: int) -> tuple[Ints, Floats]:
    """Mean lateness of some ranks over raw steps, read block by block."""
    steps, late = [np.zeros(0, np.int64)], [np.zeros(0)]
    start, end = max(first, run.first), min(end, run.end)
    while start < end:
        block = run.raw(start, end)
        rows = np.array([i for i, info in enumerate(block.ranks) if info.rank in ranks])
        numbers, values = rank_lateness(block, rows, run.settings)
        steps.append(numbers)
        late.append(values)
        start += max(1, len(block.steps.steps))
    return np.concatenate(steps), np.concatenate(late)


def _too_short(scan: RunScan, found: list[Finding]) -> list[Stretch]:
    """The most costly stretches that no finding on windows holds."""
    infos = scan.decimated().ranks
    held = [(set(f.ranks), f.onset_step or 0, f.end_step) for f in found]

    def known(stretch: Stretch) -> bool:
        rank = infos[stretch.row].rank
        return any(
            rank in ranks and stretch.end > start - scan.width and (end is None or stretch.start <= end + scan.width)
            for ranks, start, end in held
        )

    left = [s for s in scan.stretches if not known(s) and s.end - s.start < 2 * MAX_LOOKED_AT * scan.width]
    return sorted(left, key=lambda s: -s.cost_steps)[:MAX_LOOKED_AT]


def _looked_at(run: _Run, stretch: Stretch) -> list[Finding]:
    """The whole diagnosis on the raw steps around a stretch: its findings about the rank, if it stands the test."""
    raw = run.raw(stretch.start - max(AROUND, 2 * run.settings.min_slow_steps), stretch.end + AROUND)
    rank = raw.ranks[stretch.row].rank
    verdict = diagnose(raw, run.unwarmed)
    return [f for f in verdict.findings if rank in f.ranks and f.onset_step != raw.steps.steps[0]]


def _together(coarse: Verdict, found: list[Finding], short: list[Finding], scan: RunScan) -> Verdict:
    """One verdict of both scales."""
    seconds = coarse.cost.seconds * scan.width + sum(f.cost_seconds for f in short)
    share = min(1.0, seconds * 1e6 / max(scan.run_us, 1.0))
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * coarse.ranks / 3600.0, 6))
    reason = coarse.reason
    if short and coarse.verdict != "straggler":
        reason = f"{len(short)} short slownesses of single ranks in a long run."
    steps = None if coarse.steps is None else (coarse.steps[0], coarse.steps[1] + scan.width - 1)
    return replace(
        coarse,
        verdict="straggler" if short else coarse.verdict,
        cost=cost,
        findings=tuple(sorted([*found, *short], key=lambda f: (not f.ranks, -f.cost_seconds))),
        reason=reason,
        steps=steps,
    )
