"""Slow links between stages: which two ranks, which way, since when; whose fault it is can seldom be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import ms, rank_names
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.communication import (
    against_the_past,
    compared,
    logs_of,
    mean_us,
    overlap,
    scale,
    when,
)
from starprof.analysis.whatif.passes import lower_median
from starprof.analysis.whatif.persistence import High, high_rows, noise_between_steps
from starprof.analysis.whatif.replay import Mask, Part, Replay
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.slow_ranks import kind_of, least_steps
from starprof.analysis.whatif.suspect import Suspect
from starprof.model import causes

Link: TypeAlias = tuple[int, int]
"""Pipeline, and the lower of the two stages."""

WAYS = ("forward", "backward")
_CARRIED = ("activations", "gradients")


@dataclass(frozen=True)
class _Links:
    """All links of a run with both of their ends in the trace.

    Attributes:
        times_us: mean transfer per step, link and way, shape (S, L, 2).
        usual_us: the same link of the other pipelines, shape (L, 2); NaN where there is none.
    """

    replay: Replay
    links: tuple[Link, ...]
    times_us: Floats
    usual_us: Floats

    def rank(self, dp: int, pp: int) -> int:
        """Global rank of a place."""
        return int(self.replay.workers.rank[self.row(dp, pp)])

    def row(self, dp: int, pp: int) -> int:
        """Row of a place."""
        workers = self.replay.workers
        return int(np.flatnonzero((workers.dp == dp) & (workers.pp == pp))[0])


@dataclass(frozen=True)
class _Slow:
    """A slow link.

    Attributes:
        highs: by way (0 forward, 1 backward).
        past: its own past is the reference, not the other pipelines.
    """

    link: Link
    highs: Mapping[int, High]
    past: bool

    @property
    def first(self) -> int:
        """First slow step, by place."""
        return min(h.first for h in self.highs.values())

    @property
    def end(self) -> int:
        """Place behind the last one."""
        return max(h.end for h in self.highs.values())

    @property
    def height(self) -> float:
        """How slow, the worse way."""
        return max(h.height for h in self.highs.values())

    @property
    def whole(self) -> High:
        """Both ways together."""
        return High(0, self.first, self.end, self.height, max(h.z for h in self.highs.values()))


def slow_links(replay: Replay, settings: Settings) -> list[Suspect]:
    """Transfers between two stages that take longer in one pipeline than in the others, or than before."""
    links = _links(replay)
    if links is None:
        return []
    slow = _found(links, settings)
    everywhere = _everywhere(links, slow)
    if everywhere:
        return [_slow_network(links, everywhere)]
    made, left = [], dict(slow)
    for dp, pp in slow:
        pair = slow[dp, pp], slow.get((dp, pp + 1))
        if pair[1] is not None and _one_end(links, slow, (pair[0], pair[1]), settings):
            made.append(_slow_end(links, left.pop((dp, pp)), left.pop((dp, pp + 1)), settings))
    return made + [_slow_link(links, link) for link in left.values()]


def link_mask(replay: Replay, dp: int, pp: int, way: int) -> Mask:
    """Transfers of one pipeline between a stage and the next one up, one way."""
    down, up = (
        (Role.FORWARD_SEND, Role.FORWARD_RECV),
        (Role.BACKWARD_RECV, Role.BACKWARD_SEND),
    )[way]
    lower = np.array([r is down for r in replay.trace.roles])
    upper = np.array([r is up for r in replay.trace.roles])

    def mask(part: Part) -> Bools:
        stage = replay.workers.pp[part.worker]
        ends = (lower[part.kind] & (stage == pp)) | (upper[part.kind] & (stage == pp + 1))
        of_link: Bools = ends & (replay.workers.dp[part.worker] == dp)
        return of_link

    return mask


def _links(replay: Replay) -> _Links | None:
    """None where there are no two stages of a pipeline."""
    workers = replay.workers
    places = set(zip(workers.dp.tolist(), workers.pp.tolist(), strict=True))
    # An end that was not recorded may be what the other one waits for: nothing is known of such a link.
    links = tuple(sorted((dp, pp) for dp, pp in places if (dp, pp + 1) in places))
    if not links:
        return None
    masks = [link_mask(replay, dp, pp, way) for dp, pp in links for way in range(2)]
    times = np.stack([mean_us(replay, mask) for mask in masks], axis=1).reshape(-1, len(links), 2)
    known = ~np.isnan(times).all(axis=0)
    medians = np.full(known.shape, np.nan)
    medians[known] = np.nanmedian(times[:, known], axis=0)
    usual = np.full(known.shape, np.nan)
    for at, (dp, pp) in enumerate(links):
        others = medians[[i for i, (d, p) in enumerate(links) if p == pp and d != dp]]
        for way in range(2):
            seen = others[~np.isnan(others[:, way]), way]
            usual[at, way] = float(np.median(seen)) if len(seen) else np.nan
    return _Links(replay, links, times, usual)


def _found(links: _Links, settings: Settings) -> dict[Link, _Slow]:
    """Slow links: against the same link of other pipelines, else against their own past."""
    logs = logs_of(links.times_us)
    steps, count, _ = logs.shape
    against = np.full_like(logs, np.nan)
    for pp in sorted({pp for _, pp in links.links}):
        same = [at for at, link in enumerate(links.links) if link[1] == pp]
        if len(same) > 1:
            against[:, same] = logs[:, same] - lower_median(logs[:, same], 1)
    ratio = settings.replay.min_link_ratio
    least = least_steps(steps, settings)
    noise = noise_between_steps(logs.reshape(steps, -1), len({dp for dp, _ in links.links}))
    by_peers = high_rows(against.reshape(steps, -1), float(np.log(ratio)), least, settings.replay, noise=noise)
    found: dict[Link, dict[int, High]] = {}
    for high in by_peers:
        found.setdefault(links.links[high.row // 2], {})[high.row % 2] = high
    made = {link: _Slow(link, highs, past=False) for link, highs in found.items()}
    past: dict[Link, dict[int, High]] = {}
    for high in against_the_past(logs.reshape(steps, count * 2), ratio, settings):
        past.setdefault(links.links[high.row // 2], {})[high.row % 2] = high
    for link, highs in past.items():
        if link not in made:
            made[link] = _Slow(link, highs, past=True)
    return made


def _everywhere(links: _Links, slow: Mapping[Link, _Slow]) -> list[_Slow]:
    """The links that became slow together, if they are more than half of several; empty otherwise."""
    past = [link for link in slow.values() if link.past]
    if len(links.links) < 3 or 2 * len(past) <= len(links.links):
        return []
    return past if overlap([link.whole for link in past]) >= 0.5 else []


def _one_end(links: _Links, slow: Mapping[Link, _Slow], pair: tuple[_Slow, _Slow], settings: Settings) -> bool:
    """Whether two neighbouring links are slow because of the rank that they share.

    They are slow alike and together, and the pipeline has other links, none of which is.
    """
    (dp, pp), _ = pair[0].link, pair[1].link
    others = [link for link in links.links if link[0] == dp and link[1] not in (pp, pp + 1)]
    alone = bool(others) and not any(link in slow for link in others)
    alike = abs(pair[0].height - pair[1].height) <= np.log(settings.replay.one_end_ratio)
    return alone and alike and overlap([link.whole for link in pair]) >= 0.5


def _fix(links: _Links, slow: list[_Slow]) -> partial[None]:
    masks = [link_mask(links.replay, *link.link, way) for link in slow for way in link.highs]
    highs = [high for link in slow for high in link.highs.values()]
    return partial(scale, links.replay, masks, highs)


def _told(links: _Links, slow: _Slow) -> str:
    """How slow a link is, each way, in words."""
    at = links.links.index(slow.link)
    parts = []
    for way, high in sorted(slow.highs.items()):
        times = links.times_us[:, at, way]
        if slow.past:
            outside = np.r_[times[: high.first], times[high.end :]]
            text = compared(times, high, float(np.nanmedian(outside)), "in its other steps")
        else:
            text = compared(times, high, float(links.usual_us[at, way]), "in the other pipelines")
        parts.append(f"{_CARRIED[way]} {text}")
    if len(parts) == 1:
        other = 1 - next(iter(slow.highs))
        usual = links.times_us[:, at, other]
        if not np.isnan(usual).all():
            parts.append(f"{_CARRIED[other]}, the other way, are as quick as ever ({ms(float(np.nanmedian(usual)))})")
    return "; ".join(parts)


def _slow_end(links: _Links, lower: _Slow, upper: _Slow, settings: Settings) -> Suspect:
    """Both links of a rank are slow and the others of its pipeline are not."""
    replay, (dp, pp) = links.replay, upper.link
    who, first, end = rank_names((links.rank(dp, pp),)), min(lower.first, upper.first), max(lower.end, upper.end)
    ends = links.rank(dp, pp - 1), links.rank(dp, pp + 1)
    sure = min(lower.whole.z, upper.whole.z) >= settings.replay.sure_z
    return Suspect(
        verdict="straggler",
        kind=kind_of(High(0, first, end, 0.0, 0.0), len(replay.steps)),
        cause=causes.NIC_DEGRADED,
        first=first,
        end=end,
        fix=_fix(links, [lower, upper]),
        rows=(links.row(dp, pp),),
        role={"dp": dp, "pp": pp},
        confidence=0.85 if sure else 0.75,
        evidence=(
            f"Transfers of {who} are slow both ways along the pipeline{when(replay, first, end)}: with rank {ends[0]} "
            f"{_told(links, lower)}; with rank {ends[1]} {_told(links, upper)}. Waiting for the other end is left out.",
            "No other link of the pipeline is slow: what the two have in common is this rank.",
        ),
        action=f"Check the network interface (and its cable and port) that {who} uses.",
        verify=f"Trace again: sends and receives of {who} should take what its peers' take.",
        next=f"Record network counters on the node of {who}.",
    )


def _slow_link(links: _Links, slow: _Slow) -> Suspect:
    replay, (dp, pp) = links.replay, slow.link
    lower, upper = links.rank(dp, pp), links.rank(dp, pp + 1)
    ends = rank_names((lower, upper))
    return Suspect(
        verdict="shared",
        kind=kind_of(slow.whole, len(replay.steps)),
        cause=causes.NETWORK_PATH,
        first=slow.first,
        end=slow.end,
        fix=_fix(links, [slow]),
        role={"dp": dp},
        confidence=0.85,
        evidence=(
            f"Transfers between {ends} (stages {pp} and {pp + 1} of pipeline {dp}) take longer"
            f"{when(replay, slow.first, slow.end)}: {_told(links, slow)}. Waiting for the other end is left out.",
            "Which of the two ends, or what lies between them, is slow can't be told from one link.",
        ),
        action=f"Check the network interfaces of {ends} and the path between them.",
        verify="Trace again: the transfers should take what they take in the other pipelines.",
        next=_third(links, slow),
    )


def _third(links: _Links, slow: _Slow) -> str:
    """The test that tells the two ends apart: each of them with somebody else."""
    dp, pp = slow.link
    lower, upper = links.rank(dp, pp), links.rank(dp, pp + 1)
    workers = links.replay.workers
    others = workers.rank[(workers.dp != dp) & np.isin(workers.pp, (pp, pp + 1))]
    if not len(others):
        others = workers.rank[~np.isin(workers.rank, (lower, upper))]
    if not len(others):
        return "Test each of them with a third rank: the slow end stays slow."
    third = int(others[0])
    return (
        f"Test rank {lower} with rank {third}, and rank {upper} with rank {third}: the end that stays slow is at "
        "fault; if neither does, it is the path between them."
    )


def _slow_network(links: _Links, slow: list[_Slow]) -> Suspect:
    """Most links became slow at the same time."""
    replay = links.replay
    first, end = min(link.first for link in slow), max(link.end for link in slow)
    worst = max(slow, key=lambda link: link.height)
    ends = rank_names((links.rank(*worst.link), links.rank(worst.link[0], worst.link[1] + 1)))
    return Suspect(
        verdict="shared",
        kind=kind_of(High(0, first, end, 0.0, 0.0), len(replay.steps)),
        cause=causes.NETWORK_PATH,
        first=first,
        end=end,
        fix=_fix(links, slow),
        confidence=0.85,
        evidence=(
            f"{len(slow)} of {len(links.links)} links between stages are slow{when(replay, first, end)}, all at once; "
            f"most of all that of {ends}: {_told(links, worst)}.",
        ),
        action="Look at what the links share: switches, and other jobs that used the network at that time.",
        verify="Trace again: transfers should take what they take in the other steps.",
        next="Record network counters of all nodes, to see whose traffic it was.",
    )
