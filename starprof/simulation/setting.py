"""What is simulated: workers, nodes, and how gradients travel between them. Descriptions only, all frozen.

Units: seconds, bytes, cores (CPU seconds per second), samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from starprof.simulation.sources import Source
from starprof.sync.policies import Policy, create

PolicyMaker = Callable[[Iterable[int], int], Policy]
"""Makes a policy of workers whose parameters have seen so many updates."""


@dataclass(frozen=True)
class Mode:
    """A synchronisation mode by its name and options, as users write them."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, workers: Iterable[int], version: int = 0) -> Policy:
        """A policy of it.

        Raises:
            UsageError: it can't be had.
        """
        return create(self.name, workers, self.options, version)

    def __str__(self) -> str:
        """Such as `m-sync m=6`."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Worker:
    """One worker.

    Attributes:
        index: its name in policies, not negative.
        source: of its own times.
        node: that it runs on; on one that the cluster does not name nothing is scarce.
        batch: samples of an iteration, for which the source's times hold.
        micro_batches: in which they are accumulated; a mode may end accumulating between two of them.
        fixed_share: of the own time, which a smaller batch does not shorten.
        cpu_s: work of each iteration for its node's processor, which it shares with others there; comes after the
            own time.
        joins_s: when it takes part for the first time.
    """

    index: int
    source: Source
    node: str = ""
    batch: int = 1
    micro_batches: int = 1
    fixed_share: float = 0.0
    cpu_s: float = 0.0
    joins_s: float = 0.0


@dataclass(frozen=True)
class Node:
    """A machine.

    Attributes:
        name: of it.
        cores: CPU seconds that it has in each second.
        nic_bytes_per_s: of its interface, in each direction.
    """

    name: str
    cores: float = math.inf
    nic_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Link:
    """A link that nodes share, such as the uplink of a rack: whatever leaves or enters the set of nodes goes over it.

    Attributes:
        name: of it.
        nodes: behind it.
        bytes_per_s: in both directions together.
    """

    name: str
    nodes: frozenset[str]
    bytes_per_s: float


@dataclass(frozen=True)
class Cluster:
    """Where jobs run, and what they compete for."""

    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()


NOTHING_SCARCE = Cluster()


@dataclass(frozen=True)
class Free:
    """Gradients and parameters travel in no time: what remains is who waits for whom."""


FREE = Free()


@dataclass(frozen=True)
class ParameterServer:
    """Gradients go to servers and parameters come back.

    Each shard has an equal part of bytes and work, and all shards work at the same time.

    Attributes:
        nodes: one for each shard.
        model_bytes: of all gradients of an iteration, and of the parameters.
        push_cpu_s: work for a gradient that comes in.
        apply_cpu_s: work for an update of the parameters.
        pull_cpu_s: work for parameters that go out.
        threads: cores that a shard can use at most.
        latency_s: of each transfer.
    """

    nodes: tuple[str, ...]
    model_bytes: float = 0.0
    push_cpu_s: float = 0.0
    apply_cpu_s: float = 0.0
    pull_cpu_s: float = 0.0
    threads: float = math.inf
    latency_s: float = 0.0


@dataclass(frozen=True)
class AllReduce:
    """Those who contribute to an update reduce among themselves, in a ring over their nodes.

    The first of them sends the result to everybody else; who comes late goes on when it has that.

    Attributes:
        model_bytes: of all gradients of an iteration.
        latency_s: of each of the 2(k - 1) steps of a ring over k nodes.
    """

    model_bytes: float = 0.0
    latency_s: float = 0.0


Exchange = Free | ParameterServer | AllReduce


@dataclass(frozen=True)
class Change:
    """A worker leaves, or comes (again), at some time."""

    at_s: float
    worker: int
    joins: bool


@dataclass(frozen=True)
class Until:
    """When a simulation ends: as soon as one of these is reached. Without any the job runs as long as others do.

    Attributes:
        updates: of the parameters.
        at_s: simulated time.
        progress: sum of the weights of all updates: iterations of the training.
        learned: as `NoiseScale` counts it.
        accuracy: on held-out samples, of real training.
        gradients: that have been handed in; ends modes which throw everything away.
    """

    updates: int | None = None
    at_s: float | None = None
    progress: float | None = None
    learned: float | None = None
    accuracy: float | None = None
    gradients: int = 20_000_000

    @property
    def open(self) -> bool:
        """Nothing ends it."""
        return self.updates is self.at_s is self.progress is self.learned is self.accuracy is None
