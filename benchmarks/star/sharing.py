"""Places whose slowness has a cause: jobs beside ours take the processor or the interface of a node that it needs.

Eight workers on nodes of their own, or in pairs, a parameter server of four shards that begin on one node, two spare
nodes, and neighbours, which train by formula and never end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scenarios import BATCH, CV, FIXED_SHARE, MICRO_BATCHES, MODEL_BYTES, NIC_BYTES_PER_S, SERVER, WORKERS

from starprof.simulation import Change, Cluster, Job, Mode, Node, NoiseScale, ParameterServer, Steady, Until, Worker
from starprof.simulation.setting import FREE, Exchange

MAIN = "ours"
SPARE = ("spare0", "spare1")
SHARDS = 4
OWN_S, CPU_S = 0.08, 0.08
"""Of our iterations, before the node's processor is needed and what is needed of it: with four cores 0.1 s in all."""
NODE_CORES, SERVER_CORES = 4.0, 2.0
SLACK_S = 0.1
"""Iterations of a neighbour whose slowest worker is elsewhere."""
COST = ParameterServer((SERVER,) * SHARDS, MODEL_BYTES, 0.004, 0.008, 0.004, latency_s=2e-4)
"""With synchronous steps the server takes a third of its node, with eight workers that never wait more than it has."""


@dataclass(frozen=True)
class SharedPlace:
    """What a job runs on, and beside whom.

    Attributes:
        workers: of it.
        cluster: all nodes.
        exchange: of it.
        neighbours: jobs without an end.
        fixed: the server can't leave its node.
    """

    workers: tuple[Worker, ...]
    cluster: Cluster
    exchange: ParameterServer
    neighbours: tuple[Job, ...]
    fixed: bool


def _ours(*factors: float, on_a_node: int = 1) -> tuple[Worker, ...]:
    slow = dict(enumerate(factors))
    return tuple(
        Worker(
            at,
            Steady(OWN_S * slow.get(at, 1.0), CV, 0.5),
            f"node{at // on_a_node}",
            BATCH,
            MICRO_BATCHES,
            FIXED_SHARE,
            cpu_s=CPU_S,
        )
        for at in range(WORKERS)
    )


def _neighbour(
    name: str,
    nodes: tuple[str, ...],
    own_s: float,
    cpu_s: float,
    *,
    slowest_s: float = 0.0,
    mode: str = "ssgd",
    exchange: Exchange = FREE,
    changes: tuple[Change, ...] = (),
) -> Job:
    """Workers on these nodes, and one elsewhere, where nothing is scarce."""
    there = tuple(Worker(at, Steady(own_s, CV), node, BATCH, cpu_s=cpu_s) for at, node in enumerate(nodes))
    last = Worker(len(nodes), Steady(slowest_s or own_s, CV), "elsewhere", BATCH)
    return Job(Mode(mode), (*there, last), NoiseScale(), Until(), exchange, changes, name=name)


# A queue serves one request at full capacity, a processor all at once: what neighbours ask for comes in small pieces.


def _passing(count: int, begin_s: float, end_s: float) -> tuple[Change, ...]:
    """So many workers leave at once, come at a time, and leave again."""
    return tuple(
        Change(at_s, worker, joins)
        for worker in range(count)
        for at_s, joins in ((0.01, False), (begin_s, True), (end_s, False))
    )


SHARED: Mapping[str, Callable[[], tuple[tuple[Worker, ...], tuple[Job, ...]]]] = MappingProxyType(
    {
        "processor of a worker's node": lambda: (_ours(), (_neighbour("beside", ("node0",) * 6, 0.005, 0.05),)),
        "the same for a while": lambda: (
            _ours(),
            (_neighbour("beside", ("node0",) * 6, 0.005, 0.05, changes=_passing(6, 10.0, 40.0)),),
        ),
        "processor of the server's node": lambda: (_ours(), (_neighbour("beside", (SERVER,) * 6, 0.01, 0.02),)),
        "interface of the server's node": lambda: (
            _ours(),
            (
                _neighbour(
                    "beside", (SERVER,) * 8, 0.002, 0.0, mode="asgd", exchange=ParameterServer(("elsewhere",), 6e6)
                ),
            ),
        ),
        "server, beside a job with slack": lambda: (
            _ours(2.0),
            (_neighbour("beside", (SERVER,) * 8, 0.01, 0.02, slowest_s=SLACK_S),),
        ),
        "server, beside a job without slack": lambda: (_ours(2.0), (_neighbour("beside", (SERVER,) * 8, 0.04, 0.02),)),
        "processor of a server that can't move": lambda: (
            _ours(on_a_node=2),
            (_neighbour("beside", (SERVER,) * 3, 0.02, 0.02),),
        ),
        "interface of a server that can't move": lambda: (
            _ours(on_a_node=2),
            (
                _neighbour(
                    "beside", (SERVER,) * 8, 0.002, 0.0, mode="asgd", exchange=ParameterServer(("elsewhere",), 6e6)
                ),
            ),
        ),
        "nothing": lambda: (_ours(), (_neighbour("beside", (SERVER,), 0.2, 0.05),)),
    }
)
"""Our workers, and the jobs beside them."""


def shared_place(scenario: str) -> SharedPlace:
    """A place of `SHARED`."""
    workers, neighbours = SHARED[scenario]()
    names = list(dict.fromkeys(worker.node for worker in workers))
    nodes = (
        *(Node(name, NODE_CORES, NIC_BYTES_PER_S) for name in (*names, *SPARE)),
        Node(SERVER, SERVER_CORES, NIC_BYTES_PER_S),
    )
    return SharedPlace(workers, Cluster(nodes), COST, neighbours, fixed=scenario.endswith("can't move"))
