"""Findings about how work is dealt out: uneven batches, and pipeline stages that are heavier than others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.batch import UnevenBatches, uneven_batches
from starprof.analysis.causes import ms, pct
from starprof.analysis.causes.base import rank_names
from starprof.analysis.findings import Context
from starprof.analysis.slowness import Slowness
from starprof.model import causes
from starprof.model.verdict import Finding

WORDS = {"micro_batches": "micro-batches", "samples": "samples", "tokens": "tokens"}
NAMED = 4


def workload_finding(context: Context, slowness: Slowness) -> Finding:
    """Ranks are late where their batches are larger: no device is to blame."""
    uneven = uneven_batches(context.run, context.own)
    assert uneven is not None  # the slowness came from it
    own, what = context.own, WORDS[uneven.column]
    last = np.argmax(np.nan_to_num(own.cycle, nan=-1.0), axis=0)
    had = uneven.ratio[last, np.arange(own.shape[1])]
    larger = float(np.mean(np.nan_to_num(had, nan=1.0) > 1.0))
    lines = [
        f"Own time follows the {what} of the batch (to the power {uneven.exponent:.2f}); the last rank to arrive had "
        f"more {what} than its peers in {pct(larger)} of the steps, {(np.nanmedian(had) - 1.0) * 100:+.0f} % in the "
        "median one.",
        _who(context, slowness, uneven, what),
        f"With batches as large as the peers' the job would save {ms(slowness.cost_us)} in {own.shape[1]} steps.",
    ]
    tokens = uneven.column == "tokens"
    return replace(
        context.base(slowness),
        cause=causes.SEQUENCE_LENGTH if tokens else causes.BATCH_IMBALANCE,
        cause_share=1.0,
        confidence=0.95 if uneven.changes else 0.8,
        evidence=tuple(lines),
        action="Deal out sequences by their tokens: sort into buckets of like length, pack, or fill batches up to a "
        "budget of tokens."
        if tokens
        else f"Give all ranks the same number of {what} per step.",
        verify=f"The {what} of the ranks in a step should differ little, and the same rank should no longer be last.",
        next=""
        if uneven.changes
        else "Give one of these ranks its peers' share for a while: if it is still late, its device is slow as well.",
    )


def _who(context: Context, slowness: Slowness, uneven: UnevenBatches, what: str) -> str:
    own = context.own
    more = np.nanmedian(uneven.ratio, axis=1)
    if slowness.kind == "rotating":
        return f"The rank with most {what} is another one each time; no rank is late persistently because of them."
    rows = sorted(np.flatnonzero(np.nan_to_num(more, nan=1.0) > 1.01), key=lambda row: -more[row])[:NAMED]
    if not rows:
        return f"The ranks with most {what} are the late ones."
    who = rank_names(tuple(own.rank(int(row)) for row in rows))
    return (
        f"{who.capitalize()} had up to {float(more[rows[0]]):.2f} times the {what} of the peers; per unit of work "
        "no slower than they are."
    )


def stage_finding(context: Context, slowness: Slowness) -> Finding:
    """A whole stage is slower than the others by its role."""
    own, rows = context.own, list(slowness.rows)
    stage = own.infos[rows[0]].role["pp"]
    mine = float(np.nanmedian(own.work[rows]))
    rest = [row for row in range(own.shape[0]) if row not in slowness.rows]
    others = float(np.nanmedian(own.work[rest]))
    who = rank_names(tuple(own.rank(row) for row in rows))
    single = len(rows) == 1
    held = (
        f"Only {who} holds it: whether the stage or that rank's device is slow can't be told from this run."
        if single
        else f"All of its ranks ({who}) are, and alike: it is the stage, no rank."
    )
    return replace(
        context.base(slowness),
        cause=causes.PIPELINE_STAGE,
        role={"pp": stage},
        cause_share=1.0,
        confidence=0.6 if single else 0.95,
        evidence=(
            f"Pipeline stage {stage} needs {ms(mine)} per step where the other stages need {ms(others)} "
            f"({(mine / max(others, 1.0) - 1.0) * 100:+.0f} %), throughout the run. {held}",
        ),
        action=f"Move layers from stage {stage} to the others, or count the embedding and the loss as layers when the "
        "model is split.",
        verify="The stages' own times per step should be alike.",
        next=f"Put stage {stage} on another device to see whether the slowness stays with the stage." if single else "",
    )
