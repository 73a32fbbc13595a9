"""Work that is split unevenly: heavy pipeline stages, micro-batches that cost more, and passes that stall at random."""

from __future__ import annotations

from functools import partial

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.base import ms, pct
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.passes import Passes, correlation, lower_median, median, relative, rescale
from starprof.analysis.whatif.replay import Replay
from starprof.analysis.whatif.suspect import Suspect
from starprof.model import causes


def heavy_stage(replay: Replay, passes: Passes, settings: Settings) -> Suspect | None:
    """The stage that takes longest, if it is heavier than the others all the time."""
    stages = passes.row.shape[1]
    if stages < 2:
        return None
    per_step = median(lower_median(passes.both_us, 2), 1)[:, 0, 0]
    usual = np.median(per_step, axis=0)
    worst = int(np.argmax(usual))
    others = np.delete(per_step, worst, axis=1).mean(axis=1)
    ratio = float(np.median(per_step[:, worst] / np.maximum(others, 1e-9)))
    always = float((per_step[:, worst] > others * (1 + settings.min_stage_excess / 2)).mean())
    if not ratio >= 1 + settings.min_stage_excess or always < settings.replay.min_heavy_steps:
        return None
    pp = int(np.unique(replay.workers.pp)[worst])
    told = ", ".join(f"{int(p)}: {ms(u)}" for p, u in zip(np.unique(replay.workers.pp)[:16], usual[:16], strict=True))
    alone = passes.row.shape[0] < 2
    return Suspect(
        verdict="inconclusive" if alone else "structural",
        kind="structural",
        cause=causes.UNKNOWN if alone else causes.PIPELINE_STAGE,
        first=0,
        end=len(per_step),
        fix=partial(rescale, replay, passes, usual.mean() / usual),
        role={"pp": pp},
        cause_share=0.0 if alone else 1.0,
        confidence=0.5 if alone else 0.97,
        evidence=(
            f"A micro-batch takes {ratio:.2f} times as long in stage {pp} as in the others (forward and backward, "
            f"medians by stage: {told}).",
            "There is one rank per stage only: a slow GPU would look the same."
            if alone
            else f"All {passes.row.shape[0]} ranks of the stage take as long, in {pct(always)} of the steps: it is the "
            "work, not a GPU.",
        ),
        action=f"Move layers from stage {pp} to the others, or give its loss or embedding layer a lighter share.",
        verify=f"Trace again: a micro-batch should take about {ms(float(usual.mean()))} in every stage.",
        next="Exchange the ranks of two stages: a slow GPU takes the slowness along." if alone else "",
    )


def uneven_data(replay: Replay, passes: Passes, settings: Settings) -> Suspect | None:
    """Micro-batches that cost more than others, forward and backward and in every stage."""
    one_stage = passes.row.shape[1] < 2
    shared = passes.deviation if one_stage else passes.common
    together = correlation(relative(passes.forward_us), relative(passes.backward_us))
    if passes.row.shape[0] * passes.row.shape[1] < 2 or not together >= settings.replay.min_length_correlation:
        return None
    cost = np.exp(shared)
    factor = np.where(np.isnan(cost), 1.0, np.nanmean(cost, axis=(1, 2), keepdims=True) / cost)
    slowest = np.nanargmax(np.nan_to_num(np.nansum(cost, axis=1))[..., 0], axis=1)
    counts = np.bincount(slowest, minlength=passes.row.shape[0])
    often = float(counts.max()) / len(slowest)
    pipelines = np.unique(replay.workers.dp)
    steadily = often > settings.replay.steady_share and len(pipelines) > 1
    across = "" if one_stage else f", and of the first and last stage ({_across(passes):.2f})"
    return Suspect(
        verdict="workload-skew",
        kind="chronic" if steadily else "rotating",
        cause=causes.SEQUENCE_LENGTH,
        first=0,
        end=len(slowest),
        fix=partial(rescale, replay, passes, factor),
        role={"dp": int(pipelines[np.argmax(counts)])} if steadily else {},
        cause_share=round(together, 4),
        confidence=0.95 if together > 0.95 and not one_stage else 0.85,
        evidence=(
            f"Times of forward and backward passes of the same micro-batch go together (correlation {together:.2f})"
            f"{across}: the micro-batches differ, not the ranks.",
            f"The slowest pipeline is a different one in each step: {int((counts > 0).sum())} of {len(counts)} come "
            f"first in {len(slowest)} steps, the most frequent in {int(counts.max())}."
            if not steadily
            else f"Pipeline {int(pipelines[np.argmax(counts)])} gets the most work in {pct(often)} of the steps.",
            f"The middle 90 % of the micro-batches cost {_spread(shared)} of the usual.",
        ),
        action="Balance the work: group or redistribute sequences so that each micro-batch of a step costs alike "
        "(attention grows with the square of the length), across pipelines and within them.",
        verify="Trace again: times of micro-batches should differ by a few percent only.",
        next="Log tokens and the longest sequence of each micro-batch, to see which of the two makes the difference.",
    )


def random_stalls(replay: Replay, passes: Passes) -> Suspect | None:
    """Passes that take longer on changing ranks, with no micro-batch to explain it."""
    rest = passes.deviation - passes.common
    rest = rest - median(rest, (0, 1))
    if np.count_nonzero(~np.isnan(rest)) == 0 or passes.row.size < 2:
        return None
    more = np.maximum(np.nan_to_num(rest), 0.0)
    forward, backward = (np.maximum(np.nan_to_num(relative(v)), 0.0) for v in (passes.forward_us, passes.backward_us))
    share = float(forward.sum() / max(float((forward + backward).sum()), 1e-12))
    where = "forward" if share > 0.8 else "backward" if share < 0.2 else "forward and backward"
    hint = (
        "Stalls of forward passes alone are typical of pauses of the program, such as garbage collection."
        if where == "forward"
        else "The trace does not tell what takes the time."
    )
    return Suspect(
        verdict="rotating",
        kind="rotating",
        cause=causes.UNKNOWN,
        first=0,
        end=len(rest),
        fix=partial(rescale, replay, passes, np.exp(-more)),
        cause_share=0.0,
        confidence=0.8,
        evidence=(f"Single {where} passes take longer than usual, on changing ranks and micro-batches.", hint),
        action="Let all ranks collect garbage in the same steps, and look for other work that interrupts them.",
        verify="Trace again: passes of a stage should differ by a few percent only.",
        next="Record the job with starprof: it sees garbage collection, CPU contention and throttling of each rank.",
    )


def _across(passes: Passes) -> float:
    logs = relative(passes.both_us)
    return correlation(logs[..., 0], logs[..., -1])


def _spread(shared: Floats) -> str:
    low, high = np.nanquantile(shared, [0.05, 0.95])
    return f"{pct(float(np.exp(low)))} to {pct(float(np.exp(high)))}"
