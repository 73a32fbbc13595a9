"""How much healthy ranks differ: from step to step, how long that lasts, and constantly between ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.settings import Settings
from starprof.analysis.statistics import normal_upper_quantile, student_upper_quantile

MAD_TO_SIGMA = 1.4826
SHORTEST_HALF = 1.349
ROBUST_EFFICIENCY = 0.37  # of the shortest half, against the standard deviation of normal values
MAX_POOLED_RANKS = 64
FEW_RANKS = 3
MANY_RANKS = 8
FEW_RANKS_VARIANCE = 2.0  # a difference of two ranks
RARE = 0.05
RARE_STEPS = 100
CUT_MARGIN = 5
WINSOR = 3.0
WINSORED_VARIANCE = 1.0053  # of normal values over that of the same values drawn in to +-WINSOR
FEW_VALUES_MAD = 1.2  # the median absolute deviation of n normal values is too small by about this / n


@dataclass(frozen=True)
class Noise:
    """Noise of the lateness, as a share of the healthy step time.

    Attributes:
        sigma: standard deviation from step to step, shape (R,).
        memory: variance of a mean of n correlated steps is sigma^2 * memory / n (1 = independent steps).
        spread: standard deviation of the ranks' constant differences.
        spread_bar: constant lateness that those differences explain, in all ranks but for the agreed false-alarm rate.
        skew: skewness of a single step's noise.
        tails: its excess kurtosis.
        steps: how many steps it was measured on.
    """

    sigma: Floats
    memory: float
    spread: float
    spread_bar: float
    skew: float = 0.0
    tails: float = 0.0
    steps: int = 0

    def error_of_mean(self, row: int, steps: float) -> float:
        """Standard error of a rank's mean lateness over some steps."""
        return float(self.sigma[row] * np.sqrt(self.memory / max(steps, 1.0)))

    def margin(self, z: float, steps: Floats | float, most: float) -> Floats:
        """What must be added to a normal quantile for a mean over some steps.

        The mean of n independent values with skewness g and excess kurtosis k has its quantile at about
        z + g (z^2 - 1) / (6 sqrt n) + k (z^3 - 3 z) / (24 n) (Cornish and Fisher). Noise with a long memory makes few
        independent values; its memory itself is known the less the shorter the run, and of a heavy tail a short run has
        not seen the worst.

        Args:
            z: quantile of the normal distribution.
            steps: steps in the mean, any shape.
            most: largest margin; the series says nothing where it grows beyond all bounds.
        """
        independent = np.maximum(np.asarray(steps, dtype=np.float64) / self.memory, 1.0)
        skewed = self.skew * (z**2 - 1.0) / (6.0 * np.sqrt(independent))
        unseen = 1.0 + RARE_STEPS / max(self.steps, 1)
        heavy = unseen * self.tails * (z**3 - 3.0 * z) / (24.0 * independent)
        unsure = z * self.memory / max(self.steps, 1)
        margin: Floats = np.clip(skewed + heavy + unsure, 0.0, most)
        return margin


def measure_noise(lateness: Floats, work: Floats, settings: Settings, excluded: Bools | None = None) -> Noise:
    """Pool the noise over the steadier half of the ranks, so that slow ranks do not hide behind their own slowness.

    Args:
        lateness: share of the healthy step time, capped, shape (R, S).
        work: the ranks' own time in the same unit, shape (R, S).
        settings: thresholds.
        excluded: ranks known to be slow, shape (R,).
    """
    ranks, steps = lateness.shape
    usual = np.flatnonzero(~excluded) if excluded is not None and not excluded.all() else np.arange(ranks)
    stepwise = without_steps(lateness)
    if len(usual) <= FEW_RANKS:
        # Each one's slowness is in its few peers' lateness too; the steadiest one's own time is free of it.
        own = work[usual] - np.nanmean(work[usual], axis=1, keepdims=True)
        steadiest = np.nan_to_num(own[np.argmin(np.nanstd(own, axis=1))], nan=0.0)
        pool = np.sqrt(FEW_RANKS_VARIANCE) * np.clip(steadiest, -1.0, 1.0)[None, :]
    else:
        whole = lateness[usual] - lateness[usual].mean(axis=1, keepdims=True)
        steady = np.argsort(np.std(whole, axis=1))[: max(2, len(usual) // 2)]
        pool = whole[steady[:: max(1, len(steady) // MAX_POOLED_RANKS)]]
    pooled = float(np.sqrt(np.mean(pool**2)))
    memory = memory_of(pool)
    memory *= _restlessness(pool, pooled, memory, settings) ** 2
    level = np.median(lateness[usual], axis=1)
    variance, known = _spread(level)
    measured = max(0.0, variance - pooled**2 * memory / steps)
    weight = settings.prior_spread_weight
    spread = np.sqrt((weight * settings.prior_spread**2 + known * measured) / (weight + known))
    # The fewer ranks there are, the less is known about how much they differ: Student's quantile.
    freedom = weight + len(usual) - (2 if len(usual) >= MANY_RANKS else 1)
    z = student_upper_quantile(settings.spread_false_alarm_rate / ranks, freedom)
    sigma = np.maximum(np.maximum(np.std(stepwise, axis=1), pooled), 1e-6)
    skew, tails = _shape(pool)
    return Noise(sigma, memory, float(spread), float(z * spread), skew, tails, steps)


def _shape(pool: Floats) -> tuple[float, float]:
    """Skewness to the late side and excess kurtosis of pooled noise; neither counts when it favours the accuser."""
    sigma = float(np.sqrt(np.mean(pool**2))) + 1e-18
    return max(0.0, float(np.mean((pool / sigma) ** 3))), max(0.0, float(np.mean((pool / sigma) ** 4)) - 3.0)


def _spread(level: Floats) -> tuple[float, float]:
    """Variance of healthy ranks' levels when nearly half of them may be slow, and how many values it is worth.

    With many ranks the latest one is left out, so that it does not raise the bar that it is held against (the test of
    Student for one value against the others), and the others are drawn in to a few robust standard deviations. With
    few ranks, where half can be slow by chance, it comes from the shortest half; with two or three ranks one slow rank
    moves all levels, and nothing can be measured.
    """
    n = len(level)
    if n <= FEW_RANKS:
        return 0.0, ROBUST_EFFICIENCY * (n - 1)
    ordered = np.sort(level)
    if n >= MANY_RANKS:
        others = ordered[:-1] - np.median(ordered[:-1])
        reach = WINSOR * MAD_TO_SIGMA * (1.0 + FEW_VALUES_MAD / n) * float(np.median(np.abs(others)))
        drawn_in = np.clip(others, -reach, reach)
        return float(WINSORED_VARIANCE * np.sum(drawn_in**2) / (n - 2)), n - 2.0
    half = (n + 1) // 2
    shortest = float(np.min(ordered[half - 1 :] - ordered[: n - half + 1]))
    # Expected length for n normal values, fitted to simulations for n from 4 to 256 (even n; odd n give a little more).
    return (shortest / (SHORTEST_HALF * (1.0 - 1.8 * n**-0.62))) ** 2, ROBUST_EFFICIENCY * (n - 1)


def without_steps(values: Floats, changes: int = 3) -> Floats:
    """Residuals after taking out the best few level changes of each row (binary segmentation), shape (R, S).

    All rows are split in lock step: each round cuts, in every row, the part whose best cut gains most.
    """
    rows, steps = values.shape
    total = np.concatenate([np.zeros((rows, 1)), np.cumsum(values, axis=1)], axis=1)
    # Edges of the parts of each row; parts of no length stand for cuts that did not pay.
    edges = np.tile(np.array([0, steps], np.int64), (rows, 1))
    for _ in range(changes):
        gain, cut = _best_cut(total, edges)
        edges = np.sort(np.concatenate([edges, np.where(gain > 0.0, cut, 0)[:, None]], axis=1), axis=1)
    result = values.copy()
    length = np.diff(edges, axis=1)
    mean = np.diff(np.take_along_axis(total, edges, axis=1), axis=1) / np.maximum(length, 1)
    result -= np.repeat(mean.ravel(), length.ravel()).reshape(rows, steps)
    return result


def _best_cut(total: Floats, edges: Ints) -> tuple[Floats, Ints]:
    """Best cut of any part of each row: its gain in squared error (0: none) and its place, shape (R,).

    Args:
        total: running totals of the rows, shape (R, S + 1).
        edges: edges of the parts, sorted, shape (R, P + 1).
    """
    rows = len(total)
    gain, place = np.zeros(rows), np.zeros(rows, np.int64)
    for part in range(edges.shape[1] - 1):
        first, last = edges[:, part], edges[:, part + 1]
        long_enough = np.flatnonzero(last - first >= 4 * CUT_MARGIN)
        if len(long_enough) == 0:
            continue
        here, cut = _best_cut_within(total[long_enough], first[long_enough], last[long_enough])
        better = here > gain[long_enough]
        gain[long_enough[better]], place[long_enough[better]] = here[better], cut[better]
    return gain, place


def _best_cut_within(total: Floats, first: Ints, last: Ints) -> tuple[Floats, Ints]:
    """The same for one part [first, last) of each row."""
    low, high = int(first.min()) + CUT_MARGIN, int(last.max()) - CUT_MARGIN
    at = np.arange(low, high + 1)[None, :]
    start, end = first[:, None], last[:, None]
    before, after = np.take_along_axis(total, start, axis=1), np.take_along_axis(total, end, axis=1)
    length, count = (end - start).astype(np.float64), (at - start).astype(np.float64)
    inside = (at >= start + CUT_MARGIN) & (at <= end - CUT_MARGIN)
    off = total[:, low : high + 1] - before - (after - before) / length * count
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(inside, off**2 * length / (count * (length - count)), 0.0)
    best = np.argmax(gain, axis=1)
    return np.take_along_axis(gain, best[:, None], axis=1)[:, 0], low + best


def _restlessness(residual: Floats, sigma: float, memory: float, settings: Settings) -> float:
    """How much further the steady ranks stray over some window than stationary noise would, 1 or more.

    A busy machine's noise comes in phases; what steady ranks do now and then is no straggler's sign in others.
    """
    ranks, steps = residual.shape
    total = np.concatenate([np.zeros((ranks, 1)), np.cumsum(residual, axis=1)], axis=1)
    furthest, windows = 0.0, 0
    for width in window_widths(steps // 2, max(settings.min_slow_steps, int(2 * memory))):
        first = window_starts(steps, width)
        mean = (total[:, first + width] - total[:, first]) / width
        furthest = max(furthest, float(np.abs(mean).max()) * np.sqrt(width / (memory * sigma**2 + 1e-18)))
        windows += len(first)
    usual = normal_upper_quantile(RARE / max(1, 2 * windows * ranks))
    return max(1.0, furthest / usual)


def window_widths(steps: int, smallest: int) -> list[int]:
    """Dyadic window widths up to the whole series."""
    widths, width = [], smallest
    while width < steps:
        widths.append(width)
        width *= 2
    return [*widths, steps] if steps > 0 else []


def window_starts(steps: int, width: int) -> Ints:
    """Starts of half-overlapping windows."""
    return np.arange(0, steps - width + 1, max(1, width // 2))


def memory_of(residual: Floats) -> float:
    """1 + 2 * sum of the pooled autocorrelations, up to the first lag without correlation."""
    ranks, n = residual.shape
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(residual, size, axis=1)) ** 2
    covariance = np.fft.irfft(spectrum, size, axis=1)[:, : max(2, n // 4)].sum(axis=0)
    correlation = covariance / max(float(covariance[0]), 1e-18)
    floor = max(0.02, 2.0 / np.sqrt(n * ranks))
    below = np.flatnonzero(correlation[1:] < floor)
    lags = int(below[0]) if len(below) else len(correlation) - 1
    memory = 1.0 + 2.0 * float(correlation[1 : lags + 1].sum())
    # Taking out the mean biases every correlation down by about memory / n.
    memory += 2.0 * lags * memory / n
    return float(np.clip(memory, 1.0, n / 4))
