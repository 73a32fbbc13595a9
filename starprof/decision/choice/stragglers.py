"""Who is expected to be late: STAR's 20 % rule (arXiv 2512.09685), steadied, and what it can't see."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats

TAG = 0.20
RELEASE = 0.15
"""Who is tagged stays so until below this: else a time near the limit would make a new set in every decision."""
MOVING_SHARE = 0.2
"""Slowness moves when in so many iterations somebody is late who usually isn't."""


def straggles(iteration_s: Floats, tag: float = TAG) -> Bools:
    """STAR's tag: more than 20 % over the quickest worker of the same iteration, shape as given, workers last."""
    return np.asarray(iteration_s > (1.0 + tag) * iteration_s.min(axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Who is expected to be late.

    Attributes:
        ranks: those that usually are.
        moving_share: share of the iterations in which one of the others is, against the median of its iteration.
        churn: how much the set of an iteration's late ones changes to the next: 0 the same, 1 nobody stays.
    """

    ranks: frozenset[int]
    moving_share: float
    churn: float

    @property
    def moving(self) -> bool:
        """Whether slowness moves between workers."""
        return self.moving_share >= MOVING_SHARE

    @property
    def none(self) -> bool:
        """Nobody is expected to be late."""
        return not self.ranks and not self.moving

    def key(self) -> tuple[frozenset[int], bool]:
        """What must change for a mode to be reconsidered."""
        return self.ranks, self.moving


def expected(iteration_s: Floats, workers: Sequence[int], before: Collection[int] = ()) -> Stragglers:
    """Who is expected to be late, by expected times.

    Args:
        iteration_s: shape (W, N).
        workers: of the columns.
        before: who was expected to be late at the last choice.
    """
    usual = iteration_s.mean(axis=0)
    limit = np.array([RELEASE if worker in before else TAG for worker in workers])
    late = usual > (1.0 + limit) * usual.min()
    seldom = iteration_s[:, ~late]
    moved = seldom > (1.0 + TAG) * np.median(iteration_s, axis=1, keepdims=True)
    ranks = frozenset(worker for worker, is_late in zip(workers, late.tolist(), strict=True) if is_late)
    return Stragglers(ranks, float(moved.any(axis=1).mean()), _churn(iteration_s))


def _churn(iteration_s: Floats) -> float:
    """Mean of 1 - |both| / |either| over successive iterations in which anybody was late."""
    late = iteration_s > (1.0 + TAG) * np.median(iteration_s, axis=1, keepdims=True)
    both = (late[1:] & late[:-1]).sum(axis=1)
    either = (late[1:] | late[:-1]).sum(axis=1)
    known = either > 0
    return float(1.0 - (both[known] / either[known]).mean()) if known.any() else 0.0
