"""Ranks whose passes take longer than those of the other ranks of their stage, whatever the micro-batch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import ms, pct, rank_names
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.passes import Passes, of_roles
from starprof.analysis.whatif.persistence import High, high_rows
from starprof.analysis.whatif.replay import Replay
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.suspect import Suspect, Taken
from starprof.model import causes
from starprof.model.verdict import FindingKind


def kind_of(high: High, steps: int) -> FindingKind:
    """Chronic when it goes on to the end."""
    return "chronic" if high.end == steps else "transient"


def least_steps(steps: int, settings: Settings) -> int:
    """Steps in which something must be slow: each step of an op trace holds many operations, so few steps will do."""
    return min(settings.replay.min_slow_steps, max(settings.replay.min_steps, steps))


def slow_ranks(replay: Replay, measured: Passes, settings: Settings) -> tuple[list[Suspect], Passes]:
    """Ranks that are persistently slower than their peers, slowest first, and the passes without their slowness.

    One is taken at a time, the slowest, and its slowness taken out: it shifts what the others are compared with. What
    is left of it then shows once more.
    """
    stages = measured.row.shape[1]
    passes, taken = measured, dict[int, High]()
    for _ in range(measured.row.size):
        high = _slowest(passes, settings)
        if high is None:
            break
        before = taken.get(high.row)
        taken[high.row] = high if before is None else replace(before, height=before.height + high.height)
        at = np.unravel_index(high.row, passes.row.shape)
        passes = passes.scaled(_factor(passes, high, (int(at[0]), int(at[1]))))
    if _ambiguous(measured, list(taken.values()), settings):
        return [], measured
    return [
        _suspect(replay, measured, high, settings)
        if stages > 1 or _even(measured, high.row, high, settings)
        else _undecided(replay, measured, high, high.row)
        for high in sorted(taken.values(), key=lambda h: -h.height)
    ], passes


def _ambiguous(measured: Passes, found: list[High], settings: Settings) -> bool:
    """Of two pipelines of two stages a rank is slow, or the one across from it: only their mean work tells which.

    It does where micro-batches are many or alike; two that are found across from each other mean that it did not.
    """
    if measured.row.shape != (2, 2) or not found:
        return False
    everything = slice(None)
    scatter = max(measured.scatter(pipeline, everything) for pipeline in range(2))
    if scatter <= settings.replay.even_scatter:
        return False
    error = scatter * (2.0 / (measured.deviation.shape[0] * measured.deviation.shape[1])) ** 0.5
    across = {high.row for high in found} in ({0, 3}, {1, 2})
    return across or min(high.height for high in found) < settings.replay.level_z * error


def _slowest(passes: Passes, settings: Settings) -> High | None:
    steps, pipelines, stages = passes.by_rank.shape
    if pipelines < 2:
        return None
    series = passes.by_rank.reshape(steps, pipelines * stages)
    least = max(settings.min_lateness, settings.replay.noise_bias * passes.noise)
    found = high_rows(series, least, least_steps(steps, settings), settings.replay, noise=passes.noise_of_ranks)
    return max(found, key=lambda high: high.height, default=None)


def uneven_pipelines(replay: Replay, passes: Passes, settings: Settings) -> list[Suspect]:
    """Pipelines all of whose ranks are slow alike: a slow node that they share, or always more data."""
    steps, pipelines = passes.by_pipeline.shape
    if pipelines < 2 or passes.row.shape[1] < 2:
        return []
    found = high_rows(
        passes.by_pipeline,
        settings.min_lateness,
        least_steps(steps, settings),
        settings.replay,
        noise=passes.noise_of_pipelines,
    )
    return [_undecided(replay, passes, high, high.row) for high in found if _even(passes, high.row, high, settings)]


def _even(passes: Passes, pipeline: int, high: High, settings: Settings) -> bool:
    """Whether all micro-batches are slower alike, but for noise; longer sequences are not."""
    even = passes.scatter(pipeline, high.inside) <= settings.replay.even_scatter
    return even or passes.together(pipeline, high.inside) < settings.replay.min_data_correlation


def _factor(passes: Passes, high: High, place: tuple[int, int]) -> Floats:
    """What the passes of a rank would take over what they do if it were as fast as its peers, shape (S, C, D, P)."""
    factor = np.ones(passes.forward_us.shape)
    factor[(high.inside, slice(None), *place)] = np.exp(-high.height)
    return factor


def _suspect(replay: Replay, passes: Passes, high: High, settings: Settings) -> Suspect:
    pipeline, stage = np.unravel_index(high.row, passes.row.shape)
    row = int(passes.row[pipeline, stage])
    rank = int(replay.workers.rank[row])
    forward, backward = (_against_peers(v, high, int(pipeline), int(stage)) for v in _both(passes))
    more = np.array([forward[0] - forward[1], backward[0] - backward[1]])
    cause, share, where = _cause(more)
    who = rank_names((rank,))
    slow_steps = passes.by_rank[high.inside, pipeline, stage]
    late = int((slow_steps > high.height / 2).sum())
    evidence = (
        f"Forward passes of {who} take {ms(forward[0])}, those of its peers in the stage {ms(forward[1])}; "
        f"backward passes {ms(backward[0])} and {ms(backward[1])} (medians, same micro-batches compared).",
        f"It is slower than its peers in {late} of {len(slow_steps)} steps, {np.exp(high.height):.2f} times on the "
        f"median; what its micro-batches cost in other stages is left out of this.",
    )
    peers, sure = passes.row.shape[0] - 1, high.z >= settings.replay.sure_z
    return Suspect(
        verdict="straggler",
        kind=kind_of(high, len(passes.by_rank)),
        cause=cause,
        first=high.first,
        end=high.end,
        fix=partial(_at_peers_pace, replay, replay.workers.rank == rank, high),
        rows=(row,),
        role={"dp": int(replay.workers.dp[row]), "pp": int(replay.workers.pp[row])},
        plain=sure and high.height >= settings.replay.plain_times * settings.min_lateness,
        cause_share=round(share, 4),
        confidence=min(0.99, (0.97 if peers > 1 else 0.85) if sure else 0.8),
        evidence=evidence,
        action=f"Run the same kernel benchmark on the GPU of {who} and on a peer's (and look for another process on "
        f"it); drain it if it is slow. {where}",
        verify=f"Trace again: forward and backward passes of {who} should take what its peers' take "
        f"({ms(forward[1])} and {ms(backward[1])}).",
        next=f"Record GPU clocks, temperature, power and processes on the node of {who} to see what holds it back.",
    )


def _both(passes: Passes) -> tuple[Floats, Floats]:
    return passes.forward_us, passes.backward_us


def _against_peers(values: Floats, high: High, pipeline: int, stage: int) -> tuple[float, float]:
    """Median pass of a rank and of its peers in the stage."""
    mine = float(np.nanmedian(values[high.inside, :, pipeline, stage]))
    return mine, float(np.nanmedian(np.delete(values[high.inside, :, :, stage], pipeline, axis=2)))


def _cause(more: Floats) -> tuple[str, float, str]:
    """Which passes carry the excess: both alike mean the device, one alone what the rank does in it."""
    total = float(np.maximum(more, 0.0).sum())
    if total <= 0:
        return causes.UNKNOWN, 0.0, ""
    forward, backward = (float(max(part, 0.0)) / total for part in more)
    if min(forward, backward) >= 0.2:
        return causes.GPU_COMPUTE, 1.0, f"Forward carries {pct(forward)} and backward {pct(backward)} of the excess."
    if forward > backward:
        return causes.FORWARD_COMPUTE, forward, "Only its forward passes are slow: compare what it runs in them."
    return causes.BACKWARD_COMPUTE, backward, "Only its backward passes are slow: compare what it runs in them."


def _undecided(replay: Replay, passes: Passes, high: High, pipeline: int) -> Suspect:
    """A pipeline that is slow in all of its stages (which may be one)."""
    dp = int(np.unique(replay.workers.dp)[pipeline])
    members = replay.workers.rank[replay.workers.dp == dp]
    who = rank_names(tuple(int(r) for r in members))
    times = float(np.exp(high.height))
    return Suspect(
        verdict="inconclusive",
        kind=kind_of(high, len(passes.by_pipeline)),
        cause=causes.UNKNOWN,
        first=high.first,
        end=high.end,
        fix=partial(_at_peers_pace, replay, replay.workers.dp == dp, high),
        role={"dp": dp},
        cause_share=0.0,
        confidence=0.6,
        evidence=(
            f"Passes of pipeline {dp} ({who}) take {times:.2f} times as long as those of the others, in every stage.",
            "Either its hardware is slow, or it always gets more data: the trace does not tell which.",
        ),
        action=f"Compare the tokens that pipeline {dp} gets with the others', and the nodes that {who} run on.",
        verify=f"Trace again: passes of pipeline {dp} should take what the others' take.",
        next="Give its data to another pipeline: slowness that follows the data is no fault of its hardware.",
    )


def _at_peers_pace(replay: Replay, who: Bools, high: High, taken: Taken) -> None:
    """Passes of some workers (shape (R,)) as fast as those of their peers."""
    for part, values in zip(replay.parts, taken, strict=True):
        step = np.searchsorted(replay.steps, part.schedule.steps)
        rows = np.flatnonzero(who[part.worker] & of_roles(replay, part, Role.FORWARD, Role.BACKWARD))
        values[rows] *= np.where((step >= high.first) & (step < high.end), np.exp(-high.height), 1.0)
