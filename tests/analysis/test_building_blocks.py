"""The parts under the diagnosis, each against a plain definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from starprof.analysis.causes.base import longest_run, ms, pct, rank_names
from starprof.analysis.changepoint import segments
from starprof.analysis.counters import growth
from starprof.analysis.noise import measure_noise
from starprof.analysis.own_time import own_time
from starprof.analysis.peers import median_of_others, peer_groups, slow_mode
from starprof.analysis.settings import DEFAULT
from starprof.analysis.shapes import period_of
from starprof.analysis.synthetic import SyntheticRun

matrices = arrays(
    np.float64,
    st.tuples(st.integers(2, 9), st.integers(1, 4)),
    elements=st.one_of(st.integers(0, 5).map(float), st.just(np.nan)),
)


@settings(deadline=None)
@given(matrices)
def test_median_of_others_is_the_median_of_the_others(values):
    result = median_of_others(values)
    for rank, step in np.ndindex(values.shape):
        others = np.delete(values[:, step], rank)
        others = others[~np.isnan(others)]
        expected = np.median(others) if len(others) else np.nan
        assert result[rank, step] == expected or (np.isnan(expected) and np.isnan(result[rank, step]))


def test_data_parallel_replicas_of_a_stage_are_peers():
    roles = [{"dp": d, "pp": p} for d in range(2) for p in range(3)]
    assert peer_groups(roles).tolist() == [0, 1, 2, 0, 1, 2]
    assert peer_groups([{}, {}]).tolist() == [0, 0]


def test_a_slow_majority_is_split_off_and_a_slow_minority_left_to_the_median():
    level = np.full((8, 50), 100.0) + np.random.default_rng(0).normal(0, 1, (8, 50))
    groups = np.zeros(8, np.int64)
    many, few = level.copy(), level.copy()
    many[3:] *= 2
    few[6:] *= 2
    assert slow_mode(many, groups).tolist() == [False] * 3 + [True] * 5
    assert not slow_mode(few, groups).any()
    assert not slow_mode(level, groups).any()


def test_own_time_leaves_waiting_out_and_adds_up_to_the_cycle():
    run = SyntheticRun(steps=60)
    own = own_time(run.data(), DEFAULT)
    steps = run.data().steps
    mine = steps["dur_us"] - steps["blocked_us"]
    assert own.shape == (4, 57)
    assert np.allclose(own.cycle[:, 5], (mine - steps["optimizer_us"])[:, 8] + steps["optimizer_us"][:, 7])
    assert np.allclose(own.transfer, steps["blocked_us"][:, 3:].min(axis=0))


def test_noise_is_measured_with_its_memory():
    own = own_time(SyntheticRun(ranks=16, steps=4000, cv=0.1, ar1=0.8, spread=0.0).data(), DEFAULT)
    centre = own.work.mean()
    noise = measure_noise((own.work - np.median(own.work, axis=0)) / centre, own.work / centre, DEFAULT)
    assert np.median(noise.sigma) == pytest.approx(0.1, rel=0.2)
    assert noise.memory == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.35)


@pytest.mark.parametrize("cut", [5, 57, 140])
def test_change_points_are_found_to_the_step(cut):
    series = np.r_[np.zeros(cut), np.full(200 - cut, 0.5)] + np.random.default_rng(2).normal(0, 0.05, 200)
    assert [part.start for part in segments(series, 0.05, 1.0)] == [0, cut]


def test_change_points_of_long_series_are_refined_to_the_step():
    series = np.r_[np.zeros(7_123), np.ones(2_877)] + np.random.default_rng(3).normal(0, 0.05, 10_000)
    assert [part.start for part in segments(series, 0.05, 1.0)] == [0, 7_123]


@pytest.mark.parametrize(
    ("columns", "period"),
    [
        (np.arange(5, 100, 10), 10),
        (np.array([5, 15, 25, 45, 55, 65, 75]), 10),
        (np.array([0, 50, 101, 150, 199, 250]), 50),
        (np.array([5, 15, 25]), None),
        (np.array([3, 4, 9, 30, 31, 44, 70]), None),
        (np.arange(10), None),
    ],
)
def test_period_of_hits(columns, period):
    assert period_of(columns) == period


SECOND = 1e9


def test_growth_interpolates_at_the_window_edges():
    times = np.arange(0, 10) * SECOND
    grown = growth(times, np.arange(10) * 100.0, 2.5 * SECOND, 5.0 * SECOND)
    assert (grown.amount, grown.seconds, grown.per_second) == (250.0, 2.5, 100.0)


def test_a_counter_that_was_reset_leaves_a_gap_and_no_negative_rate():
    times = np.arange(6) * SECOND
    grown = growth(times, np.array([100.0, 200.0, 300.0, 0.0, 100.0, 200.0]), 0.0, 5 * SECOND)
    assert (grown.amount, grown.seconds) == (400.0, 4.0)


def test_a_hole_in_the_samples_is_no_time_without_growth():
    times = np.r_[np.arange(10), 100 + np.arange(10)] * SECOND
    values = np.r_[np.arange(10), 1000 + np.arange(10)] * 1.0
    grown = growth(times, values, 0.0, 109 * SECOND)
    assert (grown.amount, grown.seconds) == (18.0, 18.0)


def test_null_samples_are_skipped_and_no_samples_have_no_rate():
    times = np.arange(4) * SECOND
    assert growth(times, np.array([0.0, np.nan, 20.0, 30.0]), 0.0, 3 * SECOND).amount == 30.0
    assert np.isnan(growth(times, np.full(4, np.nan), 0.0, 3 * SECOND).per_second)


def test_longest_run():
    assert longest_run(np.array([0, 1, 1, 0, 1], bool)) == (1, 3)
    assert longest_run(np.zeros(3, bool)) == (0, 0)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((1, 2), "ranks 1 and 2"),
        ((0, 1, 2, 3, 8), "ranks 0-3 and 8"),
        ((1, 3, 5), "ranks 1, 3 and 5"),
    ],
)
def test_ranks_in_words(ranks, text):
    assert rank_names(ranks) == text


@pytest.mark.parametrize(
    ("us", "text"), [(12.4, "12 us"), (1_500, "1.5 ms"), (150_000, "150 ms"), (20.5e6, "20.5 s"), (-3_000, "-3 ms")]
)
def test_durations_in_words(us, text):
    assert ms(us) == text


def test_shares_in_words():
    assert (pct(0.5), pct(0.012)) == ("50 %", "1.2 %")
