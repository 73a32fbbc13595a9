"""A gain that was measured, with what is not known of it."""

from __future__ import annotations

import math

import numpy as np

from starprof.advisor.events import Gain
from starprof.analysis.arrays import Floats

BLOCKS = 6
"""Steps next to each other hang together: the error is that of means over so many blocks of them."""

Z = 2.23
"""Student's 97.5 % quantile for two times five degrees of freedom."""


def gain_of(before_s: Floats, after_s: Floats, progress: float) -> Gain:
    """Time for the same progress before over after.

    Args:
        before_s: durations of native steps.
        after_s: of updates.
        progress: of an update, in native steps.
    """
    (before, before_error), (after, after_error) = _mean(before_s), _mean(after_s)
    middle = before / after * progress
    spread = math.exp(Z * math.hypot(before_error, after_error))
    return Gain(middle, middle / spread, middle * spread)


def _mean(times_s: Floats) -> tuple[float, float]:
    """The mean and its relative standard error."""
    blocks = [float(block.mean()) for block in np.array_split(times_s, min(BLOCKS, len(times_s)))]
    mean = float(times_s.mean())
    if len(blocks) < 2:
        return mean, 1.0
    return mean, float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks)) / mean
