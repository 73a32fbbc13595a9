"""The advice for a recorded run: its cost, what removes the causes, what another mode would bring, or nothing at all.

A step is recommended when what it saves for sure is worth a change: `LEAST_SAVING` of the job's time. Of a cause that
is what its finding costs, of a mode the lower end of its gain's interval. A job that is healthy, whose slowness costs
less than that, or whose recording does not tell, is best left alone: the answer is "nothing", or what to record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from starprof.analysis.counters import Counters
from starprof.analysis.own_time import OwnTime
from starprof.decision.advice import commands, nodes, room, words
from starprof.decision.advice.evidence import Evidence, evidence, present_mode
from starprof.decision.advice.moves import MOVES, Scene
from starprof.decision.advice.ranking import Ranking, ranking
from starprof.decision.advice.refusals import refusals
from starprof.decision.advice.result import LEAST_SAVING, Advice, Do, Now, Saving, Step
from starprof.errors import NoDataError
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.tables.sync import NATIVE
from starprof.model.verdict import Finding, Verdict

LEAST_MODE_SAVING = 0.05
"""A mode changes how the model is trained: it has to save more."""
WORKED_AROUND = 0.8
"""A mode works around a cause, and how well the model learns in it is told by a formula: a cure is worth more."""
BACK = "go back to native steps"
REBALANCED = ("chronic", "trend")
"""Kinds of slowness against which batches can be divided by speed."""


def advise(run: RunData, verdict: Verdict, barred: Mapping[str, str]) -> Advice:
    """Say what to do about a run.

    Args:
        run: one attempt of it.
        verdict: its diagnosis.
        barred: modes that no running job can be moved to, and why.

    Raises:
        NoDataError: the run holds nothing that any advice could be made from.
    """
    if verdict.verdict == "inconclusive" and not verdict.findings:
        raise NoDataError(f"no advice: {verdict.reason or 'the recording does not tell who is slow'}")
    known = evidence(run, verdict)
    refused = refusals(run)
    found = None if isinstance(known, str) or verdict.verdict == "hang" else ranking(run, known, barred)
    share = _relative_error(known.own, verdict) if isinstance(known, Evidence) else None
    steps = _cures(run, verdict, share)
    if isinstance(known, Evidence) and found is not None and verdict.verdict != "inconclusive":
        steps += [*_rebalanced(known, verdict), *_mode(run, verdict, known, found, refused)]
    loads = nodes.node_loads(known, Counters(run)) if isinstance(known, Evidence) else ()
    steps += nodes.moves(loads, verdict, {step.cause: step.saves for step in steps if step.cause})
    needs = _needs(run, known, found, loads, steps)
    steps = sorted(steps, key=lambda step: (step.kind == "record", -step.score))
    do = _do(verdict, steps)
    mode, options = present_mode(run)
    return Advice(
        run=verdict.run,
        do=do,
        headline=words.headline(do, verdict, steps),
        why=words.why(do, verdict, steps, known, found, refused),
        now=_now(verdict, share, mode, options),
        steps=tuple(steps),
        modes=found.rows if found is not None else (),
        refused=refused,
        cautions=(*words.cautions(run, known, found), *needs),
        inputs=_inputs(known, found) | ({"nodes": nodes.to_json(loads)} if loads else {}),
    )


def _needs(
    run: RunData,
    known: Evidence | str,
    found: Ranking | None,
    loads: Sequence[nodes.NodeLoad],
    steps: Sequence[Step],
) -> list[str]:
    """What the mode that is advised needs of the nodes, if one is: measured, or told by counters."""
    advised = next((step for step in steps if step.kind == "mode" and step.what != BACK), None)
    if isinstance(known, str) or found is None or advised is None or not loads:
        return []
    ids = sorted({info.node for info in known.own.infos})
    plans = room.rooms(run, loads, ids, found.chosen.mode, advised.saves.share)
    if plans:
        return room.cautions(plans, found.chosen.mode)
    return room.estimates_told(room.by_counters(known, loads, found.choice), found.chosen.mode)


def _now(verdict: Verdict, relative: float | None, mode: str, options: Mapping[str, object]) -> Now:
    cost = verdict.cost
    low = high = None
    if cost.seconds_interval is not None and cost.seconds > 0:
        low, high = (end / cost.seconds * cost.share for end in cost.seconds_interval)
    elif relative is not None:
        low, high = _around(cost.share, relative)
    told = ", ".join(f"{name}={value}" for name, value in options.items())
    return Now(
        verdict.verdict, cost.seconds, cost.share, cost.gpu_hours, low, high, f"{mode} ({told})" if told else mode
    )


def _around(share: float, relative: float) -> tuple[float, float]:
    return max(0.0, share * (1.0 - relative)), min(1.0, share * (1.0 + relative))


def _relative_error(own: OwnTime, verdict: Verdict) -> float | None:
    """Half of the 95 % interval of what the named ranks cost, as a share of it, from how much that differs by steps.

    A step's loss is by how much its last rank is later than the last of the others; means over tenths of the run are
    taken as independent.
    """
    about = [finding for finding in verdict.findings if finding.ranks and not _of_network(finding)]
    named = {rank for finding in about for rank in finding.ranks}
    rest = np.array([own.rank(row) not in named for row in range(own.shape[0])])
    if not named or not rest.any() or rest.all() or own.shape[1] < 20:
        return None
    late = np.fmax.reduce(own.cycle, axis=0) - np.fmax.reduce(own.cycle[rest], axis=0)
    begin = min(f.onset_step or 0 for f in about)
    end = max(float("inf") if f.end_step is None else f.end_step for f in about)
    late = late[(own.steps >= begin) & (own.steps <= end)]
    parts = [float(np.nanmean(part)) for part in np.array_split(late, 10) if len(part) and np.isfinite(part).any()]
    mean = float(np.mean(parts)) if parts else 0.0
    if len(parts) < 2 or mean <= 0:
        return None
    error = float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
    return min(1.0, 1.96 * error / mean)


def _of_network(finding: Finding) -> bool:
    move = MOVES.get(finding.cause)
    return move is not None and move.kind == "network"


def _cures(run: RunData, verdict: Verdict, relative: float | None) -> list[Step]:
    """A step for every finding, and what to record where the answer is not complete."""
    counters = Counters(run)
    total = verdict.cost.seconds / verdict.cost.share if verdict.cost.share > 0 else 0.0
    steps = []
    for finding in verdict.findings:
        share = finding.cost_seconds / total if total > 0 else _by_slowdown(finding)
        low, high = _around(share, relative) if relative is not None and finding.ranks else (None, None)
        ended = finding.end_step is not None and finding.kind == "transient"
        move = MOVES.get(finding.cause)
        if _of_network(finding):  # the error is that of ranks' own times
            low = high = None
        saves = Saving(0.0) if ended else Saving(share, low, high)
        if move is not None and not ended:
            steps.append(
                Step(
                    move.kind,
                    move.what,
                    finding.action,
                    tuple(move.commands(Scene(run, counters, finding))),
                    move.at_once,
                    saves,
                    finding.confidence * move.cures,
                    finding.cause,
                    finding.ranks,
                    finding.nodes,
                    finding.verify,
                )
            )
        if finding.next:
            what = "find out why" if finding.cause == causes.UNKNOWN else "complete the answer"
            steps.append(Step("record", what, finding.next, (), False, saves, 0.0, finding.cause, finding.ranks))
    return steps


def _by_slowdown(finding: Finding) -> float:
    """What a finding costs where the job's time is not known, as in tests of links or a few calls."""
    return 1.0 - 1.0 / finding.slowdown if finding.ranks and 1.0 < finding.slowdown < math.inf else 0.0


def _rebalanced(known: Evidence, verdict: Verdict) -> list[Step]:
    """Batches in proportion to speed, where ranks are slow for good: all are then done at the same time."""
    slow = [
        finding for finding in verdict.findings if finding.ranks and finding.kind in REBALANCED and not _ended(finding)
    ]
    if not slow or known.batch < 2 or known.mode != NATIVE or verdict.verdict == "workload-skew":
        return []
    usual = np.median(known.iteration_s, axis=0)
    part = (1.0 / usual) / (1.0 / usual).sum()
    samples = np.maximum(1, np.round(part * known.batch * len(usual)))
    before = float(known.iteration_s.max(axis=1).mean())
    after = float((known.iteration_s * (samples / known.batch)).max(axis=1).mean())
    share = 1.0 - after / before
    if share < LEAST_SAVING:
        return []
    named = sorted({rank for finding in slow for rank in finding.ranks})
    sizes = ", ".join(f"rank {r}: {int(n)}" for r, n in zip(known.workers, samples, strict=True) if r in named)
    others = int(np.median([n for r, n in zip(known.workers, samples, strict=True) if r not in named] or [0]))
    return [
        Step(
            "program",
            "divide the batch by speed",
            f"Samples a step: {sizes}; the others {others}, of {known.batch:g} now. Weigh the loss of each rank by its "
            f"samples, or the mean of the gradients is no longer that of all samples. It helps as far as the slowness "
            f"grows with the batch.",
            (f"loss = loss * (samples_here * {len(usual)} / {int(samples.sum())})",),
            False,
            Saving(share, 0.0, share),
            0.5,
            ranks=tuple(named),
        )
    ]


def _ended(finding: Finding) -> bool:
    return finding.end_step is not None


def _mode(run: RunData, verdict: Verdict, known: Evidence, found: Ranking, refused: Sequence[str]) -> list[Step]:
    """Another mode, if the chooser wants one, the job can have it, and its gain is sure."""
    chosen, choice = found.chosen, found.choice
    if not choice.changed or chosen.mode == known.mode or (refused and chosen.mode != NATIVE):
        return []
    if chosen.mode == NATIVE:
        how = f"{choice.reason}. The reason for {known.mode} is gone."
        return [Step("mode", BACK, how, (chosen.command,), True, Saving(0.0), 1.0)]
    if chosen.low is None or chosen.high is None or chosen.gain is None or 1.0 - 1.0 / chosen.low < LEAST_MODE_SAVING:
        return []
    ranks = tuple(sorted(choice.standing.stragglers))
    because = f"{verdict.verdict}: {words.named(ranks)}" if ranks else verdict.verdict
    lines = (
        commands.ctl_mode(run, chosen.mode, chosen.options, because),
        commands.record_with_mode(run, chosen.mode, chosen.options),
    )
    how = (
        f"{choice.reason}. The first line moves the job while it runs, if it was started with `starprof record "
        "--control`; the second one starts it so."
    )
    saves = Saving(1.0 - 1.0 / chosen.gain, 1.0 - 1.0 / chosen.low, 1.0 - 1.0 / chosen.high)
    verify = "`starprof ctl JOB status` shows the rounds per second and each rank's part in them."
    return [
        Step(
            "mode", f"synchronise by {chosen.mode}", how, lines, True, saves, WORKED_AROUND, ranks=ranks, verify=verify
        )
    ]


def _do(verdict: Verdict, steps: Sequence[Step]) -> Do:
    if verdict.verdict == "inconclusive":
        return "record" if steps else "nothing"
    if verdict.verdict == "hang":
        return "act" if any(step.kind != "record" for step in steps) else "record"
    real = any(step.kind != "record" for step in steps)
    if any(_pays(step) for step in steps) or (real and verdict.verdict != "none" and not words.known_cost(verdict)):
        return "act"
    wanting = verdict.verdict != "none" and (verdict.cost.share >= LEAST_SAVING or not words.known_cost(verdict))
    return "record" if wanting and any(step.kind == "record" for step in steps) else "nothing"


def _pays(step: Step) -> bool:
    """Whether it is worth a change. Going back to native steps always is: it is how the job was meant to be."""
    return step.kind != "record" and (step.saves.share >= LEAST_SAVING or step.what == BACK)


def _inputs(known: Evidence | str, found: Ranking | None) -> dict[str, Any]:
    if isinstance(known, str):
        return {"modes_not_ranked": known}
    told: dict[str, Any] = {"steps": list(known.steps), "micro_batches": known.micro_batches}
    if found is not None:
        told |= {"choice": found.choice.to_json()}
        del told["choice"]["scores"]  # the modes of the advice are these, with intervals
    return told
