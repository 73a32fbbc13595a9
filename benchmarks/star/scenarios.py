"""Who is slow, and how gradients travel: eight workers with made-up troubles, or ten as public traces recorded them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from types import MappingProxyType

from starprof.errors import StarprofError
from starprof.importers.load import load
from starprof.simulation import (
    AllReduce,
    Cluster,
    Episodes,
    HeavyTailed,
    Node,
    ParameterServer,
    Rotating,
    Source,
    Steady,
    Worker,
)
from starprof.simulation.recorded import Recorded, workers_of
from starprof.simulation.setting import Exchange

DATA = Path(os.environ.get("STARPROF_PUBLIC_DATA") or Path(__file__).parents[3] / "shared" / "data")
WORKERS = 8
TYPICAL_S, CV = 0.1, 0.03
BATCH, MICRO_BATCHES = 8, 4
FIXED_SHARE = 0.2
"""Of an iteration, which a smaller batch does not shorten."""

TRACES: Mapping[str, str] = MappingProxyType(
    {f"pai-{number}": f"alibaba_pai_minibatch/job_{number}_norm.csv" for number in (1, 2, 3, 4)}
)
"""Ten workers of a parameter-server job each; their times are relative, here in units of the typical one."""

SERVER, CORES, NIC_BYTES_PER_S, MODEL_BYTES = "server", 1.0, 1.25e9, 2.5e6
PUSH_S, APPLY_S, PULL_S = 0.002, 0.004, 0.002
"""With eight workers that never wait the server is about two thirds busy, with synchronous steps a quarter."""


class NoTraceError(StarprofError):
    """A recorded trace is not there."""


def _steady(factor: float = 1.0) -> Source:
    return Steady(TYPICAL_S * factor, CV, 0.5)


def _some_slow(*factors: float) -> Callable[[int], list[Source]]:
    return lambda _seed: [*(_steady() for _ in range(WORKERS - len(factors))), *map(_steady, factors)]


def _transient(seed: int) -> list[Source]:
    """Each worker is 2.5 times slower in 15 % of the time, for some seconds."""
    sources: list[Source] = []
    for worker in range(WORKERS):
        draw = random.Random(f"transient {seed} {worker}")
        periods, at_s = [], draw.expovariate(1 / 17.0)
        while at_s < 2_000.0:
            length_s = draw.uniform(1.0, 5.0)
            periods.append((at_s, at_s + length_s))
            at_s += length_s + draw.expovariate(1 / 17.0)
        sources.append(Episodes(_steady(), 2.5, tuple(periods)))
    return sources


SYNTHETIC: Mapping[str, Callable[[int], list[Source]]] = MappingProxyType(
    {
        "none": _some_slow(),
        "one 2x": _some_slow(2.0),
        "one 4x": _some_slow(4.0),
        "two 1.5x": _some_slow(1.5, 1.5),
        "half 2x": _some_slow(2.0, 2.0, 2.0, 2.0),
        "transient": _transient,
        "rotating": lambda _seed: [Rotating(_steady(), 3.0, 2.0, turn, WORKERS) for turn in range(WORKERS)],
        "heavy tail": lambda _seed: [HeavyTailed(TYPICAL_S, 2.2) for _ in range(WORKERS)],
    }
)


@dataclass(frozen=True)
class Place:
    """What a job runs on.

    Attributes:
        workers: of it.
        exchange: how gradients travel.
        cluster: what is scarce.
        typical_s: own time of an iteration without trouble.
    """

    workers: tuple[Worker, ...]
    exchange: Exchange
    cluster: Cluster
    typical_s: float = TYPICAL_S


def place_of(scenario: str, exchange: str, seed: int) -> Place:
    """Workers with the troubles of a scenario, each on a node of its own.

    Raises:
        NoTraceError: it is recorded, and the record is not there.
    """
    sources = SYNTHETIC[scenario](seed) if scenario in SYNTHETIC else _recorded(scenario)
    workers = tuple(
        Worker(
            index,
            source,
            node=f"node{index}",
            batch=BATCH,
            micro_batches=MICRO_BATCHES,
            fixed_share=FIXED_SHARE,
        )
        for index, source in enumerate(sources)
    )
    names = [SERVER, *(worker.node for worker in workers)]
    cluster = Cluster(tuple(Node(n, CORES if n == SERVER else 8.0, NIC_BYTES_PER_S) for n in names))
    return Place(workers, exchange_of(exchange), cluster)


def exchange_of(name: str) -> Exchange:
    """`ps`: a parameter server; `ring`: all-reduce."""
    if name == "ps":
        return ParameterServer((SERVER,), MODEL_BYTES, PUSH_S, APPLY_S, PULL_S, latency_s=2e-4)
    return AllReduce(MODEL_BYTES, latency_s=2e-4)


@cache
def _trace(scenario: str) -> tuple[Worker, ...]:
    path = DATA / TRACES[scenario]
    if not path.exists():
        raise NoTraceError(f"there is no {path}: set STARPROF_PUBLIC_DATA to the folder of public traces")
    return workers_of(load([str(path)]), in_order=True)


def _recorded(scenario: str) -> list[Source]:
    """Played in their order, in units of the typical time of all."""
    sources = [worker.source for worker in _trace(scenario)]
    times = [source.times_s for source in sources if isinstance(source, Recorded)]
    unit = median(median(each) for each in times) / TYPICAL_S
    return [Recorded(tuple(t / unit for t in each), 0) for each in times]
