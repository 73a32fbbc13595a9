"""Whether a change of level is one, or noise that drifts: a series with a memory strays from its mean and comes back.

The series is fitted twice as x[t] = phi x[t - 1] + level + noise, with the change and without it. Drifting noise is
fitted nearly as well without; a real change is not, because the noise around it does not drift. The figure is the
likelihood ratio m log(rss_without / rss_with), m the degrees of freedom that are left.
"""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.changepoint import Segment

LIKELIHOOD_BAR = 25.0
"""Noise without any change exceeds this, at the best of all places, in fewer than one series in a thousand."""
MAX_RECORDS = 5_000
"""Longer series tell the memory of their noise well enough by themselves."""


def without_drift(values: Floats, parts: list[Segment]) -> list[Segment]:
    """Take back the changes between stretches that drifting noise explains, the least sure first.

    Args:
        values: shape (S,), spikes cut down.
        parts: stretches of one level, in order.
    """
    parts = list(parts)
    while len(parts) > 1 and len(values) <= MAX_RECORDS:
        ratios = [_ratio(values, parts, cut) for cut in range(1, len(parts))]
        weakest = int(np.argmin(ratios))
        if ratios[weakest] >= LIKELIHOOD_BAR:
            break
        start, end = parts[weakest].start, parts[weakest + 1].end
        parts[weakest : weakest + 2] = [Segment(start, end, float(values[start:end].mean()))]
    return parts


def no_drift(values: Floats, shape: Floats) -> bool:
    """Whether a shape (such as a ramp) is there beyond what drifting noise explains."""
    with_it = _rss(values, np.column_stack([np.ones(len(values)), shape]))
    without = _rss(values, np.ones((len(values), 1)))
    return _likelihood(len(values) - 3, without, with_it) >= LIKELIHOOD_BAR


def _ratio(values: Floats, parts: list[Segment], cut: int) -> float:
    """Likelihood ratio of the change between parts[cut - 1] and parts[cut]."""
    whole = _rss(values, _columns(len(values), [p.start for p in parts]))
    joined = _rss(values, _columns(len(values), [p.start for i, p in enumerate(parts) if i != cut]))
    return _likelihood(len(values) - 2 * len(parts), joined, whole)


def _likelihood(freedom: int, without: float, with_it: float) -> float:
    return float(freedom * np.log(max(without, 1e-300) / max(with_it, 1e-300)))


def _columns(n: int, starts: list[int]) -> Floats:
    """Level of each part, and its first record, which comes from the level before."""
    index = np.arange(n)
    levels = [index >= start for start in starts]
    firsts = [index == start for start in starts if start > 0]
    return np.column_stack([*levels, *firsts]).astype(np.float64)


def _rss(values: Floats, columns: Floats) -> float:
    """Residual sum of squares of the regression on the record before and the columns."""
    design = np.column_stack([values[:-1], columns[1:]])
    fitted = design @ np.linalg.lstsq(design, values[1:], rcond=None)[0]
    return float(((values[1:] - fitted) ** 2).sum())
