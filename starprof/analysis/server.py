"""A slow parameter server: workers wait for it alike, and none of them is late.

A worker's step holds what it computes and what it waits from handing a gradient in to having the parameters. Even the
one that waits shortest in a step waits that long for the server, whatever the mode: where that grows, or is mostly much
longer than the quickest steps show that it could be, the server is what all share. How busy its processes were, and
how long they waited for a CPU, says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes import ms, pct
from starprof.analysis.causes.base import span_ns
from starprof.analysis.findings import Context
from starprof.analysis.network.location import Location
from starprof.analysis.network.slow_reductions import QUICK_STEPS, explained
from starprof.analysis.shared import slow_from_the_start
from starprof.analysis.slowness import Slowness
from starprof.analysis.words import confidence, when
from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.model.serverprocesses import SHARD
from starprof.model.verdict import Finding

SOURCE = "server"
MIN_LOST_SHARE = 0.2
"""Of a healthy step: less than that of a wait that was never shorter for long may be how such a server is."""

MUCH_DELAYED = 0.2
BUSY = 0.8
IDLE = 0.3
MANY_SHARDS = 4
SEEN_FROM_COUNTERS, SEEN_FROM_WAITS = 0.95, 0.8
"""Certainty that it is the server, where its own counters show why, and where only the workers' waits show it."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one shard's process did while it was slow; shares of the time, NaN where not known."""

    node: int
    pid: int
    computing: float
    delayed: float


def on_a_server(run: RunData) -> bool:
    """Whether a run trains on a parameter server: there are updates, and no rank went through rounds of its own."""
    return run.sync_updates is not None and run.sync_steps is None


def slow_server(context: Context, reductions: Sequence[Slowness]) -> list[Slowness]:
    """What a slow server is to blame for.

    Args:
        context: of a run on a parameter server.
        reductions: what would be slow reductions without one.

    Returns:
        Those of a link that isn't the server's own as they are; else the server's; or what the whole run shows.
    """
    found = [s if _elsewhere(context, s) else _servers(s) for s in reductions]
    return found or _always(context)


def _elsewhere(context: Context, rise: Slowness) -> bool:
    """Counters show a slow link of another node: all connections lead to the server, and its ends are no rank's."""
    if not explained(rise):
        return False
    place = rise.place or Location()
    servers = {node for node, _ in context.counters.server_processes}
    return rise.wire is not None or (not place.by_rank and not servers.intersection(place.places))


def _servers(rise: Slowness) -> Slowness:
    return replace(rise, source=SOURCE, place=None)


def _always(context: Context) -> list[Slowness]:
    """Without a time in which it was quicker: what the waits are longer than in the quickest steps."""
    own = context.own
    lost: Floats = np.maximum(0.0, own.transfer - np.percentile(own.transfer, QUICK_STEPS))
    if float(lost.mean()) < MIN_LOST_SHARE * own.healthy_step_us:
        return []
    return [_servers(slow_from_the_start(own, lost))]


def server_finding(context: Context, slowness: Slowness) -> Finding:
    """The finding about it."""
    uses = shard_use(context, slowness)
    why, action = _why(context, uses)
    level = "" if not slowness.start else f" instead of {ms(slowness.before_us)}"
    first = (
        f"Even the worker that waits shortest waits {ms(slowness.after_us)} a step for the parameter server "
        f"{when(context.comparison, slowness)}{level}; all workers wait for it, so none is late."
    )
    counted = any(use.delayed >= MUCH_DELAYED or use.computing >= BUSY for use in uses)
    sure = SEEN_FROM_COUNTERS if counted else SEEN_FROM_WAITS
    usual = "" if slowness.start else f" Its quickest steps take {ms(slowness.before_us)}."
    return replace(
        context.base(slowness),
        cause=causes.PARAMETER_SERVER,
        cause_share=1.0,
        confidence=round(sure * confidence(slowness, 1.0, True), 3),
        evidence=(first + usual, *why),
        action=action,
        verify=f"The wait from handing a gradient in to having the parameters should fall to about "
        f"{ms(slowness.before_us)} on all workers.",
        next="" if uses else "Record the node that the server runs on (`starprof record` there, or --join).",
    )


def shard_use(context: Context, slowness: Slowness) -> list[Use]:
    """What the shards' processes did meanwhile, the one that was held up most first."""
    own, found = context.own, []
    for node, pid, rows in context.counters.server_samples(SHARD):
        here = [row for row, info in enumerate(own.infos) if info.node == node]
        if not here:
            continue
        start, end = span_ns(own, here[0], slowness.start, slowness.end)
        grown = [context.counters.grew(rows, name, start, end) for name in ("cpu_us", "run_delay_us")]
        if grown[0].seconds > 0:
            shares = [one.per_second / 1e6 if one.seconds > 0 else float("nan") for one in grown]
            found.append(Use(node, pid, *shares))
    return sorted(found, key=lambda use: -np.nan_to_num(use.delayed + use.computing))


def _why(context: Context, uses: list[Use]) -> tuple[list[str], str]:
    """Evidence of its own counters, and what to do."""
    lines = [
        f"Its shard of process {use.pid} on {context.counters.host(use.node)} computed {pct(use.computing)} of the time"
        + ("." if use.delayed != use.delayed else f" and waited for a CPU {pct(use.delayed)} of it.")
        for use in uses[:MANY_SHARDS]
    ]
    if any(use.delayed >= MUCH_DELAYED for use in uses):
        return lines, (
            "Give the server's processes room: take what competes for their CPUs away, or move a shard to a node with "
            "room (`starprof ps spare` there, then `starprof ps move`)."
        )
    if any(use.computing >= BUSY for use in uses):
        return lines, "A shard is one thread, and it is full: spread the parameters over more shards or nodes."
    if uses and all(use.computing + np.nan_to_num(use.delayed) < IDLE for use in uses):
        lines.append(
            "For the rest it neither computed nor waited for a CPU: it was stopped, or it or its link throttled."
        )
        return lines, (
            "Look for what stops the server's processes (SIGSTOP, a CPU quota, swapping) and at its link; or move the "
            "shard (`starprof ps move`)."
        )
    return lines, "Move the server to a node with room (`starprof ps move`), or spread it over more shards."
