"""How heavy the tail of iteration times is, and whether it justifies asynchronous updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.decision.choice.stragglers import Stragglers

TAIL_SHARE = 0.1
FEWEST = 10
HOPELESS = 1.0
"""Up to this tail index the mean of a time is infinite."""
CHURN = 0.8


@dataclass(frozen=True, slots=True)
class Tail:
    """Tail of the workers' times, each against its own median: P(T > t) falls as t to the power -index.

    Attributes:
        index: Hill's estimate; None: too few iterations.
        low: 95 % interval of it, from the largest times taken as independent.
        high: likewise.
        used: how many of the largest times it is made of.
    """

    index: float | None
    low: float = 0.0
    high: float = math.inf
    used: int = 0


def tail_of(iteration_s: Floats) -> Tail:
    """Hill's estimate over the largest tenth of all times, shape (W, N)."""
    ratio = np.sort((iteration_s / np.median(iteration_s, axis=0)).ravel())
    used = int(TAIL_SHARE * len(ratio))
    if used < FEWEST or ratio[-used - 1] <= 0:
        return Tail(None)
    mean = float(np.log(ratio[-used:] / ratio[-used - 1]).mean())
    if mean <= 0:
        return Tail(math.inf, math.inf, math.inf, used)
    error = 1.96 / math.sqrt(used)
    return Tail(1.0 / mean, max(0.0, 1.0 - error) / mean, (1.0 + error) / mean, used)


@dataclass(frozen=True, slots=True)
class AsyncTest:
    """Whether asynchronous updates are justified, and why."""

    justified: bool
    reason: str


def async_test(tail: Tail, late: Stragglers, workers: int, best_sync: float, best_async: float) -> AsyncTest:
    """Asynchronous updates need tails that make waiting hopeless, or slowness that moves every round, and must pay.

    The m-th of N times has a finite mean only where index (N - m + 1) > 1. All this is ours; the theory it follows
    is that of arXiv 2602.03802: else synchronous updates of the right number of gradients are nearly optimal.

    Args:
        tail: of the times.
        late: who is expected to be late.
        workers: N.
        best_sync: gain of the best mode without stale gradients over ssgd.
        best_async: of the best one with them.
    """
    if tail.index is None:
        told = "too few iterations to tell how heavy the tail is"
    elif tail.high <= HOPELESS:
        told = f"the tail index is {tail.index:.2g} (at most {tail.high:.2g}): waiting for all has no finite mean"
    else:
        told = f"the tail index is {tail.index:.3g} ({tail.low:.3g} to {tail.high:.3g}): waiting is not hopeless"
    heavy = tail.index is not None and tail.high <= HOPELESS
    moves = late.moving and late.churn >= CHURN
    if moves:
        told += f"; who is late changes from round to round (churn {late.churn:.2f})"
    if not heavy and not moves:
        return AsyncTest(False, f"{told}, and who is late does not change with every round")
    if best_async <= best_sync:
        return AsyncTest(
            False,
            f"{told}; yet waiting for some of {workers} gains {best_sync:.2f}x, stale gradients {best_async:.2f}x",
        )
    return AsyncTest(True, f"{told}; stale gradients gain {best_async:.2f}x, waiting for some {best_sync:.2f}x")
