"""What a simulation tells: every update, every iteration, and how long it took to get anywhere. All frozen.

Units: simulated seconds; `progress` in iterations of the training (the sum of the weights of all updates so far);
`learned` in updates of everybody with the learning rate that is best for those (`training.noise_scale`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.sync.policies import Gradient

STRAGGLES = 0.20
"""A worker straggles in an iteration that takes it so much longer than the fastest (arXiv 2512.09685)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One update of the parameters, or an averaging of states that workers have stepped on with on their own.

    Attributes:
        decided_s: when the mode said so.
        at_s: when it was made: reduced, or applied by the servers.
        onto: version of the parameters before it.
        gradients: what went in; none in an averaging.
        weights: the factor of each.
        members: whose parameters it changed; None: everybody's.
        progress: after it.
        learned: after it; as `progress` where training is real.
        averaged: it is an averaging.
        mode: that made it.
    """

    decided_s: float
    at_s: float
    onto: int
    gradients: tuple[Gradient, ...]
    weights: tuple[float, ...]
    members: tuple[int, ...] | None
    progress: float
    learned: float
    averaged: bool
    mode: str

    @property
    def contributors(self) -> tuple[int, ...]:
        """The worker of each gradient; of an averaging, its members."""
        return (self.members or ()) if self.averaged else tuple(g.worker for g in self.gradients)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each gradient, in updates."""
        return tuple(self.onto - g.version for g in self.gradients)

    @property
    def scale(self) -> float:
        """Sum of the weights."""
        return sum(self.weights)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What held-out samples say about the parameters: loss, and accuracy from 0 to 1."""

    at_s: float
    version: int
    progress: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Iterations:
    """All iterations of all workers that were handed in, in this order.

    Attributes:
        worker: whose.
        number: its how-many-th, from 0.
        begun_s: when it was released.
        own_s: computing and transfers, no waiting for others.
        waited_s: until it was released again; NaN: it still waits at the end.
    """

    worker: Ints
    number: Ints
    begun_s: Floats
    own_s: Floats
    waited_s: Floats


@dataclass(frozen=True)
class History:
    """One simulated job.

    Attributes:
        name: of the job.
        mode: that it began with.
        end_s: simulated time at its end.
        stopped: why: `updates`, `at_s`, `progress`, `learned`, `accuracy` or `gradients` was reached; `diverged`;
            `stands still`: nobody was going to do anything any more; `others`: the jobs it ran beside had ended.
        steps: the updates, in order.
        evaluations: of real training, in order; the first at the start.
        iterations: of all workers.
        dropped: gradients that were thrown away.
        switches: when the mode was changed, and to which.
        busy: of each shared resource, the share of the time in which it worked.
    """

    name: str
    mode: str
    end_s: float
    stopped: str
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    iterations: Iterations
    dropped: int
    switches: tuple[tuple[float, str], ...]
    busy: Mapping[str, float]

    @property
    def updates_per_s(self) -> float:
        """Over the whole time."""
        return len(self.steps) / self.end_s if self.end_s else 0.0

    @property
    def progress_per_s(self) -> float:
        """Over the whole time."""
        return self.steps[-1].progress / self.end_s if self.steps and self.end_s else 0.0

    @property
    def accuracy(self) -> float | None:
        """At the end; None: training was not real."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    def time_to_accuracy(self, target: float) -> float | None:
        """Seconds to the first evaluation of at least this accuracy; None: it was not reached."""
        return next((e.at_s for e in self.evaluations if e.accuracy >= target), None)

    def time_to_loss(self, target: float) -> float | None:
        """Seconds to the first evaluation of at most this loss; None: it was not reached."""
        return next((e.at_s for e in self.evaluations if e.loss <= target), None)

    def time_to_learned(self, target: float) -> float | None:
        """Seconds until so much was learned; None: it was not."""
        return next((step.at_s for step in self.steps if step.learned >= target), None)

    @cached_property
    def staleness(self) -> Ints:
        """Of all gradients that were used, in updates."""
        return np.array([value for step in self.steps for value in step.staleness], np.int64)

    @cached_property
    def shares(self) -> dict[int, float]:
        """Of each worker, its part of all weight."""
        given: dict[int, float] = dict.fromkeys(np.unique(self.iterations.worker).tolist(), 0.0)
        for step in self.steps:
            weights = step.weights or (1.0,) * len(step.contributors)
            for worker, weight in zip(step.contributors, weights, strict=True):
                given[worker] = given.get(worker, 0.0) + weight
        total = sum(given.values())
        return {worker: weight / total if total else 0.0 for worker, weight in sorted(given.items())}

    @cached_property
    def straggler_share(self) -> float:
        """Share of iterations that took their worker over 20 % longer than the fastest with the same number."""
        numbers, own_s = self.iterations.number, self.iterations.own_s
        if not len(numbers):
            return 0.0
        fastest = np.full(int(numbers.max()) + 1, np.inf)
        np.minimum.at(fastest, numbers, own_s)
        return float(np.mean(own_s > (1 + STRAGGLES) * fastest[numbers]))

    @cached_property
    def waiting_share(self) -> float:
        """Share of the workers' time in which they waited to be released."""
        waited = float(np.nansum(self.iterations.waited_s))
        worked = float(self.iterations.own_s.sum())
        return waited / (waited + worked) if waited + worked else 0.0
