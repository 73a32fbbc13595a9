"""Whether the nodes have room for what a mode was measured to need (`starprof calibrate`), by the plan of resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starprof.decision.advice.nodes import NodeLoad
from starprof.decision.resources import Amount, Need, NodeUse, Reallocation, calibrated, reallocate
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
