"""Slow collectives: of one stage (or pipeline) against the others', and for a while against their own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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
from starprof.analysis.whatif.persistence import High
from starprof.analysis.whatif.replay import Mask, Part, Replay
from starprof.analysis.whatif.roles import Role
from starprof.analysis.whatif.slow_ranks import kind_of
from starprof.analysis.whatif.suspect import Suspect
from starprof.model import causes


@dataclass(frozen=True)
class _Group:
    """Who runs a collective together.

    Attributes:
        role: place in the layout that they share; empty for all ranks.
        ranks: global ranks.
    """

    role: dict[str, int]
    ranks: tuple[int, ...]
    mask: Mask

    @property
    def words(self) -> str:
        """In stage 3 (ranks 6 and 7)."""
        where = {"pp": "stage", "dp": "pipeline"}
        place = [f"{where[key]} {value}" for key, value in self.role.items()]
        return f"{place[0] if place else 'all stages'} ({rank_names(self.ranks)})"


def slow_groups(replay: Replay, settings: Settings) -> list[Suspect]:
    """Collectives that take longer in one group than in the others, or than in the rest of the run."""
    result = []
    for kind, role in enumerate(replay.trace.roles):
        groups = _groups(replay, kind, role)
        if not groups:
            continue
        times = np.stack([mean_us(replay, group.mask) for group in groups], axis=1)
        for_a_while = against_the_past(logs_of(times), settings.replay.min_group_ratio, settings)
        if for_a_while:
            result += _for_a_while(replay, kind, groups, times, for_a_while)
        elif role is Role.STAGE and len(groups) > 2:
            result += _always(replay, kind, groups, times, settings)
    return result


def _groups(replay: Replay, kind: int, role: Role) -> list[_Group]:
    """Groups of a kind of collective of which every rank was recorded: the last to arrive may be the one that was not.

    A group of one has nobody to wait for.
    """
    workers = replay.workers
    position = {Role.STAGE: workers.pp, Role.PIPELINE: workers.dp, Role.WORLD: np.zeros_like(workers.pp)}.get(role)
    if position is None:
        return []
    key = {Role.STAGE: "pp", Role.PIPELINE: "dp"}.get(role)
    taking_part = np.zeros(len(workers.rank), bool)
    for part in replay.parts:
        taking_part[part.worker[part.kind == kind]] = True
    sizes = [int((taking_part & (position == at)).sum()) for at in np.unique(position)]
    made = []
    for at, size in zip(np.unique(position), sizes, strict=True):
        members = taking_part & (position == at)
        if size < 2 or size < max(sizes):
            continue
        ranks = tuple(int(r) for r in workers.rank[members])
        made.append(_Group({key: int(at)} if key else {}, ranks, partial(_of, members, kind)))
    return made


def _of(members: Bools, kind: int, part: Part) -> Bools:
    chosen: Bools = (part.kind == kind) & members[part.worker]
    return chosen


def _for_a_while(
    replay: Replay, kind: int, groups: Sequence[_Group], times: Floats, highs: Sequence[High]
) -> list[Suspect]:
    """One suspect for all groups where most of them are slow together, else one each."""
    together = len(highs) > 1 and 2 * len(highs) > len(groups) and overlap(highs) >= 0.5
    sets = [list(highs)] if together else [[high] for high in highs]
    return [_transient(replay, kind, groups, times, some) for some in sets]


def _transient(replay: Replay, kind: int, groups: Sequence[_Group], times: Floats, highs: Sequence[High]) -> Suspect:
    name, steps = replay.trace.names[kind], len(replay.steps)
    first, end = min(h.first for h in highs), max(h.end for h in highs)
    worst = max(highs, key=lambda h: h.height)
    series, group = times[:, worst.row], groups[worst.row]
    usual = float(np.nanmedian(np.r_[series[: worst.first], series[worst.end :]]))
    alone = len(highs) == 1
    where = group.words if alone else f"{len(highs)} of {len(groups)} groups, most of all in {group.words}"
    third = (
        f"Test each of {rank_names(group.ranks)} with a third rank: the slow end stays slow."
        if alone and len(group.ranks) == 2
        else "Run a bandwidth test within the group while it is slow, and halve the group until the slow member stands "
        "out."
    )
    return Suspect(
        verdict="shared",
        kind=kind_of(High(0, first, end, 0.0, 0.0), steps),
        cause=causes.NETWORK_PATH,
        first=first,
        end=end,
        fix=partial(scale, replay, [groups[h.row].mask for h in highs], highs),
        role=group.role if alone else {},
        cause_share=1.0,
        confidence=0.85,
        evidence=(
            f"{name}{when(replay, first, end)} takes {compared(series, worst, usual, 'in the other steps')} in "
            f"{where}, once all of its ranks are there.",
            "Its ranks wait for each other there: which of them, or what lies between them, is slow can't be told.",
        ),
        action=f"Look at what happened on the network of {rank_names(group.ranks)} in these steps: other jobs, a link "
        "that was lost and came back.",
        verify=f"Trace again: {name} should take about {ms(usual)} in all steps.",
        next=third,
    )


def _always(replay: Replay, kind: int, groups: Sequence[_Group], times: Floats, settings: Settings) -> list[Suspect]:
    """The group that takes longest, if it does so by far."""
    logs = logs_of(times)
    against = np.nan_to_num(np.nanmedian(logs - lower_median(logs, 1), axis=0))
    worst = int(np.argmax(against))
    if against[worst] < np.log(settings.replay.min_group_ratio):
        return []
    high = High(worst, 0, len(logs), float(against[worst]), 0.0)
    group, name = groups[worst], replay.trace.names[kind]
    return [
        Suspect(
            verdict="shared",
            kind="chronic",
            cause=causes.NETWORK_PATH,
            first=high.first,
            end=high.end,
            fix=partial(scale, replay, [group.mask], [high]),
            role=group.role,
            cause_share=0.8,
            confidence=0.6,
            evidence=(
                f"{name} takes {np.exp(high.height):.1f} times as long in {group.words} as in the others, once all of "
                "its ranks are there.",
                "The trace tells no sizes: the stage may reduce more parameters than the others.",
            ),
            action=f"Check the network of {rank_names(group.ranks)}, unless the stage holds many more parameters.",
            verify=f"Trace again: {name} should take alike in all stages of alike size.",
            next="Run a bandwidth test within the group, and halve the group until the slow member stands out.",
        )
    ]
