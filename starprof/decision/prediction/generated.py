"""Generated runs to train and test predictors on: slowness that lasts, passes, comes back or is random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic import CpuHog, Dealt, Quota, Slow, SlowNic, SyntheticRun
from starprof.decision.prediction.history import Series, series_of

if TYPE_CHECKING:
    from starprof.analysis.synthetic import Fault

STEPS = 300


def recipe(number: int, seed: int = 0) -> SyntheticRun:
    """The recipe of a run by its number; the same for the same number and seed."""
    rng = np.random.default_rng([seed, number])
    ranks = int(rng.choice([4, 8, 12]))
    phases = {
        name: us * rng.uniform(0.5, 2.0)
        for name, us in {
            "data_wait": 2_000.0,
            "h2d": 500.0,
            "forward": 20_000.0,
            "backward": 36_000.0,
            "optimizer": 4_000.0,
            "unaccounted": 1_000.0,
        }.items()
    }
    return SyntheticRun(
        ranks=ranks,
        steps=STEPS,
        seed=int(rng.integers(2**31)),
        nodes=int(rng.choice([1, 2, 4])),
        cv=float(rng.uniform(0.01, 0.08)),
        ar1=float(rng.choice([0.0, 0.3, 0.7, 0.9])),
        spread=float(rng.choice([0.005, 0.03, 0.08])),
        heavy_tail=bool(rng.random() < 0.25),
        phases_us=phases,
        faults=tuple(_fault(rng, ranks) for _ in range(int(rng.integers(1, 4)))),
    )


def runs(count: int, seed: int = 0) -> list[Series]:
    """So many runs."""
    found = [series_of(recipe(number, seed).data()) for number in range(count)]
    return [one for one in found if one is not None]


def _fault(rng: np.random.Generator, ranks: int) -> Fault:
    """One cause of slowness; its ranks, size and time are random."""
    rank = int(rng.integers(ranks))
    start = int(rng.integers(0, STEPS // 2))
    end = int(rng.integers(start + 20, STEPS)) if rng.random() < 0.7 else None
    size_us = float(rng.uniform(8_000.0, 80_000.0))
    match int(rng.integers(8)):
        case 0:
            return CpuHog(rank, float(rng.uniform(0.1, 0.6)), start=start, end=end)
        case 1:
            return Quota(rank, size_us, share=float(rng.uniform(0.2, 0.9)), start=start, end=end)
        case 2:
            return Slow("backward", (rank,), us=size_us, start=start, end=end)
        case 3:
            return Slow("data_wait", (rank,), us=size_us, start=start, end=end, every=int(rng.integers(2, 21)))
        case 4:
            return Slow("backward", us=size_us, start=start, end=end, rotating=True, share=float(rng.uniform(0.2, 1)))
        case 5:
            return Slow("forward", (rank,), us=3 * size_us, start=start, trend=True)
        case 6:
            return SlowNic(0, size_us, start=start, end=end)
        case _:
            return Dealt(
                "tokens", larger=(rank,), factor=float(rng.uniform(1.0, 1.6)), spread=float(rng.uniform(0, 0.2))
            )
