"""Whether the nodes have room for what a mode needs, by the plan of resources.

What was measured (`starprof calibrate`) comes first. Without it a recording tells what a gradient takes of a node's
interface, since each step sends and receives one, and the chooser how many more of them a mode makes. What a gradient
takes of the processor can't be told from what computing it takes, and paces can't be told at all: that needs the time
at which each push begins, and in a reduction of all ranks who is paced holds up everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from starprof.decision.advice.evidence import Evidence
from starprof.decision.advice.nodes import NodeLoad
from starprof.decision.choice.choice import Choice
from starprof.decision.resources import Amount, Need, NodeUse, Reallocation, calibrated, reallocate
from starprof.decision.resources.amounts import bytes_words, rate_words
from starprof.model.rundata import RunData


def rooms(run: RunData, loads: Sequence[NodeLoad], nodes: Sequence[int], mode: str, share: float) -> list[Reallocation]:
    """What each calibrated node has for the mode; nothing where it was not measured.

    Args:
        run: with its calibrations.
        loads: of the nodes.
        nodes: their ids, in the same order.
        mode: that is advised.
        share: of its time that the job would save.
    """
    if run.calibrations is None:
        return []
    rows: list[Mapping[str, Any]] = run.calibrations.to_dict("records")  # type: ignore[assignment]
    found = []
    for node, load in zip(nodes, loads, strict=True):
        known = calibrated(rows, node)
        need = known.need("this job", mode, share)
        if need is None:
            continue
        extra = need.extra if load.capacity.bytes_per_s > 0 else Amount(need.extra.cores)
        use = load.others + known.use
        found.append(reallocate(NodeUse(load.host, load.capacity, use), Need(need.job, extra, share)))
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a mode needs more of a node's interface, from counters.

    Attributes:
        host: of the node.
        gradient_bytes: that each gradient of a rank takes there, of the direction that carries more.
        more_bytes_per_s: of all its ranks.
        free_bytes_per_s: that nobody uses.
    """

    host: str
    gradient_bytes: float
    more_bytes_per_s: float
    free_bytes_per_s: float


def by_counters(known: Evidence, loads: Sequence[NodeLoad], choice: Choice) -> list[Estimate]:
    """What the chosen mode needs of each node whose interface was recorded.

    Args:
        known: the steps that are looked at.
        loads: of the nodes in them.
        choice: of the mode; one without an outlook needs nothing that could be told.
    """
    outlooks = {score.mode: score.outlook for score in choice.scores if score.outlook is not None}
    plain, chosen = outlooks.get("ssgd"), outlooks.get(choice.mode)
    if plain is None or chosen is None:
        return []
    more_per_s = (chosen.gradients_per_s - plain.gradients_per_s) / len(known.workers)
    usual_s, quickest_s = (
        float(known.iteration_s.max(axis=1).mean()),
        float(np.median(known.iteration_s, axis=0).min()),
    )
    found = []
    for load in loads:
        if load.capacity.bytes_per_s <= 0:
            continue
        # A rank's need is told at the pace of the quickest; used is what it makes at that of all.
        each = [need.bytes_per_s * quickest_s for need in load.needs.values()]
        used = load.others.bytes_per_s + sum(each) / usual_s
        free = max(0.0, load.capacity.bytes_per_s - used)
        found.append(Estimate(load.host, sum(each) / len(each), more_per_s * sum(each), free))
    return found


def estimates_told(found: Sequence[Estimate], mode: str) -> list[str]:
    """What they say, for people: each node that would be too full, or that none would be."""
    scarce = [one for one in found if one.more_bytes_per_s > one.free_bytes_per_s]
    told = [
        f"By its counters {one.host} has {rate_words(one.free_bytes_per_s)} free, and {mode} would need "
        f"{rate_words(one.more_bytes_per_s)} more there ({bytes_words(one.gradient_bytes)} a gradient)."
        for one in scarce
    ]
    most = max(found, key=lambda one: one.more_bytes_per_s, default=None)
    if most is not None and not scarce:
        told.append(
            f"By the counters {mode} needs up to {rate_words(max(0.0, most.more_bytes_per_s))} more of a node's "
            f"interface, which is free. What it needs of the processors a recording does not tell; `starprof "
            f"calibrate` measures it."
        )
    return told


def cautions(plans: Sequence[Reallocation], mode: str) -> list[str]:
    """What they say, for people."""
    told = []
    for plan in plans:
        wants = f"{mode} was measured to need {plan.need.extra.words} more on {plan.node}"
        if plan.refused:
            told.append(f"{wants}, which is not free there: jobs beside it would be slowed down ({plan.refused}).")
        else:
            told.append(f"{wants}, and that is free.")
    return told
