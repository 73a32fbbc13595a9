"""The steps in which late ranks were well: what their counters in the slow steps are compared with."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import median_filter

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.comparison import Comparison
from starprof.analysis.slowness import Slowness

SMOOTH_STEPS = 9
AS_LATE = 0.5
CLEAR_Z = 3.0
MAD_TO_SIGMA = 1.4826
MOST_RANKS = 16
"""A look at so many of the late ranks is enough."""


def healthy_past(comparison: Comparison, slowness: Slowness) -> Bools:
    """Steps outside of a slowness, without what the same ranks are late at other times, shape (S,).

    A fault that comes and goes may be too short at times to be a finding of its own. Its counters show it all the
    same, and would pass for usual.
    """
    past = np.ones(comparison.own.shape[1], bool)
    past[slowness.start : slowness.end] = False
    if slowness.elsewhere is not None:
        past &= ~slowness.elsewhere
    if slowness.source != "rank" or slowness.period is not None or not past.any():
        return past
    for row in slowness.rows[:MOST_RANKS]:
        past &= ~_as_late(np.nan_to_num(comparison.lateness_us[row]), slowness.steps, past)
    return past


def _as_late(late_us: Floats, slow: Bools, past: Bools) -> Bools:
    """Steps about which a rank is about as late as in the slow ones; none where its noise would pass for that."""
    smooth: Floats = median_filter(late_us, size=SMOOTH_STEPS, mode="nearest")
    usual = float(np.median(smooth[past])) if past.any() else 0.0
    least = AS_LATE * (float(np.median(late_us[slow])) - usual) if slow.any() else 0.0
    noise = MAD_TO_SIGMA * float(np.median(np.abs(smooth[past] - usual))) if past.any() else 0.0
    if least <= CLEAR_Z * noise:
        return np.zeros(len(late_us), bool)
    return np.asarray(smooth > usual + least)
