"""The faults that a synthetic run can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats

CPU_PHASES = ("data_wait", "forward", "backward", "optimizer", "unaccounted")


class Fault(Protocol):
    """Something that makes ranks or the network slower."""

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """Whom it hits; None = all."""
        ...

    @property
    def start(self) -> int:
        """First step hit."""
        ...

    @property
    def end(self) -> int | None:
        """First step no longer hit; None = to the end."""
        ...

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """Time it adds per phase, shape (R, S) each; `transfer` has shape (S,)."""
        ...


def window(steps: int, start: int, end: int | None) -> Bools:
    """Mask of the steps in [start, end)."""
    index = np.arange(steps)
    inside: Bools = (index >= start) & (index < (steps if end is None else end))
    return inside


@dataclass(frozen=True, slots=True)
class Slow:
    """Adds time to one phase of some ranks.

    Attributes:
        phase: name of a span without `_us`, e.g. `backward`, `gc`, `checkpoint`.
        us: added per hit step; with `trend` reached at the last step.
        factor: multiplies the phase as well.
        every: only each n-th step from `start` on.
        share: random share of the steps that is hit (bursts).
        rotating: one random rank of `ranks` per hit step instead of all of them.
        trend: grows linearly from 0 at `start`.
    """

    phase: str
    ranks: tuple[int, ...] | None = None
    us: float = 0.0
    factor: float = 1.0
    start: int = 0
    end: int | None = None
    every: int = 1
    share: float = 1.0
    rotating: bool = False
    trend: bool = False

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        shape = phases["forward"].shape
        base = phases.get(self.phase, np.zeros(shape))
        weight = window(shape[1], self.start, self.end).astype(np.float64)
        weight *= (np.arange(shape[1]) - self.start) % self.every == 0
        weight *= rng.random(shape[1]) < self.share
        if self.trend:
            weight *= np.clip((np.arange(shape[1]) - self.start) / max(1, shape[1] - 1 - self.start), 0, None)
        members = np.arange(shape[0]) if self.ranks is None else np.asarray(self.ranks)
        hit = np.zeros(shape)
        if self.rotating:
            hit[members[rng.integers(len(members), size=shape[1])], np.arange(shape[1])] = 1.0
        else:
            hit[members] = 1.0
        return {self.phase: hit * weight * (self.us + (self.factor - 1.0) * base)}


def _spread_over_cpu(phases: Mapping[str, Floats], rank: int, weight: Floats) -> dict[str, Floats]:
    """Stretch every CPU phase of a rank by the given share of itself, shape (S,)."""
    excess = {name: np.zeros_like(phases[name]) for name in CPU_PHASES}
    for name in CPU_PHASES:
        excess[name][rank] = phases[name][rank] * weight
    return excess


@dataclass(frozen=True, slots=True)
class CpuHog:
    """A foreign process on the rank's core takes `share` of it; the rank waits in the run queue meanwhile.

    Attributes:
        counted: share of that waiting that the scheduler's counter shows.
    """

    rank: int
    share: float = 0.5
    start: int = 0
    end: int | None = None
    counted: float = 1.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The victim."""
        return (self.rank,)

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        steps = phases["forward"].shape[1]
        jitter = np.clip(rng.normal(1.0, 0.1, steps), 0.5, 1.5)
        weight = self.share / (1.0 - self.share) * window(steps, self.start, self.end)
        return _spread_over_cpu(phases, self.rank, weight * jitter)


@dataclass(frozen=True, slots=True)
class Quota:
    """A cgroup quota stops the rank in bursts: `share` of the steps lose `us` each, spread over its CPU phases.

    Attributes:
        counted: share of that time that the group's counter shows.
    """

    rank: int
    us: float = 40_000.0
    share: float = 0.6
    start: int = 0
    end: int | None = None
    counted: float = 1.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The victim."""
        return (self.rank,)

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        steps = phases["forward"].shape[1]
        busy = np.sum([phases[name][self.rank] for name in CPU_PHASES], axis=0)
        hit = (rng.random(steps) < self.share) & window(steps, self.start, self.end)
        return _spread_over_cpu(phases, self.rank, hit * self.us / busy)


@dataclass(frozen=True, slots=True)
class Pinned:
    """All threads of the rank share one core: its compute takes `factor` times as long."""

    rank: int
    factor: float = 2.0
    threads: int = 4
    start: int = 0
    end: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The victim."""
        return (self.rank,)

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        weight = (self.factor - 1.0) * window(phases["forward"].shape[1], self.start, self.end)
        return _spread_over_cpu(phases, self.rank, weight * rng.normal(1.0, 0.05, weight.shape))


@dataclass(frozen=True, slots=True)
class SlowNic:
    """One node's interface sends slowly: every reduction takes `us` longer and its sockets show it.

    Attributes:
        seen: False hides the sockets' evidence (no counters could tell whose interface it is).
        speed_mbit: link speed the interface falls to; None = it keeps its nominal one (shaped, not degraded).
        caught: share of the sockets' samples that catch packets waiting.
    """

    node: int
    us: float = 60_000.0
    start: int = 0
    end: int | None = None
    seen: bool = True
    speed_mbit: int | None = None
    caught: float = 1.0

    @property
    def ranks(self) -> None:
        """All wait alike."""
        return

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        steps = phases["forward"].shape[1]
        jitter: Floats = np.asarray(rng.normal(1.0, 0.05, size=(steps,)))
        return {"transfer": self.us * jitter * window(steps, self.start, self.end)}


@dataclass(frozen=True, slots=True)
class SlowPath:
    """The way between two nodes is slow, both are quick with everybody else: every reduction takes `us` longer."""

    first: int
    second: int
    us: float = 60_000.0
    start: int = 0
    end: int | None = None

    @property
    def ranks(self) -> None:
        """All wait alike."""
        return

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        steps = phases["forward"].shape[1]
        jitter: Floats = np.asarray(rng.normal(1.0, 0.05, size=(steps,)))
        return {"transfer": self.us * jitter * window(steps, self.start, self.end)}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A busy process outside the job that costs nobody anything: it runs on a core that no rank needs."""

    node: int
    cpu: int
    share: float = 1.0
    start: int = 0
    end: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Nobody."""
        return ()

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:  # noqa: ARG002
        """See `Fault`."""
        return {}
