"""Verdict on one series of step times for the whole job: what happened and what it cost, never who did it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.batch_kind import kind_words, stalled_steps
from starprof.analysis.causes.base import pct
from starprof.analysis.job.combs import Comb, combs_of
from starprof.analysis.job.findings import (
    FIND_OUT,
    Priced,
    level_finding,
    periodic_finding,
    pieces,
    stall_findings,
    trend_finding,
)
from starprof.analysis.job.series import Shape, Stretch, shape_of
from starprof.analysis.settings import Settings
from starprof.analysis.words import COLD_CACHE
from starprof.analysis.workload import SIZES, Workload, workload_of
from starprof.model import causes, events
from starprof.model.rundata import STEPS_PER_RECORD, RunData
from starprof.model.verdict import Cost, Finding, Verdict

WARM_FACTOR = 1.15
MIN_RECORDS = 12
MIN_STALL_SHARE = 0.01
MIN_SHIFT_SHARE = 0.005
SETTLING_SHARE = 0.25
MAX_STRETCHES = 3


@dataclass(frozen=True)
class JobSeries:
    """The records that are judged.

    Attributes:
        steps: number of each record's (last) step, shape (S,).
        values: microseconds per step, shape (S,).
        per_record: steps that a record is the mean of.
        data_us: part of `values` that was waiting for data, None when not told, shape (S,).
        sizes: per column of `SIZES` that is told the records' sizes, shape (S,).
    """

    steps: Ints
    values: Floats
    per_record: int
    data_us: Floats | None
    sizes: Mapping[str, Floats] = field(default_factory=dict)

    def only(self, kept: Bools) -> JobSeries:
        """Some of the records."""
        return replace(
            self,
            steps=self.steps[kept],
            values=self.values[kept],
            data_us=None if self.data_us is None else self.data_us[kept],
            sizes={name: size[kept] for name, size in self.sizes.items()},
        )

    @property
    def run_us(self) -> float:
        """Wall time of all steps."""
        return float(self.values.sum()) * self.per_record


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on a job-level series; None when the run has none.

    Args:
        run: one with `info["timing"] == "job"`.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    if run.info.get("timing") != "job":
        return None
    empty = replace(empty, ranks=_world_size(run))
    series = _judged(run, settings)
    if len(run.steps.steps):
        empty = replace(empty, steps=(int(run.steps.steps[0]), int(run.steps.steps[-1])))
    if len(series.values) < MIN_RECORDS:
        return replace(empty, reason=_too_short(series))
    logs = np.log(series.values)
    workload = workload_of(logs, series.sizes)
    if workload.known.sum() < MIN_RECORDS:
        return replace(empty, reason="The size of the steps changes too often to compare them: " + workload.words)
    kept = workload.known
    series = series.only(kept)
    workload = replace(workload, effect=workload.effect[kept])
    shape = shape_of(logs[kept] - workload.effect, settings)
    return _verdict(run, series, shape, workload, empty, settings)


def _world_size(run: RunData) -> int:
    sizes = [rank.detail.get("world_size") for rank in run.ranks]
    return max([int(s) for s in sizes if s], default=len(run.ranks))


def _judged(run: RunData, settings: Settings) -> JobSeries:
    """Records that have a time, without warm-up."""
    columns = run.steps.columns
    shape = (len(run.ranks), len(run.steps.steps))
    values = columns.get("dur_us", np.full(shape, np.nan))
    values = values[0] if shape[0] else np.zeros(0)
    usable = np.isfinite(values) & (values > 0)
    steps = run.steps.steps[: len(values)]
    warm = _warm_up(np.where(usable, values, np.nan), steps, _restarts(run), settings)
    kept = usable & ~warm
    per_record = max([int(r.detail.get(STEPS_PER_RECORD, 1)) for r in run.ranks], default=1)
    sizes = {name: columns[name][0][kept] for name in SIZES if name in columns}
    data = columns.get("data_wait_us")
    waited = data[0][kept] if data is not None and np.isfinite(data[0][kept]).all() else None
    return JobSeries(steps[kept], values[kept], max(1, per_record), waited, sizes)


def _restarts(run: RunData) -> list[int]:
    if not len(run.events):
        return []
    return [int(step) for step in run.events[run.events["kind"] == events.RESTART]["step"].dropna()]


def _warm_up(values: Floats, steps: Ints, restarts: list[int], settings: Settings) -> Bools:
    """The first record of the start and of each restart, and slow ones that follow it without a break."""
    warm = np.zeros(len(values), bool)
    if not len(values) or np.isnan(values).all():
        return warm
    typical = float(np.nanmedian(values))
    limit = max(settings.warm_up_steps, int(settings.max_warm_up_share * len(values)))
    for first in {0, *np.searchsorted(steps, np.asarray(restarts, np.int64)).tolist()}:
        following = values[first : first + limit + 1]
        usual = np.flatnonzero(~(following > WARM_FACTOR * typical))
        # Slow for longer than any warm-up: that is for the levels to tell.
        length = int(usual[0]) if len(usual) and usual[0] <= limit else 0
        warm[first : first + max(1, length)] = True
    return warm


def _too_short(series: JobSeries) -> str:
    n = len(series.values)
    if n == 0:
        return "No step times after warm-up: let the job log the time of every step, and for longer."
    seen = ""
    if n >= 4:
        ratios = [np.median(series.values[i:]) / np.median(series.values[:i]) for i in range(2, n - 1)]
        best = int(np.argmax(np.abs(np.log(ratios))))
        seen = (
            f"; from step {series.steps[best + 2]} on they take {100 * (ratios[best] - 1):+.1f} %, which may be chance"
        )
    return (
        f"Only {n} step time{'s' if n > 1 else ''} after warm-up, {MIN_RECORDS} are needed{seen}. They are the whole "
        "job's, so that no rank could be told from them either; record longer, and each rank's own time."
    )


def _verdict(
    run: RunData, series: JobSeries, shape: Shape, workload: Workload, empty: Verdict, settings: Settings
) -> Verdict:
    usual = np.exp(shape.local + workload.effect)
    over = np.where(shape.spikes, np.maximum(series.values - usual, 0.0), 0.0) * series.per_record
    combs, single = combs_of(np.flatnonzero(shape.spikes), len(series.values))
    priced = Priced(run, series.steps, series.values, usual, over, series.per_record, series.run_us, series.data_us)
    lasting = _lasting(priced, shape, workload)
    planned = [periodic_finding(priced, comb) for comb in combs if _matters(over, comb, series)]
    stalls, planned_once = stall_findings(priced, single, settings.max_findings_listed)
    stalls = _with_kind(series, stalls, settings)
    stalled = sum(f.cost_seconds for f in stalls)
    told = stalled * 1e6 >= MIN_STALL_SHARE * series.run_us
    seconds = sum(f.cost_seconds for f in lasting) + (stalled if told else 0.0)
    share = seconds * 1e6 / series.run_us
    unexplained = [*sorted(lasting, key=lambda f: -f.cost_seconds), *stalls]
    if unexplained:
        unexplained[0] = replace(unexplained[0], next=f"{unexplained[0].next} {FIND_OUT}".strip())
    return replace(
        empty,
        verdict="inconclusive" if lasting or told else "none",
        cost=Cost(round(seconds, 6), round(share, 6), round(seconds * empty.ranks / 3600.0, 6)),
        findings=(*unexplained, *planned, *planned_once),
        reason=_reason(series, shape, workload, lasting, stalls if told else [], stalled * 1e6 / series.run_us),
    )


def _with_kind(series: JobSeries, stalls: list[Finding], settings: Settings) -> list[Finding]:
    """What batches that came late have in common, and what may be behind it, at the first such stall."""
    first = next((i for i, stall in enumerate(stalls) if stall.cause == causes.DATA_LOADING), None)
    if first is None or series.data_us is None:
        return stalls
    stalled = stalled_steps(series.data_us, float(np.median(series.values)), settings)
    words = kind_words(stalled, series.steps, series.sizes)
    told = replace(stalls[first], evidence=(*stalls[first].evidence, *words), next=COLD_CACHE)
    return [*stalls[:first], told, *stalls[first + 1 :]]


def _matters(over: Floats, comb: Comb, series: JobSeries) -> bool:
    return float(over[comb.columns].sum()) >= 0.5 * MIN_SHIFT_SHARE * series.run_us


def _lasting(priced: Priced, shape: Shape, workload: Workload) -> list[Finding]:
    """Findings of slow stretches and trends that cost enough."""
    total = len(priced.values)
    base = np.exp(shape.base + workload.effect) * priced.per_record
    level = np.exp(shape.level + workload.effect) * priced.per_record
    above = np.maximum(level - base, 0.0)
    if shape.trend is not None:
        found = [trend_finding(priced, shape.trend, above)]
    else:
        slow = [s for s in shape.slow if not (s.start == 0 and s.end <= SETTLING_SHARE * total)]
        found = [level_finding(priced, group, above, shape.noise) for group in _groups(slow)]
    return [f for f in found if f.cost_seconds * 1e6 >= MIN_SHIFT_SHARE * priced.run_us]


def _groups(slow: list[Stretch]) -> list[list[Stretch]]:
    """Stretches of one slowness: neighbours of nearly the same height, and many of one height that come and go."""
    runs: list[list[Stretch]] = []
    for stretch in slow:
        if runs and runs[-1][-1].end == stretch.start and _alike(runs[-1][-1], stretch):
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    first = runs[0][0] if runs else None
    apart = len(runs) >= MAX_STRETCHES and all(first is not None and _alike(first, r[0]) for r in runs)
    return [[s for r in runs for s in r]] if apart else runs


def _alike(first: Stretch, second: Stretch) -> bool:
    low, high = sorted((first.height, second.height))
    return high <= 1.5 * low


def _reason(
    series: JobSeries,
    shape: Shape,
    workload: Workload,
    lasting: list[Finding],
    stalls: list[Finding],
    stall_share: float,
) -> str:
    words = [finding.evidence[0] for finding in lasting[:2]]
    if stalls:
        known = {finding.cause for finding in stalls} - {causes.UNKNOWN}
        why = "they were spent waiting for data" if len(known) == 1 else "what caused them is not known"
        if len(known) == 1 and any(finding.cause == causes.UNKNOWN for finding in stalls):
            why = "some of them were spent waiting for data"
        words.append(f"{pieces(stalls)} cost {pct(stall_share)} of the time; {why}.")
    if words:
        words.append("The log holds one series for the whole job, so which rank did it can't be told from it.")
    else:
        words.append(
            f"The job's step time is steady: over {len(series.values)} records it scatters by "
            f"{pct(shape.noise.sigma)} and neither shifts nor stalls by enough to cost anything. A rank that is slow "
            "from the first step to the last would not show in it."
        )
    return " ".join([*words, workload.words]).strip()
