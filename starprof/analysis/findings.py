"""From a slowness to the finding that people read: one builder per source of slowness."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Bools
from starprof.analysis.causes import Case, Explanation, explain, explain_by_host, ms, pct
from starprof.analysis.causes.base import rank_names
from starprof.analysis.causes.phase import WORDS, split_in_words
from starprof.analysis.comparison import Comparison
from starprof.analysis.counters import Counters
from starprof.analysis.own_time import OwnTime
from starprof.analysis.phases import phase_excess
from starprof.analysis.settings import Settings
from starprof.analysis.slowness import Slowness
from starprof.analysis.words import confidence, lateness_evidence, when
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.verdict import Finding

RANK_0_WORK = ("user", "unaccounted")
SAME_SLACK = 5
MANY = 16


@dataclass(frozen=True)
class Context:
    """What every builder needs."""

    run: RunData
    own: OwnTime
    counters: Counters
    settings: Settings
    comparison: Comparison

    def hosts(self, nodes: list[int]) -> tuple[str, ...]:
        """Names of nodes, made distinct where two share one."""
        names = [self.counters.host(node) for node in nodes]
        all_nodes = {info.node for info in self.own.infos}
        every = [self.counters.host(node) for node in all_nodes]
        return tuple(
            f"{name} (node {n})" if every.count(name) > 1 else name for name, n in zip(names, nodes, strict=True)
        )

    def base(self, slowness: Slowness) -> Finding:
        """The parts of a finding that need no cause."""
        steps = self.own.steps
        start = self.own.first_step if slowness.start == 0 else int(steps[slowness.start])
        low, high = slowness.onset
        interval = (start, start) if slowness.start == 0 else (int(steps[low]), int(steps[high]))
        ended = slowness.end < len(steps)
        ranks = tuple(self.own.rank(r) for r in slowness.rows) if slowness.blame else ()
        nodes = sorted({self.own.infos[r].node for r in slowness.rows}) if slowness.blame else []
        inside = slice(slowness.start, slowness.end)
        job_us = float((np.nanmax(self.own.cycle[:, inside], axis=0) + self.own.transfer[inside]).sum())
        return Finding(
            kind=slowness.kind,
            cause=causes.UNKNOWN,
            ranks=ranks,
            nodes=self.hosts(nodes),
            role=self._role(slowness) if slowness.blame else {},
            onset_step=start,
            onset_interval=interval,
            end_step=int(steps[slowness.end - 1]) if ended else None,
            slowdown=round(job_us / max(1.0, job_us - slowness.cost_us), 4),
            cost_seconds=round(slowness.cost_us / 1e6, 6),
        )

    def _role(self, slowness: Slowness) -> dict[str, int]:
        """Role positions that all culprits share."""
        roles = [set(self.own.infos[r].role.items()) for r in slowness.rows]
        return dict(sorted(set.intersection(*roles))) if roles else {}

    def case(self, slowness: Slowness, blamed: Bools) -> Case:
        """The question that cause rules answer."""
        rows = slowness.rows
        past = np.ones(self.own.shape[1], bool)
        past[slowness.start : slowness.end] = False
        healthy = past if slowness.period is None else past | ~slowness.steps
        gone = [float(values.sum()) for values in slowness.reduction.rows.values()]
        return Case(
            run=self.run,
            own=self.own,
            counters=self.counters,
            settings=self.settings,
            rows=rows,
            steps=slowness.steps,
            past=past,
            window=(slowness.start, slowness.end),
            excess_s=float(np.mean(gone)) / 1e6,
            phases=phase_excess(self.own, rows, slowness.steps, healthy, blamed),
            period=slowness.period,
            blamed=blamed,
        )


def rank_findings(context: Context, found: list[Slowness]) -> list[tuple[Slowness, Finding]]:
    """Findings of late ranks; ranks with the same cause and the same time become one finding."""
    groups = _grouped(found) if len(found) > MANY else [[s] for s in found]
    explained = [(group, _explained(context, group)) for group in groups]
    merged: list[tuple[list[Slowness], Explanation]] = []
    for group, why in explained:
        same = next((m for m in merged if m[1].cause == why.cause and _same_time(m[0][0], group[0])), None)
        if same is None:
            merged.append((list(group), why))
        else:
            same[0].extend(group)
    result = []
    for group, why in merged:
        whole = _together(group)
        again = why if len(group) == 1 else _explained(context, group)
        result.append((whole, _rank_finding(context, whole, again)))
    return result


def _grouped(found: list[Slowness]) -> list[list[Slowness]]:
    groups: list[list[Slowness]] = []
    for slowness in found:
        group = next((g for g in groups if _same_time(g[0], slowness)), None)
        if group is None:
            groups.append([slowness])
        else:
            group.append(slowness)
    return groups


def _same_time(a: Slowness, b: Slowness) -> bool:
    near = abs(a.start - b.start) <= SAME_SLACK and abs(a.end - b.end) <= SAME_SLACK
    return a.kind == b.kind and a.blame == b.blame and near and a.period == b.period


def _together(group: list[Slowness]) -> Slowness:
    if len(group) == 1:
        return group[0]
    first = max(group, key=lambda s: s.cost_us)
    merged: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for part in group:
        for row, gone in part.reduction.rows.items():
            merged[row] = merged.get(row, 0.0) + gone
    return replace(
        first,
        rows=tuple(sorted({r for s in group for r in s.rows})),
        steps=np.any([s.steps for s in group], axis=0),
        cost_us=sum(s.cost_us for s in group),
        alone_us=sum(s.alone_us for s in group),
        reduction=replace(first.reduction, rows=merged),
    )


def _explained(context: Context, group: list[Slowness]) -> Explanation:
    whole = _together(group)
    blamed = context.comparison.blamed.copy()
    blamed[list(whole.rows)] = True
    return explain(context.case(whole, blamed))


def _rank_finding(context: Context, slowness: Slowness, why: Explanation) -> Finding:
    named = why.cause != causes.UNKNOWN
    if why.cause == causes.OPTIMIZER:
        # Its time is counted in front of the next reduction, where it makes the others wait.
        slowness = _one_step_earlier(slowness)
    evidence = [*lateness_evidence(context.comparison, slowness), *why.evidence]
    if slowness.alone_us < 0.5 * slowness.cost_us:
        evidence.append(
            f"Another slow rank hides part of it: cured alone it would save {ms(slowness.alone_us)} of its share of "
            f"{ms(slowness.cost_us)}."
        )
    return replace(
        context.base(slowness),
        cause=why.cause,
        cause_share=round(why.share, 3),
        confidence=confidence(slowness, why.share, named),
        evidence=tuple(line[0].upper() + line[1:] for line in evidence),
        action=why.action,
        verify=why.verify,
        next=why.next,
    )


def _one_step_earlier(slowness: Slowness) -> Slowness:
    if slowness.start == 0:
        return slowness
    low, high = slowness.onset
    return replace(slowness, start=slowness.start - 1, onset=(max(0, low - 1), max(0, high - 1)))


def rank_0_work(context: Context, slowness: Slowness) -> Slowness:
    """Regular extra work of rank 0 outside forward, backward and data is the program's own (saving, logging)."""
    if slowness.kind != "periodic" or tuple(context.own.rank(r) for r in slowness.rows) != (0,):
        return slowness
    case = context.case(slowness, context.comparison.blamed)
    if case.phases.share(*RANK_0_WORK) < context.settings.min_cause_share:
        return slowness
    return replace(slowness, blame=False)


def unblamed_periodic_finding(context: Context, slowness: Slowness) -> Finding:
    """Rank 0's periodic work without a span of its own."""
    case = context.case(slowness, context.comparison.blamed)
    every = f"every {slowness.period} steps"
    return replace(
        context.base(slowness),
        cause=causes.USER_CODE,
        cause_share=round(case.phases.share(*RANK_0_WORK), 3),
        confidence=confidence(slowness, 1.0, True),
        evidence=(
            f"Rank 0 does extra work {every} between the phases of the step ({ms(case.phases.total_us)} each time), "
            "as saving, logging or evaluating on rank 0 does; the other ranks wait for it.",
        ),
        action="Move rank 0's periodic work off the training loop (another thread or process), or do it less often.",
        verify=f"The step that comes {every} should last as long as the others.",
        next="Name that work with starprof.span to see what it is.",
    )


def one_off_finding(context: Context, slowness: Slowness) -> Finding:
    """A single slow step: worth knowing, nobody's fault."""
    case = context.case(slowness, context.comparison.blamed)
    who = case.who
    phase = case.phases.ranked()[0][0] if case.phases.ranked() else "unaccounted"
    first = int(context.own.steps[slowness.start])
    return replace(
        context.base(slowness),
        cause=causes.UNKNOWN,
        cause_share=0.0,
        confidence=0.5,
        evidence=(
            f"{who} was late by {ms(slowness.cost_us)} {when(context.comparison, slowness)}, mostly in "
            f"{WORDS[phase]} ({split_in_words(case)}); such steps follow no pattern.".replace("rank", "Rank", 1),
        ),
        action="None needed unless it comes back.",
        verify=f"Look at step {first} in the report; record longer to see whether such steps recur.",
    )


def rotating_finding(context: Context, slowness: Slowness) -> Finding:
    """Changing ranks are late: the cause is something they share, no rank is at fault."""
    own = context.own
    case = context.case(slowness, context.comparison.blamed)
    hit = float(slowness.steps[slowness.start : slowness.end].mean())
    phase, share = case.phases.ranked()[0] if case.phases.ranked() else ("unaccounted", 0.0)
    named = share >= context.settings.min_cause_share
    cause = _ROTATING_CAUSE.get(phase, causes.UNKNOWN) if named else causes.UNKNOWN
    return replace(
        context.base(slowness),
        cause=cause,
        cause_share=round(share, 3),
        confidence=confidence(slowness, 1.0, False),
        evidence=(
            f"In {pct(hit)} of the steps one of {len(slowness.rows)} of {own.shape[0]} ranks is late, each time "
            "another one; no rank is late persistently.",
            f"The excess lies in: {split_in_words(case)}.",
        ),
        action="Look for what the ranks share: unpinned processes that move between cores, uneven batches, a shared "
        "loader or storage. Exchanging a node will not help.",
        verify="Bind each rank to its own cores and even out the batches; the late steps should become rare.",
        next="" if named else "Record host counters and tokens per batch to see what the late steps have in common.",
    )


_ROTATING_CAUSE = {"data_wait": causes.DATA_LOADING, "h2d": causes.HOST_TO_DEVICE, "user": causes.USER_CODE}

_SPECIAL_CAUSE = {
    "gc": causes.GC,
    "checkpoint": causes.CHECKPOINT,
    "eval": causes.EVALUATION,
    "compile": causes.COMPILE,
}

_SPECIAL_ACTION = {
    "gc": "Call gc.freeze() after set-up, disable automatic collection and collect on all ranks in the same step; find "
    "what keeps so many objects alive.",
    "checkpoint": "Save asynchronously (torch.distributed.checkpoint.async_save), on all ranks in parallel, or less "
    "often.",
    "eval": "Evaluate on all ranks with a share of the data each, or less often.",
    "compile": "Warm up with all shapes before training, mark dynamic dimensions, or share the compile cache.",
}

_SPECIAL_WORDS = {
    "gc": "Python's garbage collector stopped",
    "checkpoint": "A checkpoint was saved on",
    "eval": "An evaluation ran on",
    "compile": "torch.compile compiled on",
}


def special_finding(context: Context, slowness: Slowness) -> Finding:
    """Garbage collection, checkpoints, evaluation, compilation."""
    own = context.own
    who = rank_names(tuple(own.rank(r) for r in slowness.rows))
    columns = np.flatnonzero(slowness.steps)
    times = len(columns)
    longest = max(float(values.max()) for values in slowness.reduction.rows.values())
    regular = f", every {slowness.period} steps" if slowness.period else ""
    first = int(own.steps[columns[0]])
    lines = [
        f"{_SPECIAL_WORDS[slowness.span]} {who} in {times} step{'s' if times > 1 else ''}{regular} from step {first} "
        f"on, for up to {ms(longest)}; meanwhile the other ranks wait."
    ]
    if slowness.kind == "trend":
        lines.append("The pauses get longer and longer, as when objects leak.")
    return replace(
        context.base(slowness),
        cause=_SPECIAL_CAUSE[slowness.span],
        cause_share=1.0,
        confidence=0.99,
        evidence=tuple(lines),
        action=_SPECIAL_ACTION[slowness.span],
        verify=f"{slowness.span}_us of {who} should shrink, and with it the longest steps.",
    )


def uniform_finding(context: Context, slowness: Slowness) -> Finding:
    """Everybody became slower."""
    own = context.own
    case = context.case(slowness, np.zeros(own.shape[0], bool))
    inside = slowness.steps
    parts = {
        name: float(
            np.nanmedian(np.nanmedian(v[:, inside], axis=0)) - np.nanmedian(np.nanmedian(v[:, ~inside], axis=0))
        )
        for name, v in own.phases.items()
    }
    total = sum(v for v in parts.values() if v > 0) or 1.0
    ranked = sorted(((v / total, k) for k, v in parts.items() if v > 0), reverse=True)
    share, phase = ranked[0] if ranked else (0.0, "unaccounted")
    split = ", ".join(f"{name} {pct(s)}" for s, name in ranked if s >= 0.02)
    cause = _UNIFORM_CAUSE.get(phase, causes.UNKNOWN) if share >= case.settings.min_cause_share else causes.UNKNOWN
    evidence = (
        f"All {own.shape[0]} ranks need more for themselves {when(context.comparison, slowness)}: "
        f"{ms(slowness.after_us)} instead of {ms(slowness.before_us)} per step, and none more than the others.",
        f"The increase lies in: {split}.",
    )
    host = explain_by_host(case)
    if host is not None:
        return replace(
            context.base(slowness),
            cause=host.cause,
            cause_share=round(host.share, 3),
            confidence=confidence(slowness, host.share, True),
            evidence=(*evidence, *host.evidence),
            action=host.action,
            verify=host.verify,
        )
    return replace(
        context.base(slowness),
        cause=cause,
        cause_share=round(share if cause != causes.UNKNOWN else 0.0, 3),
        confidence=confidence(slowness, 1.0, False),
        evidence=evidence,
        action="Look for what changed for everybody at that step: batch size or sequence length, data set, learning "
        "phase, clocks or limits of all nodes, shared storage.",
        verify="Undo the change and compare the ranks' own time per step.",
    )


_UNIFORM_CAUSE = {
    "data_wait": causes.DATA_LOADING,
    "h2d": causes.HOST_TO_DEVICE,
    "forward": causes.FORWARD_COMPUTE,
    "backward": causes.BACKWARD_COMPUTE,
    "optimizer": causes.OPTIMIZER,
    "user": causes.USER_CODE,
    "unaccounted": causes.USER_CODE,
}
