"""Slow links between stages, and slow collectives of a stage: whose fault they are can seldom be told."""

from __future__ import annotations

from functools import partial

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.causes.base import ms, rank_names
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.passes import lower_median
from starprof.analysis.whatif.persistence import High, high_rows
from starprof.analysis.whatif.replay import Mask, Part, Replay
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.slow_ranks import kind_of, least_steps
from starprof.analysis.whatif.suspect import Suspect, Taken
from starprof.model import causes

SLOWER = 1.5
"""A link is slow from this multiple of what the same link takes in the other pipelines on."""
GROUP_SLOWER = 2.0
"""A stage's collectives are slow from this multiple of the other stages' on (they may carry more bytes)."""


def slow_links(replay: Replay, settings: Settings) -> list[Suspect]:
    """Transfers between two stages that take longer in one pipeline than in the others."""
    workers = replay.workers
    pipelines, stages = np.unique(workers.dp), np.unique(workers.pp)
    if len(pipelines) < 2 or len(stages) < 2:
        return []
    links = [(int(dp), int(pp)) for dp in pipelines for pp in stages[:-1]]
    times = np.stack([_mean_us(replay, link_mask(replay, dp, pp)) for dp, pp in links], axis=1)
    shape = (len(times), len(pipelines), len(stages) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(times.reshape(shape))
    logs = np.where(np.isfinite(logs), logs, np.nan)
    against = (logs - lower_median(logs, 1)).reshape(len(times), -1)
    found = high_rows(against, float(np.log(SLOWER)), least_steps(len(times), settings))
    slow = {links[high.row]: high for high in found}
    seen = [column[~np.isnan(column)] for column in times.T]
    usual = {link: float(np.median(own)) if len(own) else float("nan") for link, own in zip(links, seen, strict=True)}
    made, left = [], dict(slow)
    for dp, pp in slow:
        both = (dp, pp), (dp, pp + 1)
        alone = (dp, pp - 1) not in slow and (dp, pp + 2) not in slow
        if both[1] in slow and alone:
            made.append(_slow_end(replay, dp, pp + 1, [left.pop(link) for link in both], usual))
    return made + [_slow_link(replay, link, high, usual, pipelines) for link, high in left.items()]


def link_mask(replay: Replay, dp: int, pp: int) -> Mask:
    """Transfers of one pipeline between a stage and the next one up."""
    roles = replay.trace.roles
    lower = np.array([r in (Role.FORWARD_SEND, Role.BACKWARD_RECV) for r in roles])
    upper = np.array([r in (Role.FORWARD_RECV, Role.BACKWARD_SEND) for r in roles])

    def mask(part: Part) -> Bools:
        stage = replay.workers.pp[part.worker]
        ends = (lower[part.kind] & (stage == pp)) | (upper[part.kind] & (stage == pp + 1))
        of_link: Bools = ends & (replay.workers.dp[part.worker] == dp)
        return of_link

    return mask


def _mean_us(replay: Replay, mask: Mask) -> Floats:
    """Mean of what the operations of a mask take, per step, shape (S,); NaN where there is none."""
    means = []
    for part in replay.parts:
        rows = part.takes_us[mask(part)]
        means.append(rows.mean(axis=0) if len(rows) else np.full(part.takes_us.shape[1], np.nan))
    return replay.in_step_order(means)


def _scale(replay: Replay, masks: list[Mask], highs: list[High], taken: Taken) -> None:
    """Transfers as they would be without the slowness."""
    for part, values in zip(replay.parts, taken, strict=True):
        step = np.searchsorted(replay.steps, part.schedule.steps)
        for mask, high in zip(masks, highs, strict=True):
            rows = np.flatnonzero(mask(part))
            values[rows] *= np.where((step >= high.first) & (step < high.end), np.exp(-high.height), 1.0)


def _rank_at(replay: Replay, dp: int, pp: int) -> tuple[int, int]:
    """Row and global rank of a place."""
    rows = np.flatnonzero((replay.workers.dp == dp) & (replay.workers.pp == pp))
    return int(rows[0]), int(replay.workers.rank[rows[0]])


def _slow_end(replay: Replay, dp: int, pp: int, highs: list[High], usual: dict[tuple[int, int], float]) -> Suspect:
    """Both links of a rank are slow and the others of its pipeline are not."""
    row, rank = _rank_at(replay, dp, pp)
    who = rank_names((rank,))
    first, end = min(h.first for h in highs), max(h.end for h in highs)
    ends = [_rank_at(replay, dp, pp - 1)[1], _rank_at(replay, dp, pp + 1)[1]]
    return Suspect(
        verdict="straggler",
        kind=kind_of(High(0, first, end, 0.0, 0.0), len(replay.steps)),
        cause=causes.NIC_DEGRADED,
        first=first,
        end=end,
        fix=partial(_scale, replay, [link_mask(replay, dp, pp - 1), link_mask(replay, dp, pp)], highs),
        rows=(row,),
        role={"dp": dp, "pp": pp},
        confidence=0.85,
        evidence=(
            f"Transfers of {who} with rank {ends[0]} take {ms(usual[dp, pp - 1])} and with rank {ends[1]} "
            f"{ms(usual[dp, pp])} on the median: {np.exp(highs[0].height):.1f} and {np.exp(highs[1].height):.1f} times "
            "what the same links take in the other pipelines. Waiting for the other end is left out.",
            "No other link of the pipeline is slow: what the two have in common is this rank.",
        ),
        action=f"Check the network interface (and its cable and port) that {who} uses.",
        verify=f"Trace again: sends and receives of {who} should take what its peers' take.",
        next=f"Record network counters on the node of {who}.",
    )


def _slow_link(
    replay: Replay,
    link: tuple[int, int],
    high: High,
    usual: dict[tuple[int, int], float],
    pipelines: Ints,
) -> Suspect:
    dp, pp = link
    ends = rank_names((_rank_at(replay, dp, pp)[1], _rank_at(replay, dp, pp + 1)[1]))
    others = float(np.median([usual[int(d), pp] for d in pipelines if d != dp]))
    return Suspect(
        verdict="shared",
        kind=kind_of(high, len(replay.steps)),
        cause=causes.NETWORK_PATH,
        first=high.first,
        end=high.end,
        fix=partial(_scale, replay, [link_mask(replay, dp, pp)], [high]),
        role={"dp": dp},
        confidence=0.85,
        evidence=(
            f"Transfers between {ends} (stages {pp} and {pp + 1} of pipeline {dp}) take {ms(usual[link])}, "
            f"{np.exp(high.height):.1f} times as long as in the other pipelines ({ms(others)}); waiting for the other "
            "end is left out.",
            "Which of the two ends, or what lies between them, is slow can't be told from one link.",
        ),
        action=f"Check the network interfaces of {ends} and the path between them.",
        verify="Trace again: the transfers should take what they take in the other pipelines.",
        next=f"Test each of {ends} with a third rank: the slow end stays slow.",
    )


def slow_groups(replay: Replay) -> list[Suspect]:
    """Collectives that take longer in one stage than in all others."""
    stages = np.unique(replay.workers.pp)
    result = []
    for kind, role in enumerate(replay.trace.roles):
        if role is not Role.STAGE or len(stages) < 3:
            continue
        masks = [partial(_of_stage, replay, kind, int(pp)) for pp in stages]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.stack([_mean_us(replay, mask) for mask in masks], axis=1))
        logs = np.where(np.isfinite(logs), logs, np.nan)
        against = np.nan_to_num(np.nanmedian(logs - lower_median(logs, 1), axis=0))
        worst = int(np.argmax(against))
        if against[worst] >= np.log(GROUP_SLOWER):
            high = High(worst, 0, len(logs), float(against[worst]), 0.0)
            result.append(_slow_group(replay, kind, int(stages[worst]), masks[worst], high))
    return result


def _of_stage(replay: Replay, kind: int, pp: int, part: Part) -> Bools:
    chosen: Bools = (part.kind == kind) & (replay.workers.pp[part.worker] == pp)
    return chosen


def _slow_group(replay: Replay, kind: int, pp: int, mask: Mask, high: High) -> Suspect:
    members = replay.workers.rank[replay.workers.pp == pp]
    name = replay.trace.names[kind]
    return Suspect(
        verdict="shared",
        kind="chronic",
        cause=causes.NETWORK_PATH,
        first=high.first,
        end=high.end,
        fix=partial(_scale, replay, [mask], [high]),
        role={"pp": pp},
        cause_share=0.8,
        confidence=0.6,
        evidence=(
            f"{name} takes {np.exp(high.height):.1f} times as long in stage {pp} "
            f"({rank_names(tuple(int(r) for r in members))}) as in the others, once all of its ranks are there.",
            "The trace tells no sizes: the stage may reduce more parameters than the others.",
        ),
        action=f"Check the network of the ranks of stage {pp}, unless the stage holds many more parameters.",
        verify=f"Trace again: {name} should take alike in all stages of alike size.",
        next="Run a bandwidth test within the group, and halve the group until the slow member stands out.",
    )
