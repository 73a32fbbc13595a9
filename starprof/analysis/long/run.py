"""The diagnosis of a run that does not fit into memory.

One pass (`scan.scan_run`) leaves means over windows of steps, which the whole diagnosis then judges as if they were
steps; onsets and ends that it finds are looked up in the raw steps around them, and stretches too short for the
windows are judged by the whole diagnosis on the raw steps around each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.changepoint import onset
from starprof.analysis.diagnose import diagnose
from starprof.analysis.long.scan import DEFAULT_BUDGET, Budget, RunScan, scan_run
from starprof.analysis.long.stretches import Stretch
from starprof.analysis.long.work import Recipe, block_work, centre_of, reference_of
from starprof.analysis.noise import measure_noise, without_steps
from starprof.analysis.peers import peer_groups
from starprof.analysis.settings import DEFAULT, Settings
from starprof.model.rundata import RunData
from starprof.model.stepsource import StepSource
from starprof.model.verdict import Cost, Finding, Verdict

MAX_LOOKED_AT = 8
AROUND = 64
MIN_SLOW_WINDOWS = 4


@dataclass(frozen=True)
class LongDiagnosis:
    """Outcome of a diagnosis block by block.

    Attributes:
        verdict: as `diagnose` gives it.
        windowed: the run as means over windows of steps, for tables and charts.
        scan: what one pass left.
    """

    verdict: Verdict
    windowed: RunData
    scan: RunScan


@dataclass(frozen=True)
class _Run:
    """Where a run is read from, and how."""

    source: StepSource
    scan: RunScan
    settings: Settings
    budget: Budget

    @property
    def first(self) -> int:
        """Place of the first step after warm-up."""
        return len(self.source.numbers) - self.scan.steps

    @property
    def unwarmed(self) -> Settings:
        """Thresholds for a part of the run: it has no warm-up of its own."""
        return replace(self.settings, warm_up_steps=0, max_warm_up_share=0.0)

    @property
    def for_parts(self) -> Settings:
        """Thresholds for one of the many parts that could have been looked at."""
        parts = max(1, self.scan.steps // self.budget.raw_steps(len(self.source.shell.ranks)))
        return replace(
            self.unwarmed,
            false_alarm_rate=self.settings.false_alarm_rate / parts,
            spread_false_alarm_rate=self.settings.spread_false_alarm_rate / parts,
        )

    def place(self, step: int) -> int:
        """Place of a step."""
        return int(np.searchsorted(self.source.numbers, step))


def diagnose_long(source: StepSource, settings: Settings = DEFAULT, budget: Budget = DEFAULT_BUDGET) -> LongDiagnosis:
    """The verdict on a run of which never more than a few blocks are held.

    What is small and short at once can stay unseen: less than `MIN_SLOW_WINDOWS` windows of `RunScan.width` steps, and
    too little to stand out of a single block's noise.

    Args:
        source: read once in step order, and again in a few places.
        settings: thresholds, as for `diagnose`.
        budget: how much may be held at a time.
    """
    scan = scan_run(source, settings, budget)
    run = _Run(source, scan, settings, budget)
    coarse = judged_scan(scan, settings)
    found = [_sharpened(run, finding) for finding in coarse.findings]
    short = [f for stretch in _too_short(run, found) for f in _looked_at(run, stretch)]
    return LongDiagnosis(_together(run, coarse, found, short), scan.windowed, scan)


def judged_scan(scan: RunScan, settings: Settings = DEFAULT) -> Verdict:
    """The verdict on the means over windows alone: onsets are those of windows, short slowness is not in it."""
    least = max(MIN_SLOW_WINDOWS, -(-settings.min_slow_steps // scan.width))
    unwarmed = replace(settings, warm_up_steps=0, max_warm_up_share=0.0, min_slow_steps=least)
    verdict = diagnose(scan.windowed, unwarmed)
    seconds = verdict.cost.seconds * scan.width
    share = min(1.0, seconds * 1e6 / max(scan.run_us, 1.0))
    steps = None if verdict.steps is None else (verdict.steps[0], verdict.steps[1] + scan.width - 1)
    return replace(
        verdict,
        cost=Cost(round(seconds, 6), round(share, 6), round(seconds * verdict.ranks / 3600.0, 6)),
        findings=tuple(_per_step(finding, scan.width) for finding in verdict.findings),
        steps=steps,
    )


def _per_step(finding: Finding, width: int) -> Finding:
    """A finding on windows, told in steps: a column stands for `width` of them."""
    ended = None if finding.end_step is None else finding.end_step + width - 1
    return replace(finding, cost_seconds=round(finding.cost_seconds * width, 6), end_step=ended)


def _sharpened(run: _Run, finding: Finding) -> Finding:
    """Look up the onset in the raw steps around the window in which it lies."""
    width = run.scan.width
    if width == 1 or not finding.ranks or finding.onset_step is None:
        return finding
    low, high = finding.onset_interval or (finding.onset_step, finding.onset_step)
    if run.place(finding.onset_step) - width <= run.first:
        return finding
    exact = _changed(run, finding.ranks, run.place(low) - width, run.place(high) + 2 * width, rises=True)
    if exact is None:
        return finding
    step, interval = exact
    words = tuple(line.replace(f"step {finding.onset_step}", f"step {step}") for line in finding.evidence)
    return replace(finding, onset_step=step, onset_interval=interval, evidence=words)


def _changed(
    run: _Run, ranks: Sequence[int], first: int, end: int, *, rises: bool
) -> tuple[int, tuple[int, int]] | None:
    """The step at which the mean lateness of some ranks changes between two places, and where that surely lies."""
    steps, late = _series(run, ranks, first, end)
    if len(late) < 2 * run.settings.min_slow_steps:
        return None
    stepwise = without_steps(late[None, :])
    noise = measure_noise(stepwise, stepwise, run.settings)
    edge = max(1, min(run.scan.width // 2, len(late) // 4))
    before, after = float(np.median(late[:edge])), float(np.median(late[-edge:]))
    if (after > before) != rises or after == before:
        return None
    best = _best_cut(late, before, after)
    place, (near, far) = onset(late, best, before, after, float(noise.sigma[0]), noise.memory)
    return int(steps[place]), (int(steps[near]), int(steps[far]))


def _best_cut(late: Floats, before: float, after: float) -> int:
    """The cut between two known levels with the least squared error; never the first or last step."""
    error = np.cumsum((late - before) ** 2 - (late - after) ** 2)
    return int(np.argmin(error[1:-2])) + 2


def _series(run: _Run, ranks: Sequence[int], first: int, end: int) -> tuple[Ints, Floats]:
    """Mean lateness of some ranks over raw steps as a share of the healthy step, capped; read block by block."""
    shell, source, cap = run.source.shell, run.source, run.settings.lateness_cap
    recipe = Recipe.of(source.columns, "gpu_blocked_us" in source.columns)
    groups = peer_groups([info.role for info in shell.ranks])
    rows = np.flatnonzero(np.isin([info.rank for info in shell.ranks], list(ranks)))
    steps, late = [np.zeros(0, np.int64)], [np.zeros(0)]
    first, end = max(first, run.first), min(end, len(source.numbers))
    for block in source.blocks(first, end, run.budget.block_steps(len(shell.ranks)), recipe.columns):
        found = block_work(block, recipe)
        if not len(found.steps):
            continue
        reference = reference_of(found.work, found.whole, groups)
        healthy = float(np.median(centre_of(found.work, found.whole) + found.transfer))
        mine = (found.work[:, rows] - np.broadcast_to(reference, found.work.shape)[:, rows]) / healthy
        steps.append(found.steps)
        late.append(np.clip(np.nan_to_num(mine, nan=0.0), -cap, cap).mean(axis=1, dtype=np.float64))
    return np.concatenate(steps), np.concatenate(late)


def _too_short(run: _Run, found: list[Finding]) -> list[Stretch]:
    """The most costly stretches that no finding on windows holds."""
    infos, width = run.source.shell.ranks, run.scan.width
    held = [
        (set(f.ranks), run.place(f.onset_step or 0), None if f.end_step is None else run.place(f.end_step))
        for f in found
    ]

    def known(stretch: Stretch) -> bool:
        rank = infos[stretch.row].rank
        return any(
            rank in ranks and stretch.end > start - width and (end is None or stretch.start <= end + width)
            for ranks, start, end in held
        )

    left = [s for s in run.scan.stretches if not known(s) and s.end - s.start < 2 * MAX_LOOKED_AT * width]
    return left[:MAX_LOOKED_AT]


def _looked_at(run: _Run, stretch: Stretch) -> list[Finding]:
    """The whole diagnosis on the raw steps around a stretch: its findings about the rank, if it stands the test."""
    first = max(run.first, stretch.start - max(AROUND, 2 * run.settings.min_slow_steps))
    most = run.budget.raw_steps(len(run.source.shell.ranks))
    end = min(stretch.end + AROUND, len(run.source.numbers), first + most)
    raw = run.source.raw(first, end)
    rank = raw.ranks[stretch.row].rank
    verdict = diagnose(raw, run.for_parts)
    about = [f for f in verdict.findings if rank in f.ranks and f.onset_step != raw.steps.steps[0]]
    return [_ended(run, f, stretch, end) for f in about]


def _ended(run: _Run, finding: Finding, stretch: Stretch, end: int) -> Finding:
    """What goes on at the end of the part that was looked at ends where the stretch does."""
    if finding.kind != "chronic" or end == len(run.source.numbers) or stretch.end + AROUND <= end:
        return finding
    exact = _changed(run, finding.ranks, end, stretch.end + AROUND, rises=False)
    last = int(run.source.numbers[min(stretch.end, len(run.source.numbers)) - 1]) if exact is None else exact[0] - 1
    return replace(finding, end_step=last, kind="transient")


def _together(run: _Run, coarse: Verdict, found: list[Finding], short: list[Finding]) -> Verdict:
    """One verdict of both scales."""
    seconds = coarse.cost.seconds + sum(f.cost_seconds for f in short)
    share = min(1.0, seconds * 1e6 / max(run.scan.run_us, 1.0))
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * coarse.ranks / 3600.0, 6))
    reason = coarse.reason
    if short and coarse.verdict != "straggler":
        reason = f"{len(short)} short slownesses of single ranks in a long run."
    return replace(
        coarse,
        verdict="straggler" if short else coarse.verdict,
        cost=cost,
        findings=tuple(sorted([*_not_told_by(short, found), *short], key=lambda f: (not f.ranks, -f.cost_seconds))),
        reason=reason,
    )


def _not_told_by(short: list[Finding], found: list[Finding]) -> list[Finding]:
    """Findings on windows, without the single late windows that a short slowness in them explains."""

    def inside(one: Finding) -> bool:
        return any(
            (one.onset_step or 0) <= (f.end_step or f.onset_step or 0)
            and (f.onset_step or 0) <= (one.end_step or one.onset_step or 0)
            for f in short
        )

    return [f for f in found if f.ranks or f.kind != "one-off" or not inside(f)]
