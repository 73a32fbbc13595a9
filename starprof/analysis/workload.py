"""How much of a step's time its own size explains: tokens, samples or micro-batches that change over a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.statistics import median_slope, rank_correlation

SIZES = ("tokens", "samples", "micro_batches")
FEW_SIZES = 12
MIN_RECORDS = 5
MIN_CORRELATION = 0.3
MAX_FITTED = 500


@dataclass(frozen=True)
class Workload:
    """What sizes explain.

    Attributes:
        effect: logarithm of the factor by which a record's size changes its time, shape (S,).
        known: records whose size is frequent enough to say so, shape (S,).
        words: what was taken out, "" when nothing.
    """

    effect: Floats
    known: Bools
    words: str


def workload_of(values: Floats, sizes: Mapping[str, Floats]) -> Workload:
    """Take out what a changing size explains.

    Args:
        values: logarithms of the step times, no NaN, shape (S,).
        sizes: per column of `SIZES` the records' sizes, NaN where not told, shape (S,).
    """
    nothing = Workload(np.zeros(len(values)), np.ones(len(values), bool), "")
    for name in SIZES:
        size = sizes.get(name)
        if size is None or not (np.isfinite(size) & (size > 0)).all():
            continue
        different, which, counts = np.unique(size, return_inverse=True, return_counts=True)
        if len(different) == 1:
            continue
        what = name.replace("_", "-")
        if len(different) <= FEW_SIZES:
            return _by_value(values, which, counts, f"{what} of a step ({different[0]:g} to {different[-1]:g})")
        return _by_fit(values, np.log(size), f"{what} of a step ({different[0]:g} to {different[-1]:g})") or nothing
    return nothing


def _by_value(values: Floats, which: np.ndarray[tuple[int], np.dtype[np.intp]], counts: object, what: str) -> Workload:
    """A few sizes: each is compared with itself only."""
    count = np.asarray(counts)
    medians = np.array([np.median(values[which == i]) for i in range(len(count))])
    effect = medians[which] - medians[int(np.argmax(count))]
    known = count[which] >= MIN_RECORDS
    words = f"The {what} change; steps are compared with steps of the same size only, and a slowness that begins "
    return Workload(effect, known, words + "together with a new size can't be told from the size.")


def _by_fit(values: Floats, size: Floats, what: str) -> Workload | None:
    """Many sizes: the time grows with a power of the size, fitted by the median of slopes (Theil-Sen)."""
    if abs(rank_correlation(size, values)) < MIN_CORRELATION:
        return None
    picked = np.unique(np.linspace(0, len(values) - 1, MAX_FITTED).astype(int))
    slope = median_slope(size[picked], values[picked])
    if slope <= 0:
        return None
    effect = slope * (size - np.median(size))
    words = f"The {what} change and explain the time of a step with exponent {slope:.2f}; that is taken out."
    return Workload(effect, np.ones(len(values), bool), words)
