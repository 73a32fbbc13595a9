"""Intervals of means over steps that are not independent: a bootstrap of blocks of them."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.statistics import normal_upper_quantile, student_upper_quantile

RESAMPLES = 1000
SEED = 20
CONFIDENCE = 0.95


def mean_interval(values: Floats) -> tuple[float, float]:
    """95 % interval of the mean of a series of steps, from its scatter; the mean alone for a single step.

    Circular blocks of n^(1/3) steps are drawn again and again (Politis and Romano 1992), so that slowness which comes
    and goes over several steps counts as few observations. Of few blocks the scatter is poorly known: deviations are
    widened as Student's t is against the normal distribution. The same series always gives the same interval.

    Args:
        values: in step order, shape (S,).
    """
    count = len(values)
    mean = float(values.mean())
    if count < 2:
        return mean, mean
    length = max(1, round(count ** (1 / 3)))
    blocks = -(-count // length)
    total = np.cumsum(np.r_[0.0, values, values[: length - 1]])
    of_block = (total[length:] - total[:-length]) / length
    drawn = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, blocks))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(of_block[drawn].mean(axis=1), [tail, 1 - tail])
    free = count / length - 1
    wider = student_upper_quantile(tail, max(free, 1.0)) / normal_upper_quantile(tail) * (1 + 1 / max(free, 1.0)) ** 0.5
    return mean + (float(low) - mean) * wider, mean + (float(high) - mean) * wider
