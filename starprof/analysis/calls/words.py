"""Sentences about who arrives last at collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.calls.matched_calls import Matched
from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.model import causes
from starprof.model.collectives import MUTUAL
from starprof.model.rundata import RunData

if TYPE_CHECKING:
    from starprof.analysis.calls.arrivals import Suspect

SHOWN = 5

NOT_PERSISTENT = "Who arrives last changes from step to step."
VICTIM = "The ranks that arrive last wait for others themselves."
NOT_TOGETHER = (
    "The calls don't end at the same moment on all ranks: they may not be the same collectives, so who waited for whom "
    "can't be told."
)
UNEVEN = (
    "The ranks with the shortest calls come last in all-to-all calls only, and may just have less data to exchange: "
    "whether the others wait for them can't be told."
)
MOVING = "Ranks are late in turn, but over too few steps to tell whether it is always another one."
NEXT_CAUSE = "To find out why, record the job with `starprof record`: traces hold no counters of its hosts and devices."

_PHASE_CAUSES = (
    ("data_wait_us", causes.DATA_LOADING, "waiting for the data loader"),
    ("forward_us", causes.FORWARD_COMPUTE, "the forward pass"),
    ("backward_us", causes.BACKWARD_COMPUTE, "its own backward pass"),
    ("optimizer_us", causes.OPTIMIZER, "the optimizer step"),
)


def obstacle(run: RunData, matched: Matched) -> str:
    """Why nothing can be said at all; empty when something can."""
    if len(run.ranks) == 1:
        sizes = [i.detail.get("world_size") for i in run.ranks]
        of = f" of {sizes[0]}" if sizes[0] else ""
        return f"Only rank {run.ranks[0].rank}{of} left a trace: there is nobody to compare it with."
    if matched.groups:
        return ""
    if matched.across_stages:
        return (
            "All collectives join stages of a pipeline, which arrive in the order of its schedule: who is late can't "
            "be told from them."
        )
    if matched.unmatched:
        return (
            f"None of the {matched.unmatched} collective calls can be matched between the ranks: they made differently "
            "many in every step; record the same steps on all ranks."
        )
    if run.collectives is not None and not run.collectives["name"].isin(MUTUAL).any():
        return (
            "Only broadcasts, sends and the like were recorded, in which not everybody waits for everybody: they don't "
            "tell who comes last."
        )
    return "No two ranks took part in the same collectives: there is nothing to compare."


def few_seen(seen: int, size: int) -> str:
    """Members of a group have no records."""
    return f"Only {seen} of {size} ranks left a trace: one of the others may be the last to arrive; add their traces."


def world_size(run: RunData) -> int:
    """Ranks of the job as far as the traces tell, 0 if they don't."""
    return max((int(s) for i in run.ranks if isinstance(s := i.detail.get("world_size"), int)), default=0)


def few_steps(steps: int, needed: int) -> str:
    """Too few steps."""
    return (
        f"Only {steps} step{'s' if steps > 1 else ''} recorded, {needed} or more are needed: what happens in one of "
        "them may be chance."
    )


def few_calls(calls: int, needed: int) -> str:
    """Too few calls."""
    return (
        f"Only {calls} collective calls can be compared, {needed} or more are needed to tell a habit from chance: "
        "record longer."
    )


def by_chance(share: float, units: int, steps: bool) -> str:
    """What was seen may be chance."""
    what = "steps" if steps else "blocks of calls"
    return f"The same ranks come last in {pct(share)} of {units} {what}, which may still be chance; record longer."


def counts(run: RunData, matched: Matched) -> str:
    """How often each rank came last."""
    last = np.zeros(len(run.ranks), np.int64)
    for group in matched.groups:
        last += np.bincount(group.rows[group.last], minlength=len(last))
    order = [int(i) for i in np.argsort(-last, kind="stable") if last[i]]
    parts = [f"rank {run.ranks[i].rank}: {last[i]}" for i in order[:SHOWN]]
    more = f", {len(order) - SHOWN} other ranks: {last[order[SHOWN:]].sum()}" if len(order) > SHOWN else ""
    return f"Last to arrive (shortest time in the call) in {matched.calls} collective calls: {', '.join(parts)}{more}."


def inflicted(run: RunData, matched: Matched) -> tuple[str, ...]:
    """How long others waited for those who came last."""
    waited = np.zeros(len(run.ranks))
    for group in matched.groups:
        np.add.at(waited, group.rows[group.last], group.wait_us.sum(axis=0))
    order = [int(i) for i in np.argsort(-waited, kind="stable") if waited[i] > 0][:3]
    if not order:
        return ()
    parts = [f"{ms(waited[i])} for rank {run.ranks[i].rank}" for i in order]
    return (f"Waited by the others, summed over ranks: {', '.join(parts)}.",)


def lateness(run: RunData, matched: Matched, suspect: Suspect) -> tuple[str, ...]:
    """The late ranks beside their peers."""
    group, late = suspect.group, suspect.late
    per_unit = group.per_unit_us
    others = np.setdiff1d(np.arange(len(group.rows)), late)
    who = _who(run, suspect.rows.tolist())
    unit, units = ("step", "steps") if len(matched.steps) else ("block of calls", "blocks of calls")
    mine, theirs = float(np.nanmean(per_unit[late])), np.nanmean(per_unit[others], axis=1)
    span = ms(float(theirs[0])) if len(theirs) == 1 else f"{ms(float(theirs.min()))} to {ms(float(theirs.max()))}"
    return (
        f"{who.capitalize()} spent {ms(mine)} per {unit} in collectives, {'its' if len(late) == 1 else 'their'} peers "
        f"{span}: they wait for {'it' if len(late) == 1 else 'them'}.",
        f"{who.capitalize()} waited least in {pct(suspect.last)} of {len(suspect.held_up_us)} {units}; the others "
        f"could have gone on {ms(float(suspect.held_up_us.mean()))} earlier in each.",
    )


def phase_cause(
    run: RunData, rows: list[int], lateness_us: float, min_share: float
) -> tuple[str, float, tuple[str, ...]]:
    """The phase that carries the lateness where the trace tells phases: cause, covered share, evidence."""
    excess = {}
    for column, cause, text in _PHASE_CAUSES:
        values = run.steps.columns.get(column)
        if values is not None and np.isfinite(values[rows]).any():
            more = _mean_over(values, rows) - _mean_over(values, [r for r in range(len(values)) if r not in rows])
            if np.isfinite(more):
                excess[cause] = (more, text)
    if not excess or lateness_us <= 0:
        return causes.UNKNOWN, 0.0, ()
    cause = max(excess, key=lambda c: excess[c][0])
    more, text = excess[cause]
    share = min(1.0, max(0.0, more / lateness_us))
    if share < min_share:
        return causes.UNKNOWN, share, (f"{pct(share)} of it lies in {text}.",) if share > 0.1 else ()
    return cause, share, (f"{pct(share)} of it lies in {text}: {ms(more)} more per step than its peers.",)


def _mean_over(values: Floats, rows: list[int]) -> float:
    chosen = values[rows]
    return float(np.nanmean(chosen)) if np.isfinite(chosen).any() else float("nan")


def _who(run: RunData, rows: list[int]) -> str:
    return rank_names(tuple(run.ranks[r].rank for r in rows))


def action(run: RunData, rows: list[int]) -> str:
    """What to do about ranks whose cause is not known."""
    return (
        f"Look at what {_who(run, rows)} does between collectives that its peers do not, and at its host and device; "
        "exchange it for a spare one if nothing is found."
    )


def verify(run: RunData, rows: list[int], suspect: Suspect) -> str:
    """How to see that it is over."""
    return (
        f"Trace again: {_who(run, rows)} should be last about as often as the others, and wait "
        f"{ms(suspect.lateness_us)} more per step than now."
    )


def straggler_reason(run: RunData, rows: list[int], suspect: Suspect, share: float) -> str:
    """The verdict in one line."""
    hosts = sorted({run.ranks[r].host for r in rows if run.ranks[r].host})
    where = f" on {', '.join(hosts)}" if hosts else ""
    return (
        f"{_who(run, rows).capitalize()}{where}: last to arrive in {pct(suspect.last)} of the steps (or blocks of "
        f"calls), {pct(share)} of the time is lost waiting."
    )


def none_reason(matched: Matched, moving: float) -> str:
    """Nobody is late."""
    return (
        f"No rank is last persistently: over {matched.calls} collective calls the last rank holds up the next one by "
        f"{pct(moving)} of the time on average, and it is not always the same."
    )


def rotating_reason(share: float) -> str:
    """Everybody in turn."""
    return f"Late arrivals move over the ranks and cost {pct(share)} of the time; no rank is to blame."


def next_record(run: RunData, matched: Matched) -> str:
    """What to record for an answer."""
    size = world_size(run)
    missing = f" of all {size} ranks" if size > len(run.ranks) else ""
    if len(matched.steps):
        return (
            f"Trace more steps{missing}: torch.profiler.schedule(wait=5, warmup=2, active=20), or record the job with "
            "`starprof record`, which sees every step."
        )
    return (
        f"Trace longer{missing}, and call profiler.step() in the training loop, or record the job with "
        "`starprof record`, which sees every step."
    )
