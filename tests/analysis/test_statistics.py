"""Quantiles, tails and rank statistics agree with scipy.stats, and the diagnosis starts without it."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from starprof.analysis.statistics import (
    binomial_at_least,
    median_slope,
    normal_upper_quantile,
    normal_upper_tail,
    rank_correlation,
    student_upper_quantile,
)


@pytest.mark.parametrize("tail", [1e-12, 1e-7, 1e-4, 0.05, 0.5, 0.9])
def test_upper_quantiles(tail: float) -> None:
    assert normal_upper_quantile(tail) == pytest.approx(stats.norm.isf(tail), rel=1e-12, abs=1e-12)
    for freedom in (0.5, 1.0, 3.7, 29.0, 1e5):
        expected = stats.t.isf(tail, freedom)
        assert student_upper_quantile(tail, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_normal_tail_far_out() -> None:
    z = np.array([-3.0, 0.0, 2.0, 12.0, 37.0])
    np.testing.assert_allclose(normal_upper_tail(z), stats.norm.sf(z), rtol=1e-12)


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (1, 7), (7, 7), (8, 7), (40, 1000), (3, 100_000), (0, 0)])
def test_binomial_tail(successes: int, trials: int) -> None:
    for probability in (1e-6, 0.02, 0.7):
        expected = stats.binom.sf(successes - 1, trials, probability)
        assert binomial_at_least(successes, trials, probability) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_rank_correlation_with_ties() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 9, 200).astype(float)
    y = x + rng.integers(0, 9, 200)
    assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, rel=1e-12)
    assert np.isnan(rank_correlation(x, np.ones(200)))


def test_median_slope_with_equal_places() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 30, 100).astype(float)
    y = 2.5 * x + rng.standard_normal(100)
    assert median_slope(x, y) == pytest.approx(stats.theilslopes(y, x)[0], rel=1e-12)
    assert np.isnan(median_slope(np.ones(5), np.arange(5.0)))


def test_the_diagnosis_starts_without_heavy_parts_of_scipy() -> None:
    code = "import sys, starprof.analysis, starprof.importers.load; print('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
