"""Findings that blame nobody: periodic work, single steps, late steps that go round, and everybody slower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.batch_kind import kind_words, sizes_of, stalled_steps
from starprof.analysis.causes import Case, Explanation, explain_by_counters, ms, pct, to_record
from starprof.analysis.causes.base import COINCIDES, rank_names
from starprof.analysis.causes.phase import RANK_0_WORK, WORDS, split_in_words
from starprof.analysis.causes.rotating import explain_rotating
from starprof.analysis.findings import Context, together
from starprof.analysis.phases import PhaseExcess, excess_in_turn
from starprof.analysis.saving import Saved, saved
from starprof.analysis.slowness import Slowness
from starprof.analysis.topology import shared_place
from starprof.analysis.words import COLD_CACHE, confidence, when
from starprof.model import causes
from starprof.model.verdict import Finding


def unblamed_periodic_finding(context: Context, slowness: Slowness) -> Finding:
    """Rank 0's periodic work without a span of its own."""
    case = context.case(slowness, context.comparison.blamed)
    every = f"every {slowness.period} steps"
    written = saved(case)
    if written is not None:
        return _save_finding(context, slowness, case, written)
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


def _save_finding(context: Context, slowness: Slowness, case: Case, written: Saved) -> Finding:
    """The same where the bytes that are written meanwhile show that it is saving."""
    every = f"every {slowness.period} steps"
    return replace(
        context.base(slowness),
        cause=causes.CHECKPOINT,
        cause_share=round(written.share, 3),
        confidence=round(COINCIDES * confidence(slowness, 1.0, True), 3),
        evidence=(
            f"Rank 0 is late {every} between the phases of the step ({ms(case.phases.total_us)} each time), and the "
            "other ranks wait for it.",
            f"Its processes wrote {written.bytes_per_step / 1e9:.2g} GB each time, {pct(written.share)} of all that "
            "they wrote: it saves.",
        ),
        action=_SPECIAL_ACTION["checkpoint"],
        verify=f"Without saving, the step that comes {every} should last as long as the others.",
    )


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
    if context.own.shape[0] == 1:
        case = replace(case, phases=excess_in_turn(context.own, slowness.reduction.rows))
    phase, share = case.phases.ranked()[0] if case.phases.ranked() else ("unaccounted", 0.0)
    named = _ROTATING_CAUSE.get(phase) if share >= context.settings.min_cause_share else None
    kind = _batch_kind(context, slowness.rows) if named == causes.DATA_LOADING else []
    shared = shared_place(context.counters, context.own, slowness.rows)
    late_us = max(float(values.sum()) for values in slowness.reduction.rows.values())
    evidence = [
        f"{case.who} was late by {ms(late_us)} {when(context.comparison, slowness)}, mostly in "
        f"{WORDS[phase]} ({split_in_words(case)}){'' if kind else '; such steps follow no pattern'}.".replace(
            "rank", "Rank", 1
        )
        if len(slowness.rows) == 1
        else f"{case.who.capitalize()} were late by up to {ms(late_us)} {when(context.comparison, slowness)}, "
        f"mostly in {WORDS[phase]} ({split_in_words(case)}); all others waited for them.",
        *([shared.words[0].upper() + shared.words[1:]] if shared.words else []),
        *kind,
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
        next=" ".join(part for part in (shared.next, COLD_CACHE if named == causes.DATA_LOADING else "") if part),
    )


def _batch_kind(context: Context, rows: tuple[int, ...]) -> list[str]:
    """What the batches have in common for which one of these ranks waited long."""
    own = context.own
    for row in rows:
        stalled = stalled_steps(own.phases["data_wait"][row], own.healthy_step_us, context.settings)
        words = kind_words(stalled, own.steps, sizes_of(context.run, own, context.counters, row))
        if words:
            return words
    return []


def rotating_finding(context: Context, slowness: Slowness) -> Finding:
    """Changing ranks are late: the cause is something they share, no rank is at fault."""
    own = context.own
    case = context.case(slowness, context.comparison.blamed)
    # Where most ranks are late in every step the peers' median is late as well: each rank against its own other steps.
    case = replace(case, phases=excess_in_turn(own, slowness.reduction.rows))
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
        next=""
        if cause != causes.UNKNOWN
        else "Record host counters and tokens per batch to see what the late steps have in common.",
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
    "gc": "Call gc.freeze() after set-up, disable automatic collection and collect on all ranks in the same step: the "
    "pauses then coincide instead of adding up, which makes no pause shorter; that needs fewer live objects, so find "
    "what keeps so many of them alive.",
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
        action="Look for what changed for everybody at that step: configuration, batch size or sequence length, data "
        "set, learning phase, clocks or limits of all nodes, shared storage.",
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
    outside = ~inside if slowness.elsewhere is None else ~inside & ~slowness.elsewhere
    case = context.case(slowness, np.zeros(own.shape[0], bool))
    grown = {}
    for name, values in own.phases.items():
        late, usual = np.nanmedian(values[:, inside], axis=0), np.nanmedian(values[:, outside], axis=0)
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
