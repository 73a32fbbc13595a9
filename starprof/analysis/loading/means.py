"""Verdict on one mean a rank: phases of a step, of which the passes hold the waiting for other ranks.

Whoever computes longer makes the others wait in their passes, which so become as long as its own: that can't be seen
in means of whole phases. Waiting for data is each rank's own. A rank that waits for data longer arrives later, and if
the others wait for it, they do so in their passes: these are then longer than its own, by as much. Only when both are
seen, and the steps are equally long, a rank is named. A host's longer waiting for data alone may be hidden behind the
work that its device still has in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.calls.matched_calls import late_set
from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.settings import Settings
from starprof.model import causes
from starprof.model.rundata import MEASURED_BY, STEPS_PER_RECORD, WORLD_SIZE, RunData
from starprof.model.verdict import Cost, Finding, Verdict

SAME_STEP = 0.05
"""Steps of ranks that wait for each other differ by less than this share."""
MIN_GAP = 0.1
"""Least difference in waiting for data between the named ranks and all others, as a share of the step: the means come
without their errors."""
MIN_SHOWN = 0.02
"""Phases that differ less between ranks, as a share of the step, are not worth a line."""
MIN_COVERED = 0.8
SURE = 0.6

_PHASES = (
    ("data_wait_us", "Waiting for data"),
    ("h2d_us", "Copies to the device"),
    ("forward_us", "Forward (with any waiting in it)"),
    ("backward_us", "Backward (with the waiting for others in it)"),
    ("optimizer_us", "Optimizer"),
    ("unaccounted_us", "Rest of the step"),
)
_RECORD = (
    "Record single steps, with the time in collectives told apart: starprof record does both, profiler traces of all "
    "ranks (torch.profiler) too."
)


@dataclass(frozen=True)
class Means:
    """One mean a rank, microseconds, shape (R,); NaN = not measured."""

    run: RunData
    step: Floats
    data: Floats
    forward: Floats
    backward: Floats
    steps: int

    @property
    def typical_us(self) -> float:
        """The job's step."""
        return float(np.median(self.step))

    def names(self, rows: list[int]) -> str:
        """Ranks in words."""
        return rank_names(tuple(self.run.ranks[row].rank for row in rows))


def judge(run: RunData, settings: Settings, empty: Verdict) -> Verdict | None:
    """Verdict on means of whole steps; None for other runs.

    Args:
        run: one with `info["timing"] == "wall"` and a single record a rank, a mean of steps by the ranks' detail.
        settings: thresholds.
        empty: verdict that is filled in but for the answer.
    """
    means = _means(run)
    if means is None:
        return None
    last = int(run.steps.steps[0])
    empty = replace(empty, steps=(last - means.steps + 1, last))
    late, doubt = _late(means, settings)
    if late and not doubt:
        return _straggler(means, late, empty)
    shown = Finding(kind="one-off", cause=causes.UNKNOWN, evidence=_phases(means), next=_RECORD)
    return replace(empty, reason=doubt, findings=(shown,) if shown.evidence else ())


def _means(run: RunData) -> Means | None:
    columns = run.steps.columns
    told = [r.detail for r in run.ranks if MEASURED_BY in r.detail and STEPS_PER_RECORD in r.detail]
    if run.info.get("timing") != "wall" or len(run.steps.steps) != 1 or not told or "dur_us" not in columns:
        return None
    unknown = np.full(len(run.ranks), np.nan)

    def of(name: str) -> Floats:
        return columns[name][:, 0] if name in columns else unknown

    steps = min(int(d[STEPS_PER_RECORD]) for d in told)
    return Means(run, of("dur_us"), of("data_wait_us"), of("forward_us"), of("backward_us"), steps)


def _late(means: Means, settings: Settings) -> tuple[list[int], str]:
    """Rows of the ranks that the others wait for, and why nobody can be named; empty when they can."""
    obstacle = _obstacle(means, settings)
    if obstacle:
        return [], obstacle
    data = means.data
    late = late_set(-data, MIN_GAP * means.typical_us)
    if not late:
        share = float(np.median(data)) / means.typical_us
        return [], (
            f"No rank waits clearly longer for data than all others (median {pct(share)} of the step). Who is slow in "
            "computing can't be told from means: the others wait for it in their own passes, which then are as long as "
            "its own."
        )
    others = _others(means, late)
    who, gap = means.names(late), float(data[late].min() - data[others].max())
    seen = f"{who.capitalize()} {_verb(late, 'waits', 'wait')} {ms(gap)} longer for data than all others in the mean"
    if np.ptp(data[others]) > gap or np.ptp(data[late]) > gap:
        return late, f"{seen}, but these differ among themselves by as much: no single rank stands out."
    if any(r.detail.get(MEASURED_BY) != "device" for r in means.run.ranks):
        return late, (
            f"{seen}, as the hosts measure it; whether the devices had work left meanwhile is not told, so it may "
            "delay nobody."
        )
    if not _waited_for_us(means, late) >= MIN_COVERED * gap:
        return late, f"{seen}, but the others' passes are not longer by as much: they don't seem to wait for it there."
    return late, ""


def _obstacle(means: Means, settings: Settings) -> str:
    """Why the means can't be compared at all."""
    ranks = means.run.ranks
    size = max([len(ranks), *(int(r.detail.get(WORLD_SIZE, 0)) for r in ranks)])
    if size == 1:
        return f"Only {means.names([0])} left times: there is nobody to compare with."
    if len(ranks) < size:
        return f"Only {len(ranks)} of {size} ranks are told of: one of the others may be the last to arrive."
    if means.steps < settings.min_steps:
        return f"Means over {means.steps} step{'s' if means.steps > 1 else ''} only, {settings.min_steps} are needed."
    if not (means.step > 0).all() or np.ptp(means.step) > SAME_STEP * means.typical_us:
        low, high = int(np.argmin(means.step)), int(np.argmax(means.step))
        return (
            f"The ranks' steps are not equally long ({ms(float(means.step[low]))} on {means.names([low])}, "
            f"{ms(float(means.step[high]))} on {means.names([high])}): they don't wait for each other in each of them, "
            "or not within what was measured."
        )
    if not np.isfinite(means.data).all():
        missing = np.flatnonzero(~np.isfinite(means.data)).tolist()
        return f"The waiting for data of {means.names(missing)} was not measured, and passes hold waiting for others."
    return ""


def _others(means: Means, late: list[int]) -> list[int]:
    return [row for row in range(len(means.step)) if row not in late]


def _waited_for_us(means: Means, late: list[int]) -> float:
    """How much longer the others' passes are: in backward, or in both (sharded weights are awaited in each)."""
    others = _others(means, late)
    longer = [
        float(passes[others].min() - passes[late].max())
        for passes in (means.backward, means.backward + means.forward)
        if np.isfinite(passes).all()
    ]
    return max(longer, default=float("nan"))


def _straggler(means: Means, late: list[int], empty: Verdict) -> Verdict:
    others = _others(means, late)
    infos = [means.run.ranks[row] for row in late]
    who, data = means.names(late), means.data
    waited = _waited_for_us(means, late)
    # What it waits longer than the slowest of the others is what the job would gain, and no more than they waited.
    gain_us = min(float(data[late].min() - data[others].max()), waited)
    share = min(0.99, gain_us / means.typical_us)
    covered = min(1.0, float(data[late].min() - data[others].max()) / waited)
    seconds = gain_us * means.steps / 1e6
    finding = Finding(
        kind="chronic",
        cause=causes.DATA_LOADING if covered >= MIN_COVERED else causes.UNKNOWN,
        ranks=tuple(i.rank for i in infos),
        nodes=tuple(sorted({i.host for i in infos if i.host})),
        cause_share=round(covered, 3),
        confidence=SURE,
        slowdown=round(1.0 / (1.0 - share), 4),
        cost_seconds=round(seconds, 6),
        evidence=(
            f"{who.capitalize()} {_verb(late, 'waits', 'wait')} {_span(data[late])} for data in the mean step, the "
            f"others {_span(data[others])}.",
            f"All steps take {_span(means.step)}, and the others' passes are {ms(waited)} longer: there they wait for "
            f"{who}.",
            f"These are means over {means.steps} steps: whether it is so in all of them, or {ms(seconds * 1e6)} in a "
            "few, is not told.",
        ),
        action=f"Look at the storage, the loader workers and the host's cores of {who}; give it more workers or "
        "prefetching.",
        verify=f"Analyze again: {who} should wait for data no longer than the others ({_span(data[others])}).",
        next=_RECORD,
    )
    cost = Cost(round(seconds, 6), round(share, 6), round(seconds * len(means.step) / 3600.0, 9))
    reason = (
        f"{who.capitalize()} {_verb(late, 'waits', 'wait')} for data, and the others for {_verb(late, 'it', 'them')}: "
        f"{pct(share)} of the time, in the mean of the steps."
    )
    return replace(empty, verdict="straggler", cost=cost, findings=(finding,), reason=reason)


def _phases(means: Means) -> tuple[str, ...]:
    """What each phase takes, and the rank that differs most, where ranks differ."""
    lines = []
    for name, text in _PHASES:
        column = means.run.steps.columns.get(name)
        values = np.full(1, np.nan) if column is None else column[:, 0]
        if np.isfinite(values).sum() < 2 or np.nanmax(values) < MIN_SHOWN * means.typical_us:
            continue
        middle = float(np.nanmedian(values))
        line = f"{text}: {ms(middle)} (median of the ranks)"
        if np.nanmax(values) - np.nanmin(values) >= MIN_SHOWN * means.typical_us:
            low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
            line += f", least on {means.names([low])} ({ms(values[low])}), most on {means.names([high])} "
            line += f"({ms(values[high])})"
        lines.append(line + ".")
    return tuple(lines)


def _span(values: Floats) -> str:
    low, high = ms(float(values.min())), ms(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _verb(rows: list[int], one: str, many: str) -> str:
    return one if len(rows) == 1 else many
