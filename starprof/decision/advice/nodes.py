"""What a run's counters tell of its nodes, and which ranks would be better off on another one.

What a rank needs is what it used, at the pace that the job would have if nobody held it up: ranks that wait use less
than they will. What others use is what is left of a node's use without the job's. Units are cores, and bytes per second
through the interfaces that carry the job's data, of the direction that carries more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.causes.base import span_ns
from starprof.analysis.counters import Counters
from starprof.analysis.network.rails import nic_names
from starprof.decision.advice.evidence import Evidence
from starprof.decision.advice.result import Saving, Step
from starprof.decision.resources import LIMIT, Amount, Assignment, Host, Worker, relieve
from starprof.model import causes
from starprof.model.verdict import Finding, Verdict

CROWDED = (causes.CPU_CONTENTION, causes.OVERSUBSCRIPTION, causes.SHARED_NIC)
"""Causes that another place may cure."""
ELSEWHERE = 0.5
"""How sure it is that a plan for the nodes is the cure: others' use of them may be another one by then."""

Span = tuple[float, float]


@dataclass(frozen=True)
class NodeLoad:
    """A node of the job.

    Attributes:
        host: its name.
        capacity: what it has; 0 where that is not known.
        others: what processes outside the job use.
        needs: of each rank on it.
        slots: ranks that it has room for.
    """

    host: str
    capacity: Amount
    others: Amount
    needs: Mapping[int, Amount]
    slots: int


def node_loads(known: Evidence, counters: Counters) -> tuple[NodeLoad, ...]:
    """Every node as it was in the steps that are looked at; none where a node's use of its cores was not recorded."""
    found = []
    for node in sorted({info.node for info in known.own.infos}):
        load = _load(known, counters, node)
        if load is None:
            return ()
        found.append(load)
    return tuple(found)


def relief(loads: Sequence[NodeLoad]) -> Assignment | None:
    """Which ranks should change their node, by `resources.relieve`; None: there is only one node."""
    if len(loads) < 2 or len({load.host for load in loads}) < len(loads):
        return None
    workers = [Worker(_name(rank), need) for load in loads for rank, need in load.needs.items()]
    hosts = [Host(load.host, load.capacity, load.others, load.slots) for load in loads]
    now = {_name(rank): load.host for load in loads for rank in load.needs}
    return relieve(workers, hosts, now)


def moves(loads: Sequence[NodeLoad], verdict: Verdict, saving: Mapping[str, Saving]) -> list[Step]:
    """The step that moves ranks off a node that is too full, where a finding says that this is what makes them slow.

    Args:
        loads: all nodes.
        verdict: of the diagnosis.
        saving: of each cause.
    """
    finding = next((f for f in verdict.findings if f.cause in CROWDED and f.end_step is None), None)
    plan = relief(loads) if finding is not None else None
    if finding is None or plan is None or plan.refused or not plan.moved:
        return []
    ranks = tuple(sorted(int(name.removeprefix("rank ")) for name in plan.moved))
    told = ", ".join(f"{_name(rank)} on {plan.node[_name(rank)]}" for rank in ranks)
    return [_step(finding, plan, ranks, told, saving.get(finding.cause, Saving(0.0)))]


def to_json(loads: Sequence[NodeLoad]) -> list[dict[str, object]]:
    """As plain values, for the inputs of an advice."""
    return [
        {
            "host": load.host,
            "cores": load.capacity.cores,
            "bytes_per_s": load.capacity.bytes_per_s,
            "others_cores": round(load.others.cores, 3),
            "others_bytes_per_s": round(load.others.bytes_per_s),
            "ranks_cores": {str(rank): round(need.cores, 3) for rank, need in load.needs.items()},
            "ranks_bytes_per_s": {str(rank): round(need.bytes_per_s) for rank, need in load.needs.items()},
        }
        for load in loads
    ]


def _step(finding: Finding, plan: Assignment, ranks: tuple[int, ...], told: str, saves: Saving) -> Step:
    return Step(
        "placement",
        f"start {told}",
        f"{'; '.join(plan.steps)}. A node is too full from {LIMIT:.0%} on.",
        (),
        False,
        saves,
        finding.confidence * ELSEWHERE,
        finding.cause,
        ranks,
        verify="The named ranks should be no later than the others, and no node's use above the limit.",
    )


def _name(rank: int) -> str:
    return f"rank {rank}"


def _load(known: Evidence, counters: Counters, node: int) -> NodeLoad | None:
    own = known.own
    rows = [row for row, info in enumerate(own.infos) if info.node == node]
    first, last = (int(np.searchsorted(own.steps, step)) for step in known.steps)
    span = span_ns(own, rows[0], first, last + 1)
    cores, samples = counters.cores.get(node, 0), counters.series("cpu_sample", ("node", "cpu")).get((node, -1))
    if not cores or samples is None or span[1] <= span[0]:
        return None
    busy = sum(counters.grew(samples, column, *span).per_second for column in ("user_us", "system_us")) / 1e6
    if not math.isfinite(busy):
        return None
    ranks = [own.infos[row].rank for row in rows]
    used = {rank: _cpu(counters, node, rank, "cpu_us", span) for rank in ranks}
    faster = _faster(known)
    needs = {rank: round(faster * used[rank], 1) for rank in ranks}  # less is no difference worth a move
    speed, moved, mine = _network(counters, node, span)
    gpus = {own.infos[row].gpu_uuid for row in rows} - {None}
    typical = float(np.median(list(needs.values())))
    slots = len(ranks) if gpus else max(len(ranks), int(cores / max(typical, 1.0 / cores)))
    return NodeLoad(
        counters.host(node),
        Amount(float(cores), speed),
        Amount(max(0.0, busy - sum(used.values())), max(0.0, moved - mine)),
        {rank: Amount(need, faster * mine / len(ranks)) for rank, need in needs.items()},
        slots,
    )


def _faster(known: Evidence) -> float:
    """How much faster steps would be if everybody were as quick as the quickest is."""
    return float(known.iteration_s.max(axis=1).mean() / np.median(known.iteration_s, axis=0).min())


def _cpu(counters: Counters, node: int, rank: int, column: str, span: Span) -> float:
    """Seconds a second of a rank's processes; 0 where nothing was recorded."""
    series = counters.series("process_sample", ("node", "pid", "rank"))
    found = [
        counters.grew(rows, column, *span).per_second / 1e6
        for (of_node, _, of_rank), rows in series.items()
        if (of_node, of_rank) == (node, rank)
    ]
    return sum(value for value in found if math.isfinite(value))


def _network(counters: Counters, node: int, span: Span) -> tuple[float, float, float]:
    """Capacity, all that is moved, and what the job's own sockets move; 0 for all where the speed is not known.

    Where sockets were not sampled, all of it is taken for the job's own.
    """
    carrying = counters.rails.of_node.get(node, ())
    speed, moved = 0.0, {"rx_bytes": 0.0, "tx_bytes": 0.0}
    for (of_node, nic), named in nic_names(counters).items():
        rows = counters.series("nic_sample", ("node", "nic")).get((of_node, nic))
        if of_node != node or named.rail not in carrying or rows is None:
            continue
        line = counters.mean(rows, "speed_mbit", *span) * 1e6 / 8.0
        rates = {column: counters.grew(rows, column, *span).per_second for column in moved}
        if not all(map(math.isfinite, (line, *rates.values()))):
            return 0.0, 0.0, 0.0
        speed += line
        moved = {column: moved[column] + rate for column, rate in rates.items()}
    if speed <= 0.0:
        return 0.0, 0.0, 0.0
    sent = [
        (counters.grew(rows, "acked_bytes", *span).per_second, counters.grew(rows, "received_bytes", *span).per_second)
        for (of_node, _, rank), rows in counters.series("tcp_sample", ("node", "socket", "rank")).items()
        if of_node == node and rank >= 0
    ]
    most = max(moved.values())
    if not sent:
        return speed, most, most
    return speed, most, min(most, float(np.nansum(np.array(sent), axis=0).max()))
