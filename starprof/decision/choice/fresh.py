"""Modes whose rounds wait for gradients on the newest parameters, in simulated rounds: m-sync, folding, deadline.

A late worker is not interrupted: it ends its gradient, which is dropped or folded into the round under way, and
begins anew in the middle of that round. So rounds take longer than the m-th order statistic of the times says, which
holds where late workers are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice.waiting import WARM_UP, Rounds, Tally, apart, nth

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats, Ints

    Closing = Callable[[Floats], Floats]
    """When fresh gradients are ready, shape (C, N), to when the round closes, (C,)."""


def simulate(
    iteration_s: Floats, closing: Closing, candidates: int, rounds: int, *, caps: Ints | None = None, seed: int = 0
) -> Rounds:
    """Simulate rounds of fresh gradients.

    Args:
        iteration_s: shape (W, N); each iteration takes its worker's time of a row drawn at random.
        closing: the rule.
        candidates: C.
        rounds: of each.
        caps: staleness up to which late gradients are folded, shape (C,); None: all are dropped.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    times = apart(iteration_s, rng)
    rows = rng.integers(len(times), size=(rounds + 1, 2))
    shape = (candidates, times.shape[1])
    ready = np.tile(times[rows[0, 0]], (candidates, 1))
    age = np.zeros(shape, np.int32)
    tally = Tally(shape, int(WARM_UP * rounds))
    for number in range(rounds):
        again, after = times[rows[number + 1]]
        stale = age > 0
        afresh = ready + again * stale
        now = closing(afresh)
        taken, late = afresh <= now[:, None], stale & (ready <= now[:, None])
        computed = taken.sum(axis=1) + late.sum(axis=1)
        if caps is None:
            tally.note(number, now, taken, None, computed)
        else:
            folded = late & (age <= caps[:, None])
            tally.note(number, now, taken.astype(np.int32) + folded, age * folded, computed)
        ready = np.where(taken, now[:, None] + after, np.where(late, afresh, ready))
        age = (age * ~late + 1) * ~taken
    return tally.rounds_until(now)


def first(m: Ints) -> Closing:
    """m-sync: a round closes with its m-th gradient, for each candidate its m, shape (C,)."""
    return lambda afresh: nth(afresh, m - 1)


def deadline(after_s: Floats) -> Closing:
    """A round closes some time after its first gradient, shape (C,), or when everybody is there."""

    def closing(afresh: Floats) -> Floats:
        return np.asarray(np.minimum(afresh.max(axis=1), afresh.min(axis=1) + after_s))

    return closing
