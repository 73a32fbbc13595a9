"""Jobs with a known kind of straggler, for comparisons and for training choosers on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from starprof.errors import UsageError
from starprof.simulation.setting import FREE, AllReduce, Cluster, Exchange, Node, ParameterServer, Worker
from starprof.simulation.sources import Episodes, HeavyTailed, Rotating, Source, Steady

KINDS = ("even", "persistent", "transient", "rotating", "heavy-tailed", "bandwidth-bound", "server-bound")
"""What `scenario` knows: nobody is slow; the same workers always; some workers now and then; one after the other;
everybody now and then, without limit; workers with a slow interface; and servers that are the bottleneck."""

EXCHANGES = ("free", "all-reduce", "ps")


@dataclass(frozen=True)
class Scenario:
    """Workers and what is around them.

    Attributes:
        workers: each on a node of its own, `node0` and so on.
        exchange: how gradients travel.
        cluster: the workers' nodes, and the server's.
    """

    workers: tuple[Worker, ...]
    exchange: Exchange
    cluster: Cluster


@dataclass(frozen=True)
class Traits:
    """Of the jobs that `scenario` makes.

    Attributes:
        iteration_s: mean own time of a worker that nothing slows down.
        cv: of its own times, standard deviation over mean.
        slow: workers that are slow, the last ones.
        factor: by which they are.
        tail_index: of heavy tails.
        batch: samples of a worker's iteration.
        model_bytes: gradients of an iteration.
        nic_bytes_per_s: of each node.
        server_cpu_s: work of a server for each gradient, coming in and going out.
    """

    iteration_s: float = 0.5
    cv: float = 0.05
    slow: int = 1
    factor: float = 2.0
    tail_index: float = 1.5
    batch: int = 32
    model_bytes: float = 25e6
    nic_bytes_per_s: float = 1.25e9
    server_cpu_s: float = 0.001


TYPICAL = Traits()


def scenario(kind: str, count: int, exchange: str = "free", traits: Traits = TYPICAL, seed: int = 0) -> Scenario:
    """Workers with stragglers of one kind.

    Episodes of transient stragglers last 20 to 60 iterations, with gaps of 40 to 200, by the seed.

    Raises:
        UsageError: there is no such kind or exchange, or not so many workers.
    """
    if kind not in KINDS or exchange not in EXCHANGES:
        raise UsageError(f"kinds are {', '.join(KINDS)}, exchanges {', '.join(EXCHANGES)}; not {kind!r}, {exchange!r}")
    if not 0 <= traits.slow <= count or count < 1:
        raise UsageError(f"{traits.slow} slow workers of {count}")
    if kind == "server-bound":
        # All workers together ask the server for `factor` times of what it can do.
        traits = replace(traits, server_cpu_s=traits.factor * traits.iteration_s / count)
    random = np.random.default_rng([seed, 77])
    sources = [_source(kind, index, count, traits, random) for index in range(count)]
    workers = tuple(
        Worker(index, source, node=f"node{index}", batch=traits.batch) for index, source in enumerate(sources)
    )
    nodes = [Node(w.node, nic_bytes_per_s=traits.nic_bytes_per_s) for w in workers]
    if kind == "bandwidth-bound":
        narrow = traits.nic_bytes_per_s / traits.factor
        nodes = [replace(n, nic_bytes_per_s=narrow) if i >= count - traits.slow else n for i, n in enumerate(nodes)]
    nodes.append(Node("server", cores=1.0, nic_bytes_per_s=traits.nic_bytes_per_s))
    return Scenario(workers, exchange_of(exchange, traits), Cluster(tuple(nodes)))


def exchange_of(name: str, traits: Traits) -> Exchange:
    """One server with one core on node `server`, a ring, or nothing that takes time."""
    match name:
        case "ps":
            part = traits.server_cpu_s / 4
            return ParameterServer(("server",), traits.model_bytes, 2 * part, part, part)
        case "all-reduce":
            return AllReduce(traits.model_bytes, latency_s=50e-6)
        case _:
            return FREE


def _source(kind: str, index: int, count: int, traits: Traits, random: np.random.Generator) -> Source:
    base = Steady(traits.iteration_s, traits.cv)
    slow = index >= count - traits.slow
    match kind:
        case "persistent" if slow:
            return Steady(traits.iteration_s * traits.factor, traits.cv)
        case "transient" if slow:
            return Episodes(base, traits.factor, _periods(traits.iteration_s, random))
        case "rotating":
            return Rotating(base, traits.factor, 20 * traits.iteration_s, index, count)
        case "heavy-tailed":
            return HeavyTailed(traits.iteration_s, traits.tail_index)
    return base


def _periods(iteration_s: float, random: np.random.Generator) -> tuple[tuple[float, float], ...]:
    """For the first 20,000 iterations."""
    at, periods = 0.0, []
    while at < 20_000:
        begin = at + random.uniform(40, 200)
        at = begin + random.uniform(20, 60)
        periods.append((begin * iteration_s, at * iteration_s))
    return tuple(periods)
