"""What a draw gives: a fault with its right answer, and when it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from starprof.analysis.synthetic import Fault, SyntheticRun
from starprof.analysis.synthetic.faults import CPU_PHASES

SLOWEST = 5.0
Spells = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class When:
    """When a fault is there.

    Attributes:
        shape: chronic, onset, transient or intermittent.
        start: first step of it.
        end: first step after it; None = to the end.
        spells: stretches of an intermittent one.
        steps: how many steps it hits.
    """

    shape: str
    start: int
    end: int | None
    spells: Spells
    steps: int


@dataclass(frozen=True)
class Drawn:
    """A fault and its right answer.

    Attributes:
        faults: what goes into the run.
        ranks: who is to blame.
        tolerated: who may be named too.
        causes: right causes where all its evidence was recorded.
        places: causes that are true but tell less: the part of the step that is longer.
        evidence: tables without any of which only the place can be told.
        verdicts: right verdicts.
        blind: right verdicts without the evidence, where they are others.
        slowdown: how many times as long a rank (or, of the network, the step) takes.
        when: when it is there; None where no onset is judged.
        recipe: what it changes in the run's recipe.
    """

    faults: tuple[Fault, ...]
    ranks: frozenset[int] = frozenset()
    causes: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    evidence: tuple[str, ...] = ()
    verdicts: frozenset[str] = frozenset({"straggler"})
    blind: frozenset[str] = frozenset()
    tolerated: frozenset[int] = frozenset()
    slowdown: float = 1.0
    when: When | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draw:
    """What a fault is drawn for.

    Attributes:
        run: the job without any fault.
        hit: ranks that it is to hit.
        slowdown: how many times as long they are to take for themselves.
    """

    run: SyntheticRun
    hit: tuple[int, ...]
    slowdown: float
    when: When
    rng: np.random.Generator

    @property
    def extra_us(self) -> float:
        """What a hit rank needs more per step."""
        return (self.slowdown - 1.0) * sum(self.run.phases_us.values())

    def spread_over(self, *phases: str) -> dict[str, float]:
        """The extra time, dealt to some phases in proportion to what they take."""
        usual = {name: self.run.phases_us[name] for name in phases}
        return {name: self.extra_us * us / sum(usual.values()) for name, us in usual.items()}

    def over_compute(self) -> dict[str, float]:
        """The extra time in forward and backward."""
        return self.spread_over("forward", "backward")

    def over_cpu(self) -> dict[str, float]:
        """The extra time in all that a CPU does."""
        return self.spread_over(*CPU_PHASES)

    def between(self, low: float, high: float) -> float:
        """A number drawn evenly."""
        return float(self.rng.uniform(low, high))

    def about(self, low: float, high: float) -> float:
        """A number drawn evenly on a logarithmic scale."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def often(self, share: float) -> bool:
        """True in some share of the draws."""
        return bool(self.rng.random() < share)

    @property
    def step_s(self) -> float:
        """Healthy step time, seconds."""
        return (sum(self.run.phases_us.values()) + self.run.transfer_us) / 1e6


@dataclass(frozen=True, slots=True)
class Need:
    """What a job must have for a fault to be possible in it.

    Attributes:
        gpus: with GPUs, without, or either (None).
        nodes: least number of nodes.
        infiniband: with, without, or either (None).
        shapes: of time that it can have.
        whole_node: it may hit all ranks of a node.
        stages: pipeline stages; 0 = either.
    """

    gpus: bool | None = None
    nodes: int = 1
    infiniband: bool | None = None
    shapes: tuple[str, ...] = ("chronic", "onset", "transient", "intermittent")
    whole_node: bool = False
    stages: int = 0


Maker = Callable[[Draw], Drawn]
