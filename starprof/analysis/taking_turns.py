"""Most ranks are late in nearly every step, but not always the same ones: who is quick changes from step to step.

The median of the peers is slow then, so nobody is late against it. What shows it are ranks that are EARLY: each rank
needs far less in some of its steps, so that what it needs in the others is no work of its own. The quick steps must be
a mode of their own, with a valley between them and the rest: the lower tail of wide noise has none.
"""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.comparison import Comparison
from starprof.analysis.cost import Reduction
from starprof.analysis.slowness import Slowness

MIN_RANKS = 4
MIN_QUICK, MAX_QUICK = 0.03, 0.5
"""Share of all steps of all ranks that are quick: fewer are chance, more are what is usual."""
UNEVEN = 3.0
"""Most by which a rank's share of quick steps may differ from the mean share: else certain ranks are quick."""
VALLEY = 0.2
"""Most that lies in the valley between the modes, against the thinner of the two."""
BAND = 0.2
"""Half width of a band around a mode or the valley, as a share of their distance."""


def most_are_late_in_turn(comparison: Comparison) -> list[Slowness]:
    """One slowness of all ranks, of source `rotating`; empty when there is nothing of the kind."""
    own, settings = comparison.own, comparison.settings
    lateness = np.nan_to_num(comparison.lateness_us / own.healthy_step_us, nan=0.0)
    quick: Bools = lateness < -settings.min_spike
    if own.shape[0] < MIN_RANKS or not _all_are_quick_at_times(quick) or not _two_modes(lateness, quick):
        return []
    steps = np.asarray((~quick).any(axis=0))
    reductions = {row: _more_than_quick(own.work[row], quick[row]) for row in range(own.shape[0])}
    return [
        Slowness(
            kind="rotating",
            rows=tuple(range(own.shape[0])),
            start=0,
            end=own.shape[1],
            onset=(0, 0),
            steps=steps,
            reduction=Reduction(reductions),
            source="rotating",
            blame=False,
        )
    ]


def _all_are_quick_at_times(quick: Bools) -> bool:
    """Every rank has about its part of the quick steps."""
    shares = quick.mean(axis=1)
    mean = float(shares.mean())
    return MIN_QUICK <= mean <= MAX_QUICK and bool((shares >= mean / UNEVEN).all() and (shares <= mean * UNEVEN).all())


def _two_modes(lateness: Floats, quick: Bools) -> bool:
    """Whether few values lie between the quick ones and the others."""
    low, high = float(np.median(lateness[quick])), float(np.median(lateness[~quick]))
    half = BAND * (high - low)

    def around(middle: float) -> int:
        return int((np.abs(lateness - middle) <= half).sum())

    return around((low + high) / 2) <= VALLEY * min(around(low), around(high))


def _more_than_quick(work: Floats, quick: Bools) -> Floats:
    """What a rank needs in its other steps beyond its quick ones, shape (S,)."""
    level = float(np.nanmedian(work[quick]))
    return np.where(quick, 0.0, np.maximum(0.0, np.nan_to_num(work - level, nan=0.0)))
