from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from reports_fixtures import make_run

from starprof.model.rundata import RunData, Steps
from starprof.reports import series

SECOND = 1_000_000_000


def sampled(times_s: list[float], values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"node": 0, "mono_ns": [int(t * SECOND) for t in times_s], "x": values})


def rate(times_s: list[float], counts: list[float], edges_s: list[float]) -> list[float]:
    edges = np.array(edges_s) * SECOND
    return series.rates(sampled(times_s, counts), ["node"], "x", edges)[(0,)].tolist()


def test_a_rate_is_exact_also_when_samples_do_not_meet_the_edges():
    assert rate([0, 0.7, 1.4, 2.1], [0, 7, 14, 21], [0, 1, 2]) == pytest.approx([10.0, 10.0])


def test_every_count_is_in_exactly_one_bin():
    times = np.sort(np.random.default_rng(1).integers(1, 100, 50) / 8).tolist()
    counts = np.cumsum(np.random.default_rng(2).integers(0, 9, 50)).astype(float).tolist()
    edges = np.linspace(times[0], times[-1], 8).tolist()
    counted = np.dot(rate(times, counts, edges), np.diff(edges))
    assert counted == pytest.approx(counts[-1] - counts[0])


def test_a_counter_that_was_reset_leaves_a_hole_and_no_negative_rate():
    rates = rate([0, 1, 2, 3, 4], [0, 10, 20, 5, 15], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(rates, [10.0, 10.0, np.nan, 10.0])


def test_a_gap_in_the_samples_is_a_hole_not_a_line():
    rates = rate([0, 1, 2, 12, 13, 14], [0, 1, 2, 12, 13, 14], list(range(15)))
    assert np.isfinite([*rates[:2], *rates[12:]]).all()
    assert np.isnan(rates[2:12]).all()


def test_nothing_is_drawn_before_the_first_or_after_the_last_sample():
    rates = rate([2, 3, 4], [0, 1, 2], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(rates, [np.nan, np.nan, 1.0, 1.0, np.nan])


def test_a_gauge_is_the_mean_of_its_samples_and_nothing_where_there_are_none():
    edges = np.array([0.0, 1.0, 2.0, 3.0]) * SECOND
    levels = series.levels(sampled([0.1, 0.5, 2.5], [10.0, 20.0, 7.0]), ["node"], "x", edges)[(0,)]
    np.testing.assert_array_equal(levels, [15.0, np.nan, 7.0])


def test_a_part_that_is_missing_counts_nothing_in_a_sum():
    both = series.total([np.array([1.0, np.nan, np.nan]), np.array([2.0, 3.0, np.nan])])
    np.testing.assert_array_equal(both, [3.0, 3.0, np.nan])


def test_the_grid_has_at_least_two_samples_a_bin():
    edges = series.grid(sampled(list(range(100)), [0.0] * 100), ["node"])
    assert len(edges) - 1 == 49


def skewed(offset_ns: int) -> RunData:
    """Two nodes whose clocks differ by `offset_ns`."""
    run = make_run(ranks=4, nodes=2)
    starts = run.steps.start_mono_ns + np.array([0, 0, offset_ns, offset_ns])[:, None]
    return replace(run, steps=Steps(run.steps.steps, run.steps.columns, starts))


def test_a_measured_clock_offset_is_used():
    clock = series.clock(replace(skewed(5 * SECOND), clock_offset_ns={0: (0, 0), 1: (-5 * SECOND, 100)}))
    assert clock == series.Clock({0: 0, 1: -5 * SECOND}, ())


def test_a_node_without_a_measured_offset_is_laid_on_the_first_step_and_named():
    clock = series.clock(replace(skewed(7 * SECOND), clock_offset_ns={0: (0, 0)}))
    assert clock == series.Clock({0: 0, 1: -7 * SECOND}, (1,))
