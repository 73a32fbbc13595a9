"""What whoever manages a simulated cluster sees of it, and may order while jobs run.

The simulator carries orders out; it decides on none of them. A delay is what a cooperating worker does when it is asked
to give way: it hands in later, and frees what it would have used in that time. Moving takes what it takes in reality: a
shard's bytes go over both interfaces, and until they are there the old node serves it; a worker is away for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Delay:
    """A job's workers on a node hand in so much later in each iteration from now on; 0: as soon as they can."""

    job: str
    node: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class MoveShard:
    """A shard of a job's parameter server goes to another node, which takes so many bytes to be sent."""

    job: str
    shard: int
    node: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class MoveWorker:
    """A worker goes on on another node; its next iteration takes so much longer."""

    job: str
    worker: int
    node: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Children hand what they push to a parent, who sends it once for all of them when the last has come.

    Attributes:
        job: whose workers they are.
        parents: of each child; whoever is not named sends for itself.
    """

    job: str
    parents: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Pace:
    """A worker pushes no faster than that from now on; infinite: as fast as it can."""

    job: str
    worker: int
    bytes_per_s: float


Order = Delay | MoveShard | MoveWorker | Group | Pace


@dataclass(frozen=True, slots=True)
class Use:
    """Of a node: CPU seconds, and bytes in both directions together."""

    cpu_s: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class JobSeen:
    """A job in the time since the last look.

    Attributes:
        name: of it.
        mode: that it is in.
        nodes: of each worker that takes part.
        shards: node of each shard of its parameter server; none: it has no server.
        own_s: mean own time of each worker's iterations; those that made none are missing.
        iterations: that each worker made.
        progress: of the training so far, in iterations.
        compute: what its workers used, by node.
        serve: what its servers used, by node, with both ends of every transfer.
    """

    name: str
    mode: str
    nodes: Mapping[int, str]
    shards: tuple[str, ...]
    own_s: Mapping[int, float]
    iterations: Mapping[int, int]
    progress: float
    compute: Mapping[str, Use]
    serve: Mapping[str, Use]


@dataclass(frozen=True)
class ClusterSeen:
    """All jobs that have not ended.

    Attributes:
        at_s: simulated time.
        period_s: since the last look.
        jobs: by name.
    """

    at_s: float
    period_s: float
    jobs: Mapping[str, JobSeen]


class Manager(Protocol):
    """Gives orders; a fresh one for each simulation where it remembers anything.

    Attributes:
        every_s: from one look to the next.
    """

    every_s: float

    def __call__(self, seen: ClusterSeen) -> Sequence[Order]:
        """What is to be done now."""
