"""One thing that may slow a job down, with what its steps would be without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import factorial
from typing import TypeAlias

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.whatif.replay import Replay
from starprof.model.verdict import FindingKind, VerdictKind

MAX_EXACT = 5

Taken: TypeAlias = list[Floats]
"""What every operation takes, per part of a replay a matrix like `Part.takes_us`."""
Fix: TypeAlias = Callable[[Taken], None]
"""Changes what operations take to what they would take with the fault gone."""


@dataclass(frozen=True)
class Suspect:
    """A fault with its words.

    Attributes:
        verdict: what the run's verdict is if this is the most important fault.
        rows: workers to blame; empty when nobody is.
        first, end: steps first..end-1, by place in the run.
        fix: what operations would take without it.
        adds: time of it that the replay leaves out because it lies between operations, per part; None for none.
        plain: far from anything that healthy ranks show, so that it matters although it costs less.
    """

    verdict: VerdictKind
    kind: FindingKind
    cause: str
    first: int
    end: int
    fix: Fix
    rows: tuple[int, ...] = ()
    role: dict[str, int] = field(default_factory=dict)
    adds: Taken | None = None
    plain: bool = False
    cause_share: float = 1.0
    confidence: float = 0.9
    evidence: tuple[str, ...] = ()
    action: str = ""
    verify: str = ""
    next: str = ""


class Prices:
    """The run's time without any set of suspects, each set replayed once."""

    def __init__(self, replay: Replay, suspects: Sequence[Suspect]) -> None:
        base: Taken = [part.takes_us for part in replay.parts]
        for suspect in suspects:
            if suspect.adds is not None:
                base = [taken + more for taken, more in zip(base, suspect.adds, strict=True)]
        self._replay = replay
        self._suspects = suspects
        self._base = base
        self._steps = replay.instead_us(base)
        self._known: dict[frozenset[int], Floats] = {frozenset(): self._steps}

    @property
    def run_us(self) -> float:
        """The run's time with all of them."""
        return float(self._steps.sum())

    @property
    def run_steps_us(self) -> Floats:
        """Its steps, shape (S,)."""
        return self._steps

    def without(self, indices: Iterable[int]) -> float:
        """The run's time without some of them, microseconds."""
        return float(self.steps_without_us(indices).sum())

    def steps_without_us(self, indices: Iterable[int]) -> Floats:
        """The run's steps without some of them, shape (S,)."""
        gone = frozenset(indices)
        if gone not in self._known:
            taken = [values.copy() for values in self._base]
            for index in sorted(gone):
                self._suspects[index].fix(taken)
            self._known[gone] = self._replay.instead_us(taken)
        return self._known[gone]

    def alone_us(self, index: int) -> float:
        """What the run gains if only this one is fixed."""
        return self.run_us - self.without([index])

    def solo_us(self, index: int, among: Iterable[int]) -> float:
        """What this one would cost if it were the only one of a set."""
        everyone = frozenset(among) | {index}
        return self.without(everyone - {index}) - self.without(everyone)

    def inside_us(self, index: int) -> float:
        """Time of the steps that this one is about."""
        suspect = self._suspects[index]
        return float(self._steps[suspect.first : suspect.end].sum())

    def parts_us(self, among: Sequence[int]) -> list[float]:
        """What each of a set costs, adding up to all (Shapley values; by solo cost where there are many)."""
        if len(among) <= MAX_EXACT:
            return [self._shapley(index, among) for index in among]
        total = self.run_us - self.without(among)
        solo = np.array([max(self.solo_us(index, among), 0.0) for index in among])
        return [float(part) for part in solo * (total / max(float(solo.sum()), 1e-9))]

    def _shapley(self, index: int, among: Sequence[int]) -> float:
        others = [i for i in among if i != index]
        value = 0.0
        for size in range(len(among)):
            weight = factorial(size) * factorial(len(among) - size - 1) / factorial(len(among))
            for removed in combinations(others, size):
                value += weight * (self.without(removed) - self.without([*removed, index]))
        return value
