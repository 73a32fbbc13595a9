"""Rounds of states: where ranks step on their own, how often everybody's state was averaged, and by whom until then."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starprof.reports.synchronised import Synchronised, mode_words
from starprof.sync.policies.local_sgd import Hierarchical, LocalSgd

OWN_STEPS = (LocalSgd.name, Hierarchical.name)
MORE_THAN_A_STEP = 1.5
"""Progress of a round from which it is one of states: the round of gradients that a mode begins with is one step."""
GROUPS_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Averagings:
    """Those under one mode.

    Attributes:
        mode: as readers know it.
        count: how many were recorded.
        steps: mean number of steps that were averaged over.
        period: steps of its own that a rank makes before it hands its state in; None: not recorded.
        groups: of ranks that make their steps together; none: every rank on its own.
    """

    mode: str
    count: int
    steps: float
    period: int | None
    groups: tuple[tuple[int, ...], ...]


def averagings(sync: Synchronised) -> tuple[Averagings, ...]:
    """Of all modes with steps of their own, in the order in which they first came."""
    frame = sync.updates
    if frame is None:
        return ()
    found = []
    own = frame[frame["mode"].isin(OWN_STEPS)]
    for (mode, options), rows in own.groupby(["mode", "options"], sort=False, dropna=False):
        known = _options(options)
        period = known.get("period")
        progress = rows["weight_sum"].astype(float)
        states = progress[(progress > MORE_THAN_A_STEP) | (period == 1)]
        if len(states):
            period = period if isinstance(period, int) else None
            groups = _groups(known.get("groups"))
            told = mode_words(str(mode), options if isinstance(options, str) else None)
            found.append(Averagings(told, len(states), float(states.mean()), period, groups))
    return tuple(found)


def sentence(told: Averagings) -> str:
    """What one mode's averagings were, in words."""
    each = "every rank on its own"
    if told.groups:
        shown = " | ".join(", ".join(map(str, group)) for group in told.groups[:GROUPS_AT_MOST])
        left = len(told.groups) - GROUPS_AT_MOST
        each = f"ranks together in groups ({shown}{f' | {left} more' if left > 0 else ''})"
    times = f"{told.count:,} averaging{'' if told.count == 1 else 's'} of all ranks' states"
    due = f", due after {told.period}" if told.period is not None else ""
    return f"{told.mode}: {times}, after {told.steps:.3g} steps on average{due}; until then {each}."


def _options(options: Any) -> dict[str, Any]:
    try:
        known = json.loads(options) if isinstance(options, str) else {}
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _groups(told: Any) -> tuple[tuple[int, ...], ...]:
    whole = isinstance(told, list) and all(isinstance(group, list) for group in told)
    if not whole or not all(type(rank) is int for group in told for rank in group):
        return ()
    return tuple(tuple(group) for group in told)
