"""Histograms of every rank's slowdown: quantiles of any number of steps in a fixed place.

The bins are those of the numbers themselves: the exponent and the first bits of the mantissa of a single-precision
number say which bin it is in, so that nothing has to be computed for a bin but a shift. They are 0.5 to 0.8 % wide.
"""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.long.work import Singles

MANTISSA_BITS = 7
SHIFT = 23 - MANTISSA_BITS
FIRST = (127 - 1) << MANTISSA_BITS  # 0.5, bits of the exponent and the kept ones of the mantissa
BINS = 5 << MANTISSA_BITS  # up to 16


def counted(ratio: Singles, whole: bool) -> Ints:
    """How often each rank's ratio falls into each bin, shape (R, BINS); NaN is not counted.

    Args:
        ratio: own time over the peers' centre, shape (S, R).
        whole: nothing is NaN.
    """
    ranks = ratio.shape[1]
    place = np.ascontiguousarray(ratio).view(np.int32) >> SHIFT
    place -= FIRST
    np.clip(place, 0, BINS - 1, out=place)
    place += np.arange(ranks, dtype=np.int32) * BINS
    flat = place.ravel() if whole else place[~np.isnan(ratio)]
    return np.bincount(flat, minlength=ranks * BINS).reshape(ranks, BINS)


def quantile(counts: Ints, share: float) -> Floats:
    """Quantile of each rank's ratios, interpolated within its bins, shape (R,); NaN without any.

    Args:
        counts: see `counted`, shape (R, BINS).
        share: 0.5 is the median.
    """
    total = counts.sum(axis=1)
    below = np.cumsum(counts, axis=1)
    wanted = share * total
    place = np.minimum((below < wanted[:, None]).sum(axis=1), BINS - 1)
    rows = np.arange(len(total))
    inside = np.maximum(counts[rows, place], 1)
    part = np.clip((wanted - (below[rows, place] - counts[rows, place])) / inside, 0.0, 1.0)
    edges = ((np.arange(BINS + 1) + FIRST) << SHIFT).astype(np.int32).view(np.float32).astype(np.float64)
    value = edges[place] + part * (edges[place + 1] - edges[place])
    return np.where(total > 0, value, np.nan)
