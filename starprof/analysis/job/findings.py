"""Findings of a job-level series in words: lasting shifts, trends, periodic work, single stalls; no rank is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.causes.base import ms, pct
from starprof.analysis.job.combs import Comb
from starprof.analysis.job.series import Noise, Stretch, Trend
from starprof.model import causes, events
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, FindingKind

FIND_OUT = (
    "To find out who: record each rank's own time for a few steps (starprof record, profiler traces of all ranks, or "
    "NCCL flight recorder dumps); or restart without a part of the nodes, another part each time: the restart that "
    "is fast again has left the slow one out."
)
_EVENTS = {
    events.CHECKPOINT: (causes.CHECKPOINT, "saves a checkpoint", "Save asynchronously, or less often."),
    events.EVALUATION: (causes.EVALUATION, "evaluates", "Evaluate less often, or on fewer samples."),
    events.COMPILE: (causes.COMPILE, "compiles", "Warm up with all shapes before training."),
}
EVENT_SHARE = 0.8
MIN_CAUSE_SHARE = 0.8
_DATA = "{} of the excess was waiting for data, in the process that wrote the log; what the others did is not told."
LISTED = 40


@dataclass(frozen=True)
class Priced:
    """A series with what its parts cost.

    Attributes:
        steps: number of each record's (last) step, shape (S,).
        values: microseconds per step, shape (S,).
        usual: what each would have taken by its neighbours, shape (S,).
        over: microseconds of the job above that, at spikes, shape (S,).
        per_record: steps that a record is the mean of.
        run_us: wall time of all steps.
        data_us: part of `values` that the process which wrote the log waited for data, None = not told, shape (S,).
    """

    run: RunData
    steps: Ints
    values: Floats
    usual: Floats
    over: Floats
    per_record: int
    run_us: float
    data_us: Floats | None = None

    def first(self, column: int) -> int:
        """First step of a record."""
        return int(self.steps[column]) - self.per_record + 1

    def last(self, column: int) -> int:
        """Last step of a record."""
        return int(self.steps[column])

    def by_data(self, columns: Ints, excess_us: float) -> float:
        """Share of an excess over the usual (microseconds of the job) that waiting for data covers; 0 = not told."""
        if self.data_us is None or excess_us <= 0:
            return 0.0
        outside = np.delete(self.data_us, columns)
        more = self.data_us[columns] - (np.median(outside) if len(outside) else 0.0)
        return float(np.clip(more.sum() * self.per_record / excess_us, 0.0, 1.0))

    def event_of(self, columns: Ints) -> str | None:
        """Kind of event of which one stands beside most of the records."""
        frame = self.run.events
        if not len(frame) or not len(columns):
            return None
        for kind in _EVENTS:
            told = np.sort(frame[frame["kind"] == kind]["step"].dropna().to_numpy(np.float64))
            if not len(told):
                continue
            # Loggers differ in whether they write the line before or after the step that it lengthens.
            beside = np.searchsorted(told, self.steps[columns] + 1, "right") > np.searchsorted(
                told, self.steps[columns] - self.per_record, "left"
            )
            if beside.mean() >= EVENT_SHARE:
                return kind
        return None


def level_finding(priced: Priced, group: Sequence[Stretch], above: Floats, noise: Noise) -> Finding:
    """The job was slower for a lasting stretch, or in several alike.

    Args:
        priced: the series.
        group: the stretches, in order.
        above: microseconds of the job above the base level, shape (S,).
        noise: of the series.
    """
    first, last = group[0], group[-1]
    total = len(priced.values)
    columns = np.concatenate([np.arange(s.start, s.end) for s in group])
    factor = float(np.exp(np.average([s.height for s in group], weights=[s.end - s.start for s in group])))
    until_end = last.end == total
    kind: FindingKind = "chronic" if until_end or first.start == 0 else "transient"
    onset = priced.first(first.start)
    cost_us = float(above[columns].sum())
    slower = _slower(factor, became=until_end and first.start > 0 and len(group) == 1)
    took = _typical(priced, columns)
    lines = [
        f"{slower} {_when(priced, group)}: {ms(took)} instead of {ms(took / factor)} per step.",
    ]
    if first.start > 0:
        lines.append(f"The change lies between steps {priced.first(first.onset[0])} and {priced.last(first.onset[1])}.")
    surely = min(s.z for s in group)
    lines.append(
        f"The rise is {surely:.0f} standard errors of this series, which scatters by "
        f"{pct(noise.sigma)} from one record to the next."
    )
    if (event := priced.event_of(np.array([first.start]))) is not None:
        lines.append(f"It begins where the job {_EVENTS[event][1]}.")
    share = priced.by_data(columns, cost_us)
    by_data = share >= MIN_CAUSE_SHARE
    if by_data:
        lines.append(_DATA.format(pct(share)))
    return Finding(
        kind=kind,
        cause=causes.DATA_LOADING if by_data else causes.UNKNOWN,
        cause_share=round(share, 3) if by_data else 0.0,
        confidence=round(min(0.99, 1.0 - 1.0 / max(2.0, surely)), 3),
        onset_step=onset,
        onset_interval=(onset, onset) if first.start == 0 else _interval(priced, first),
        end_step=None if until_end else priced.last(last.end - 1),
        slowdown=round(factor, 4),
        cost_seconds=round(cost_us / 1e6, 6),
        evidence=tuple(lines),
        action="Look at what changed on the cluster at that time: clocks, temperatures, other jobs, link errors.",
        verify="The time of a step must fall back to the level before.",
    )


def _interval(priced: Priced, stretch: Stretch) -> tuple[int, int]:
    return priced.first(stretch.onset[0]), priced.last(stretch.onset[1])


def _slower(factor: float, *, became: bool) -> str:
    how = f"{100 * (factor - 1):.1f} % slower" if factor < 2 else f"{factor:.2f} times as slow"
    return f"The job {'became' if became else 'was'} {how}"


def _typical(priced: Priced, columns: Ints) -> float:
    return float(np.median(priced.usual[columns]))


def _when(priced: Priced, group: Sequence[Stretch]) -> str:
    if len(group) > 1 and any(a.end < b.start for a, b in pairwise(group)):
        told = ", ".join(f"{priced.first(s.start)}-{priced.last(s.end - 1)}" for s in group[:LISTED])
        return f"in {len(group)} stretches that come and go (steps {told})"
    first, last = group[0], group[-1]
    if last.end == len(priced.values):
        return f"from step {priced.first(first.start)} on" if first.start > 0 else "from the first step on"
    if first.start == 0:
        return f"up to step {priced.last(last.end - 1)}"
    return f"in steps {priced.first(first.start)} to {priced.last(last.end - 1)}"


def trend_finding(priced: Priced, trend: Trend, above: Floats) -> Finding:
    """Steps take longer and longer.

    Args:
        priced: the series.
        trend: the rise.
        above: microseconds of the job above the level at its start, shape (S,).
    """
    onset = priced.first(trend.start)
    factor = float(np.exp(trend.height))
    mean = priced.run_us / max(1.0, priced.run_us - float(above.sum()))
    return Finding(
        kind="trend",
        cause=causes.UNKNOWN,
        confidence=round(min(0.99, 1.0 - 1.0 / max(2.0, trend.z)), 3),
        onset_step=onset,
        onset_interval=(onset, onset),
        slowdown=round(mean, 4),
        cost_seconds=round(float(above.sum()) / 1e6, 6),
        evidence=(
            f"The job becomes slower all along from step {onset} on: the last steps take {100 * (factor - 1):.1f} % "
            "more than those before.",
        ),
        action="Look for what grows or heats up: memory and objects that leak, caches, logs, longer sequences, "
        "temperatures.",
        verify="Restart from a checkpoint: if the steps are as short as at first, something in the processes grows.",
    )


def periodic_finding(priced: Priced, comb: Comb) -> Finding:
    """Records that are longer at even distances."""
    columns = comb.columns
    every = comb.period * priced.per_record
    kind = priced.event_of(columns)
    cause, does, action = _EVENTS.get(kind or "", (causes.UNKNOWN, "", ""))
    cost_us = float(priced.over[columns].sum())
    height = float(np.median(priced.values[columns] / priced.usual[columns]))
    until_end = columns[-1] + comb.period >= len(priced.values)
    why = f"; that is when the job {does}" if kind else "; saving, evaluating and logging look like this"
    return Finding(
        kind="periodic",
        cause=cause,
        cause_share=1.0 if kind else 0.0,
        confidence=0.95,
        onset_step=priced.first(int(columns[0])),
        onset_interval=(priced.first(int(columns[0])), priced.last(int(columns[0]))),
        end_step=None if until_end else priced.last(int(columns[-1])),
        slowdown=round(1.0 + cost_us / max(1.0, priced.run_us - cost_us), 4),
        cost_seconds=round(cost_us / 1e6, 6),
        evidence=(
            f"Every {every} steps a step takes {height:.2f} times as long, {len(columns)} times from step "
            f"{priced.first(int(columns[0]))} on{why}.",
        ),
        action=action or "If this is planned work of the job (saving, evaluating), do it asynchronously or less often.",
        verify="These steps should become as short as the others.",
        next="" if kind else "Compare these steps with what the job does at such intervals.",
    )


def stall_findings(priced: Priced, single: Ints, listed: int) -> tuple[list[Finding], list[Finding]]:
    """One finding per stall that nothing explains, the most costly ones on their own; and those at a known event."""
    stalls = _neighbours(single)
    known = [(s, kind) for s in stalls if (kind := priced.event_of(s)) is not None]
    unknown = [s for s in stalls if priced.event_of(s) is None]
    unknown.sort(key=lambda s: -float(priced.over[s].sum()))
    findings = [_stall(priced, s) for s in unknown[:listed]]
    if len(unknown) > listed:
        findings.append(_more_stalls(priced, sorted(unknown[listed:], key=lambda s: int(s[0]))))
    return findings, [_planned(priced, s, kind) for s, kind in known[:listed]]


def _neighbours(single: Ints) -> list[Ints]:
    return [s for s in np.split(single, np.flatnonzero(np.diff(single) > 1) + 1) if len(s)]


def _height(priced: Priced, stall: Ints) -> float:
    """How many times as long the longest record took, against the median of the run."""
    return float(priced.values[stall].max() / np.median(priced.usual))


def _stall(priced: Priced, stall: Ints) -> Finding:
    first, last = int(stall[0]), int(stall[-1])
    cost_us = float(priced.over[stall].sum())
    where = f"Step {priced.last(first)}" if first == last else f"Steps {priced.first(first)} to {priced.last(last)}"
    if first == last and priced.per_record > 1:
        where = f"The mean of steps {priced.first(first)} to {priced.last(first)}"
    took = "took" if first == last else "took up to"
    share = priced.by_data(stall, cost_us)
    by_data = share >= MIN_CAUSE_SHARE
    why = _DATA.format(pct(share)) if by_data else "Such steps follow no pattern, and what caused it is not known."
    return Finding(
        kind="one-off",
        cause=causes.DATA_LOADING if by_data else causes.UNKNOWN,
        cause_share=round(share, 3) if by_data else 0.0,
        confidence=0.8 if by_data else 0.5,
        onset_step=priced.first(first),
        onset_interval=(priced.first(first), priced.last(first)),
        end_step=priced.last(last),
        slowdown=round(float(priced.values[stall].sum() / priced.usual[stall].sum()), 4),
        cost_seconds=round(cost_us / 1e6, 6),
        evidence=(
            f"{where} {took} {ms(float(priced.values[stall].max()))}, {_height(priced, stall):.2f} times the median.",
            why,
        ),
        action="None needed unless it comes back.",
        verify="Look for messages of the nodes at that time (kernel log, link resets, storage).",
    )


def _more_stalls(priced: Priced, stalls: list[Ints]) -> Finding:
    told = ", ".join(f"{priced.last(int(s[0]))} ({_height(priced, s):.2f}x)" for s in stalls[:LISTED])
    more = f" and {len(stalls) - LISTED} more" if len(stalls) > LISTED else ""
    columns = np.concatenate(stalls)
    return Finding(
        kind="one-off",
        cause=causes.UNKNOWN,
        confidence=0.5,
        onset_step=priced.first(int(columns[0])),
        onset_interval=(priced.first(int(columns[0])), priced.last(int(columns[0]))),
        end_step=priced.last(int(columns[-1])),
        slowdown=round(float(priced.values[columns].sum() / priced.usual[columns].sum()), 4),
        cost_seconds=round(float(priced.over[columns].sum()) / 1e6, 6),
        evidence=(f"{len(stalls)} smaller stalls, by step and times the median: {told}{more}.",),
        action="None needed unless they become more frequent.",
        verify="Look for messages of the nodes at those times (kernel log, link resets, storage).",
    )


def _planned(priced: Priced, stall: Ints, kind: str) -> Finding:
    cause, does, action = _EVENTS[kind]
    first, last = int(stall[0]), int(stall[-1])
    took = f"Step {priced.last(first)} took {_height(priced, stall):.2f} times the median"
    return Finding(
        kind="one-off",
        cause=cause,
        cause_share=1.0,
        confidence=0.9,
        onset_step=priced.first(first),
        onset_interval=(priced.first(first), priced.last(first)),
        end_step=priced.last(last),
        slowdown=round(float(priced.values[stall].sum() / priced.usual[stall].sum()), 4),
        cost_seconds=round(float(priced.over[stall].sum()) / 1e6, 6),
        evidence=(f"{took}: the job {does} there.",),
        action=action,
        verify="These steps should become as short as the others.",
    )


def pieces(stalls: Sequence[Finding]) -> str:
    """The stalls in words, the longest first."""
    named = [f"step {f.end_step} x{f.slowdown:.2f}" for f in stalls[:3]]
    return f"Stalls ({', '.join(named)}{', ...' if len(stalls) > len(named) else ''})"
