"""Findings that blame nobody: periodic work, single steps, late steps that go round, and everybody slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.causes import Case, Explanation, explain_by_counters, ms, pct, to_record
from starprof.analysis.causes.base import COINCIDES, rank_names
from starprof.analysis.causes.phase import WORDS, split_in_words
from starprof.analysis.causes.processes import main_process
from starprof.analysis.causes.rotating import explain_rotating
from starprof.analysis.findings import RANK_0_WORK, Context, together
from starprof.analysis.phases import PhaseExcess
from starprof.analysis.slowness import Slowness
from starprof.analysis.topology import shared_place
from starprof.analysis.words import confidence, when
from starprof.model import causes
from starprof.model.verdict import Finding


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


COLD = "A cold page cache is one possible reason: read the same data a second time, then the stall must be gone."


def one_off_findings(context: Context, found: list[Slowness]) -> list[tuple[Slowness, Finding]]:
    """Single slow steps; ranks that were late in the same steps become one finding."""
    groups: dict[tuple[int, int], list[Slowness]] = {}
    for slowness in found:
        groups.setdefault((slowness.start, slowness.end), []).append(slowness)
    wholes = [together(group) for group in groups.values()]
    return [(whole, _one_off_finding(context, whole)) for whole in wholes]


def _one_off_finding(context: Context, slowness: Slowness) -> Finding:
    """A single slow step: worth knowing, nobody's fault."""
    blamed = context.comparison.blamed.copy()
    blamed[list(slowness.rows)] = True
    case = context.case(slowness, blamed)
    phase, share = case.phases.ranked()[0] if case.phases.ranked() else ("unaccounted", 0.0)
    named = _ROTATING_CAUSE.get(phase) if share >= context.settings.min_cause_share else None
    shared = shared_place(context.run, context.own, slowness.rows)
    late_us = max(float(values.sum()) for values in slowness.reduction.rows.values())
    evidence = [
        f"{case.who} was late by {ms(late_us)} {when(context.comparison, slowness)}, mostly in "
        f"{WORDS[phase]} ({split_in_words(case)}); such steps follow no pattern.".replace("rank", "Rank", 1)
        if len(slowness.rows) == 1
        else f"{case.who.capitalize()} were late by up to {ms(late_us)} {when(context.comparison, slowness)}, "
        f"mostly in {WORDS[phase]} ({split_in_words(case)}); all others waited for them.",
        *([shared.words[0].upper() + shared.words[1:]] if shared.words else []),
    ]
    return replace(
        context.base(slowness),
        cause=named or causes.UNKNOWN,
        cause_share=round(share if named else 0.0, 3),
        confidence=0.5,
        evidence=tuple(evidence),
        action="None needed unless it comes back.",
        verify=f"Look at step {int(context.own.steps[slowness.start])} in the report; record longer to see whether "
        "such steps recur.",
        next=" ".join(part for part in (shared.next, COLD if named == causes.DATA_LOADING else "") if part),
    )


def rotating_finding(context: Context, slowness: Slowness) -> Finding:
    """Changing ranks are late: the cause is something they share, no rank is at fault."""
    own = context.own
    case = context.case(slowness, context.comparison.blamed)
    hit = float(slowness.steps[slowness.start : slowness.end].mean())
    phase, share = case.phases.ranked()[0] if case.phases.ranked() else ("unaccounted", 0.0)
    evidence = (
        f"In {pct(hit)} of the steps {_how_many(slowness, own.shape[0])} late, not always the same; no rank is "
        "late persistently.",
        f"The excess lies in: {split_in_words(case)}.",
    )
    why = explain_rotating(case)
    if why is not None:
        return _explained(context, slowness, evidence, why)
    named = share >= context.settings.min_cause_share
    cause = _ROTATING_CAUSE.get(phase, causes.UNKNOWN) if named else causes.UNKNOWN
    return replace(
        context.base(slowness),
        cause=cause,
        cause_share=round(share, 3),
        confidence=confidence(slowness, 1.0, False),
        evidence=evidence,
        action="Look for what the ranks share: unpinned processes that move between cores, uneven batches, a shared "
        "loader or storage. Exchanging a node will not help.",
        verify="Bind each rank to its own cores and even out the batches; the late steps should become rare.",
        next="" if named else "Record host counters and tokens per batch to see what the late steps have in common.",
    )


def _how_many(slowness: Slowness, ranks: int) -> str:
    """Ranks that are late at the same time, usually."""
    late = np.sum([taken > 0 for taken in slowness.reduction.rows.values()], axis=0)
    usual = round(float(np.median(late[late > 0]))) if (late > 0).any() else 1
    return f"{usual} of {ranks} ranks {'is' if usual == 1 else 'are'}"


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


def _explained(context: Context, slowness: Slowness, evidence: tuple[str, ...], why: Explanation) -> Finding:
    """A finding whose cause counters show."""
    return replace(
        context.base(slowness),
        cause=why.cause,
        cause_share=round(why.share, 3),
        confidence=round(why.certainty * confidence(slowness, why.share, True), 3),
        evidence=(*evidence, *why.evidence, *why.against),
        action=why.action,
        verify=why.verify,
        next=why.next,
    )


def uniform_finding(context: Context, slowness: Slowness) -> Finding:
    """Everybody became slower."""
    own = context.own
    case = _case_against_the_past(context, slowness)
    ranked = case.phases.ranked()
    phase, share = ranked[0] if ranked else ("unaccounted", 0.0)
    split = ", ".join(f"{name} {pct(part)}" for name, part in ranked)
    cause = _UNIFORM_CAUSE.get(phase, causes.UNKNOWN) if share >= case.settings.min_cause_share else causes.UNKNOWN
    who = f"All {own.shape[0]} ranks need" if own.shape[0] > 1 else f"Rank {own.rank(0)}, the only one, needs"
    rest = ", and none more than the others" if own.shape[0] > 1 else ", compared with its own past only"
    evidence = (
        f"{who} more for {'themselves' if own.shape[0] > 1 else 'itself'} {when(context.comparison, slowness)}: "
        f"{ms(slowness.after_us)} instead of {ms(slowness.before_us)} per step{rest}.",
        f"The increase lies in: {split}.",
    )
    why = explain_by_counters(case)
    if why is not None:
        return _explained(context, slowness, evidence, why)
    return replace(
        context.base(slowness),
        cause=cause,
        cause_share=round(share if cause != causes.UNKNOWN else 0.0, 3),
        confidence=confidence(slowness, 1.0, False),
        evidence=evidence,
        action="Look for what changed for everybody at that step: batch size or sequence length, data set, learning "
        "phase, clocks or limits of all nodes, shared storage.",
        verify="Undo the change and compare the ranks' own time per step.",
        next=_to_collect(case),
    )


def _to_collect(case: Case) -> str:
    """What would tell why everybody is slower; counters that were collected show nothing that changed."""
    record = to_record(case)
    if record:
        return f"{record[0].upper()}{record[1:]}: step times alone can't tell why."
    return "The counters that were collected show no change by as much: note batch sizes, data and settings per step."


def _case_against_the_past(context: Context, slowness: Slowness) -> Case:
    """The case of everybody's slowness: nobody is a peer, so each phase is compared with the same ranks' past."""
    own, inside = context.own, slowness.steps
    case = context.case(slowness, np.zeros(own.shape[0], bool))
    grown = {}
    for name, values in own.phases.items():
        late, usual = np.nanmedian(values[:, inside], axis=0), np.nanmedian(values[:, ~inside], axis=0)
        grown[name] = float(np.nanmedian(late) - np.nanmedian(usual))
    return replace(case, phases=PhaseExcess(grown))


_UNIFORM_CAUSE = {
    "data_wait": causes.DATA_LOADING,
    "h2d": causes.HOST_TO_DEVICE,
    "forward": causes.FORWARD_COMPUTE,
    "backward": causes.BACKWARD_COMPUTE,
    "optimizer": causes.OPTIMIZER,
    "user": causes.USER_CODE,
    "unaccounted": causes.USER_CODE,
}


def counted_finding(context: Context, slowness: Slowness) -> Finding:
    """All ranks lose time from the first step on, as counters of lost time show."""
    own, counters = context.own, context.counters
    share = slowness.after_us
    node = own.infos[0].node
    here = [row for row, info in enumerate(own.infos) if info.node == node]
    cores = counters.cores.get(node)
    threads = _threads(context, here)
    place = counters.host(node)
    if slowness.span == causes.CGROUP_THROTTLING:
        first = (
            f"The CPU quota of their control groups stops all {own.shape[0]} ranks for {pct(share)} of their own time."
        )
        action = "Raise or remove the quota (CPU limit of the container), or start fewer threads and loader workers."
        verify = (
            "nr_throttled must stand still and the steps become shorter; if they do not, the quota was not the cause."
        )
    else:
        per_rank = max(1, (cores or len(here)) // max(1, len(here)))
        first = (
            f"All {own.shape[0]} ranks were runnable but not running for {pct(share)} of their own time: on {place} "
            f"{len(here)} ranks have {threads:.0f} threads for {cores if cores else 'an unknown number of'} CPUs."
        )
        action = f"Set OMP_NUM_THREADS={per_rank} per rank (cores / ranks of the node) and bind each rank to its cores."
        verify = "run_delay_us must nearly stand still; if the steps are no shorter then, threads were not the cause."
    return replace(
        context.base(slowness),
        cause=slowness.span,
        cause_share=1.0,
        confidence=COINCIDES,
        evidence=(
            first,
            "It was so from the first step on and on all ranks alike: no rank is late, and no step record shows it.",
        ),
        action=action,
        verify=verify,
    )


def _threads(context: Context, rows: list[int]) -> float:
    """Threads of some ranks' own processes, where they were counted."""
    sampled = ((row, samples) for row in rows if (samples := main_process(context, row)) is not None)
    counts = [context.counters.mean(samples, "threads", *context.whole_span_ns(row)) for row, samples in sampled]
    return sum(count for count in counts if count == count)
