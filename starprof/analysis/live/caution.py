"""How large and lasting noise may be that was watched for few steps only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.analysis.noise import MANY_RANKS, MAX_POOLED_RANKS, ROBUST_EFFICIENCY, Noise
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import student_upper_quantile

STEADIER_HALF = 0.8
"""Mean of the lower half of normal values lies this many standard deviations below their mean."""
MEMORY_ERRORS = 2.0
"""Standard errors that a memory may be longer than it looks."""
SHAPE_ERRORS = 2.0
"""Standard errors that noise may be more skewed, and its tails heavier, than it looks."""
SHORT_OF_MEMORIES = 10.0
"""A memory measured over n of its own lengths looks shorter than it is by about this many n-ths (simulated)."""


def cautious(noise: Noise, held: int, rows: Ints, ranks: int, settings: Settings) -> Noise:
    """The noise as it may be where few steps were watched, for all ranks (those without records: as usual).

    Its size and shape come from the ranks that happened to be steadier, and from residuals around means of the same
    steps; both make it look smaller and tamer, by what the number of independent steps says.
    """
    memory = _cautious_memory(noise.memory, held, len(rows))
    independent = max(held / noise.memory, 4.0)
    chosen = 1.0 - STEADIER_HALF / np.sqrt(2.0 * independent)
    sigma = np.full(ranks, float(np.median(noise.sigma)))
    sigma[rows] = noise.sigma
    sigma = sigma / (chosen * np.sqrt(1.0 - 1.0 / independent))
    pooled = independent * _pooled_ranks(len(rows))
    return replace(
        noise,
        sigma=sigma,
        memory=memory,
        # Standard errors of the skewness and kurtosis of normal values.
        skew=noise.skew + SHAPE_ERRORS * np.sqrt(6.0 / pooled),
        tails=noise.tails + SHAPE_ERRORS * np.sqrt(24.0 / pooled),
        spread_bar=_cautious_bar(noise, float(np.median(sigma)) ** 2 * memory / held, len(rows), settings),
    )


def _cautious_bar(noise: Noise, level_variance: float, ranks: int, settings: Settings) -> float:
    """The constant lateness that healthy differences may explain, where noise hides how large they are.

    Their variance is that of the ranks' levels less that of the levels' noise. Where the noise is the larger part,
    what is left says little: it counts for as many ranks as give a variance of that error without noise. What is not
    known of them is as `settings` expect; without noise the bar is the one that was measured.
    """
    many = ranks >= MANY_RANKS
    freedom = ranks - (2.0 if many else 1.0)
    seen = freedom if many else ROBUST_EFFICIENCY * freedom
    weight, expected = settings.prior_spread_weight, settings.prior_spread**2
    measured = max(0.0, ((weight + seen) * noise.spread**2 - weight * expected) / max(seen, 1e-9))
    likely = max(measured, expected)
    known = (likely / (likely + level_variance)) ** 2
    spread = np.sqrt((weight * expected + known * seen * measured) / (weight + known * seen))
    rate = settings.spread_false_alarm_rate / max(1, ranks)
    return max(noise.spread_bar, float(student_upper_quantile(rate, weight + known * freedom) * spread))


def _cautious_memory(memory: float, held: int, ranks: int) -> float:
    """The memory as long as it may be: corrected for what a short look at steady ranks misses, and for its error.

    Noise with the correlation r from one step to the next has the memory (1 + r) / (1 - r), so that its logarithm is
    twice Fisher's transform of r, whose standard error is 1 / sqrt(n (1 - r^2)) for n steps of all ranks it is from.
    """
    correlated = np.sqrt(1.0 - 1.0 / memory)
    likely = memory * (1.0 + SHORT_OF_MEMORIES * memory / held * correlated)
    error = (memory + 1.0) / np.sqrt(held * _pooled_ranks(ranks) * memory)
    return float(likely * np.exp(MEMORY_ERRORS * error))


def _pooled_ranks(ranks: int) -> int:
    """How many ranks `measure_noise` pools."""
    return int(np.clip(ranks // 2, 2, MAX_POOLED_RANKS))
