"""One thing that may slow a job down, with what its steps would be without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
Fix: TypeAlias = Callable[[Taken], Taken]
"""What operations would take with the fault gone."""


@dataclass(frozen=True)
class Suspect:
    """A fault with its words; `cost_us` is filled in by `priced`.

    Attributes:
        verdict: what the run's verdict is if this is the most important fault.
        rows: workers to blame; empty when nobody is.
        first, end: steps first..end-1, by place in the run.
        fix: what operations would take without it.
        adds: time of it that the replay leaves out because it lies between operations, per part; None for none.
        cost_us: the run's time that is due to it.
        alone_us: what the run would gain if only this were fixed.
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
    cause_share: float = 1.0
    confidence: float = 0.9
    evidence: tuple[str, ...] = ()
    action: str = ""
    verify: str = ""
    next: str = ""
    cost_us: float = 0.0
    alone_us: float = 0.0


@dataclass(frozen=True)
class Prices:
    """Costs in microseconds.

    Attributes:
        run_us: the run's steps with all suspects.
        total_us: what all of them cost together.
        parts_us: each one's part of that.
        alone_us: what the run gains if only this one is fixed.
        inside_us: time of the steps of each one.
    """

    run_us: float
    total_us: float
    parts_us: tuple[float, ...]
    alone_us: tuple[float, ...]
    inside_us: tuple[float, ...]


def priced(replay: Replay, suspects: Sequence[Suspect]) -> Prices:
    """What suspects cost: together, each (Shapley values where there are few), and if only one were fixed."""
    base: Taken = [part.takes_us for part in replay.parts]
    for suspect in suspects:
        if suspect.adds is not None:
            base = [taken + more for taken, more in zip(base, suspect.adds, strict=True)]
    known: dict[frozenset[int], float] = {}

    def run_us(without: frozenset[int]) -> float:
        if without not in known:
            taken = base
            for index in sorted(without):
                taken = suspects[index].fix(taken)
            known[without] = float(replay.instead_us(taken).sum())
        return known[without]

    steps = replay.instead_us(base)
    now = float(steps.sum())
    total = now - run_us(frozenset(range(len(suspects))))
    alone = tuple(now - run_us(frozenset([index])) for index in range(len(suspects)))
    if len(suspects) <= MAX_EXACT:
        parts = tuple(_shapley(run_us, index, len(suspects)) for index in range(len(suspects)))
    else:
        weight = np.maximum(alone, 0.0)
        parts = tuple(float(w) * total / max(float(weight.sum()), 1e-9) for w in weight)
    inside = tuple(float(steps[s.first : s.end].sum()) for s in suspects)
    return Prices(now, total, parts, alone, inside)


def _shapley(run_us: Callable[[frozenset[int]], float], index: int, count: int) -> float:
    others = [i for i in range(count) if i != index]
    value = 0.0
    for size in range(count):
        weight = factorial(size) * factorial(count - size - 1) / factorial(count)
        for removed in combinations(others, size):
            value += weight * (run_us(frozenset(removed)) - run_us(frozenset([*removed, index])))
    return value
