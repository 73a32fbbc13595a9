"""Quantiles, tails, and rank statistics, from `scipy.special` and numpy.

`scipy.stats` has them all, but importing it takes half a second and 60 MB, which every `starprof analyze` would pay.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri, stdtrit

from starprof.analysis.arrays import Floats


def normal_upper_quantile(tail: float) -> float:
    """The z that a standard normal number exceeds with probability `tail`."""
    return -float(ndtri(tail))


def normal_upper_tail(z: Floats) -> Floats:
    """Probability that a standard normal number exceeds z, shape of `z`."""
    return np.asarray(ndtr(-z))


def student_upper_quantile(tail: float, freedom: float) -> float:
    """The t that Student's distribution with `freedom` degrees of freedom exceeds with probability `tail`."""
    return -float(stdtrit(freedom, tail))


def binomial_at_least(successes: int, trials: int, probability: float) -> float:
    """Probability of so many successes or more in `trials` independent trials."""
    return float(bdtrc(successes - 1, trials, probability)) if successes > 0 else 1.0


def rank_correlation(x: Floats, y: Floats) -> float:
    """Spearman's correlation of two arrays of shape (n,), ties at their mean rank; NaN where one is constant."""
    ranks_x, ranks_y = _mean_ranks(x), _mean_ranks(y)
    if ranks_x.std() == 0 or ranks_y.std() == 0:
        return float("nan")
    return float(np.corrcoef(ranks_x, ranks_y)[0, 1])


def median_slope(x: Floats, y: Floats) -> float:
    """Median of the slopes between all pairs of points with different x (Theil and Sen); memory grows with n².

    NaN where all x are the same.
    """
    dx, dy = x[:, None] - x, y[:, None] - y
    different = dx > 0
    return float(np.median(dy[different] / dx[different])) if different.any() else float("nan")


def _mean_ranks(values: Floats) -> Floats:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2.0)[which])
