"""The regression: robust, one node after the other, and sure over all nodes and looks together.

The logarithm of a run's time is that of its group plus an effect of each bad node (a synchronous job runs at the pace
of its slowest part, and few nodes are bad). Nodes enter one at a time, the most telling first. Permutations say whether
one is telling: the times (bounded, so that single odd runs count little) are dealt anew among the runs of a group that
share the nodes found so far, and the largest statistic over all nodes is what a node's must exceed
(P. Westfall and S. Young, Resampling-Based Multiple Testing, 1993; D. Freedman and D. Lane, J. Bus. Econ. Stat. 1,
292-298, 1983, for the residuals). Effects and intervals come from a Huber regression with a sandwich estimate of its
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.placement.runs import Design, dummies
from starprof.analysis.statistics import student_upper_quantile

HUBER = 1.345
"""95 % efficient where the noise is normal (P. Huber, Robust Statistics, 1981)."""
ROUNDS = 50
CHUNK = 500
LEAST_SPREAD = 1e-4
"""Runs of the same job are never alike to more than this share, whatever a table was rounded to."""


@dataclass(frozen=True)
class Fit:
    """A robust regression.

    Attributes:
        effect: of each column, in natural logarithms, shape (k,).
        error: standard error, shape (k,).
        residual: of each run, shape (n,).
        freedom: degrees of freedom left.
    """

    effect: Floats
    error: Floats
    residual: Floats
    freedom: int


def huber(design: Design, columns: Sequence[int]) -> Fit:
    """Regression of log time on the groups and the units in `columns`."""
    x = np.column_stack([dummies(design.strata), design.member[:, list(columns)]])
    y = design.log_s
    inverse = np.linalg.pinv(x.T @ x)
    beta = inverse @ x.T @ y
    for _ in range(ROUNDS):
        residual = y - x @ beta
        weight = np.minimum(1.0, HUBER * _scale(residual) / np.maximum(np.abs(residual), 1e-12))
        inverse = np.linalg.pinv((x * weight[:, None]).T @ x)
        before, beta = beta, inverse @ (x * weight[:, None]).T @ y
        if np.abs(beta - before).max(initial=0.0) < 1e-9:
            break
    residual = y - x @ beta
    weight = np.minimum(1.0, HUBER * _scale(residual) / np.maximum(np.abs(residual), 1e-12))
    leverage = np.einsum("ij,jk,ik->i", x * weight[:, None], inverse, x)
    spread = weight * residual / np.clip(1.0 - leverage, 0.1, None)
    bread = inverse @ x.T
    covariance = (bread * spread**2) @ bread.T
    freedom = max(len(y) - int(np.linalg.matrix_rank(x)), 0)
    k = len(columns)
    # A node in a few runs only has too few residuals of its own: the pooled scale is the least that is believed.
    pooled = _scale(residual) ** 2 * np.diag(inverse)
    error = np.sqrt(np.maximum(np.diag(covariance), pooled))
    return Fit(beta[-k:] if k else np.zeros(0), error[-k:] if k else np.zeros(0), residual, freedom)


def _scale(residual: Floats) -> float:
    """Normal-consistent spread; from the mean of the larger half where most residuals are zero."""
    return max(1.4826 * float(np.median(np.abs(residual))), LEAST_SPREAD)


def statistics(design: Design, chosen: Sequence[int], columns: Sequence[int]) -> tuple[Floats, Floats, Ints]:
    """How telling each column is beside the chosen ones.

    Returns:
        The statistics (standard normal under chance, larger = slower), shape (k,); the unit regressors that they are
        made with, shape (n, k); and the strata within which runs may change places.
    """
    base = np.column_stack([dummies(design.strata), design.member[:, list(chosen)]])
    fit = huber(design, chosen)
    score = _bounded(fit.residual, _strata(design, chosen))
    rest = design.member[:, list(columns)]
    rest = rest - base @ (np.linalg.pinv(base) @ rest)
    norm = np.linalg.norm(rest, axis=0)
    unit = np.where(norm > 1e-6, rest / np.maximum(norm, 1e-12), 0.0)
    return score @ unit, unit, _strata(design, chosen)


def _bounded(residual: Floats, strata: Ints) -> Floats:
    """Residuals in robust standard deviations, bounded, without the mean of their stratum, of unit spread."""
    score = np.clip(residual / _scale(residual), -HUBER * 2, HUBER * 2)
    count = np.bincount(strata)
    score = score - (np.bincount(strata, score) / count)[strata]
    spread = float(np.sqrt((score**2).sum() / max(len(score) - len(count), 1)))
    return score / spread if spread > 0 else score


def _strata(design: Design, chosen: Sequence[int]) -> Ints:
    """Runs of one group that share the chosen nodes."""
    keys = np.column_stack([design.strata, design.member[:, list(chosen)].astype(np.int64)])
    _, strata = np.unique(keys, axis=0, return_inverse=True)
    return strata.reshape(-1).astype(np.int64)


def largest_by_chance(score: Floats, unit: Floats, strata: Ints, times: int, seed: int) -> Floats:
    """The largest statistic over the columns when runs of a stratum change places, shape (times,)."""
    generator = np.random.default_rng(seed)
    order = np.argsort(strata, kind="stable")
    result = np.empty(times)
    for start in range(0, times, CHUNK):
        count = min(CHUNK, times - start)
        shuffled = np.argsort(strata[None, :] + generator.random((count, len(score))), axis=1, kind="stable")
        dealt = np.empty((count, len(score)))
        np.put_along_axis(dealt, np.broadcast_to(order, shuffled.shape), score[shuffled], axis=1)
        result[start : start + count] = (dealt @ unit).max(axis=1, initial=-np.inf)
    return result


def score_of(design: Design, chosen: Sequence[int]) -> Floats:
    """The bounded residuals that `statistics` are made of."""
    return _bounded(huber(design, chosen).residual, _strata(design, chosen))


def half_width(fit: Fit, looks: int, level: float) -> float:
    """Standard errors to either side so that all `looks` intervals hold together."""
    if fit.freedom < 1:
        return float("inf")
    return student_upper_quantile((1.0 - level) / (2 * max(looks, 1)), fit.freedom)
