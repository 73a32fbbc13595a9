"""The gradient noise scale against gradients whose covariance and mean are known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.sync.noise_scale import LEAST, NoiseScale, Squares, squares_of


def looked_at(updates, workers, signal, noise, weights=None, seed=0, size=200):
    """Updates of gradients around a mean of squared norm `signal`, with a covariance of trace `noise`."""
    draw = np.random.default_rng(seed)
    mean = np.full(size, math.sqrt(signal / size))
    weights = [1.0 / workers] * workers if weights is None else weights
    for _ in range(updates):
        gradients = mean + draw.normal(0.0, math.sqrt(noise / size), (workers, size))
        own = [float(g @ g) for g in gradients]
        total = sum(w * g for w, g in zip(weights, gradients, strict=True))
        yield squares_of(own, weights, float(total @ total))


def estimate_of(all_seen, **settings_):
    scale = NoiseScale(**settings_)
    for seen in all_seen:
        scale.add(seen)
    return scale.estimate()


def test_equal_weights_give_the_known_formula():
    seen = squares_of([4.0, 8.0, 6.0], [1 / 3] * 3, 3.0)
    assert seen.signal == pytest.approx((3 * 3.0 - 6.0) / 2)
    assert seen.noise == pytest.approx((6.0 - 3.0) * 3 / 2)


@given(
    signal=st.floats(0.2, 20.0),
    ratio=st.floats(0.3, 20.0),
    workers=st.integers(2, 8),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_signal_and_noise_are_found(signal, ratio, workers, seed):
    found = estimate_of(looked_at(300, workers, signal, ratio * signal, seed=seed), newest=1 / 300)
    assert found.noise == pytest.approx(ratio * signal, rel=0.1)
    # Six standard errors of a ratio, of which noise in the signal is the larger part.
    assert found.scale == pytest.approx(ratio, rel=0.2 + 0.1 * ratio / workers)


@given(raw=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=6), seed=st.integers(0, 2**20))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_weights_tell_the_same(raw, seed):
    found = estimate_of(looked_at(400, len(raw), 2.0, 6.0, weights=raw, seed=seed), newest=1 / 400)
    assert found.noise == pytest.approx(6.0, rel=0.15)
    assert found.signal == pytest.approx(2.0, rel=0.35)


@pytest.mark.parametrize(("updates", "ratio"), [(12, 3.0), (60, 3.0), (60, 30.0), (200, 10.0)])
def test_the_interval_covers_as_often_as_it_says(updates, ratio):
    covered = 0
    for seed in range(200):
        found = estimate_of(looked_at(updates, 4, 1.0, ratio, seed=seed, size=60))
        covered += found.low <= ratio <= found.high
    assert covered >= 180  # 95 % of 200 are 190; fewer than 180 would be three standard errors below


def test_where_no_signal_is_seen_there_is_no_upper_end():
    found = estimate_of(looked_at(50, 4, 0.0, 5.0, seed=3))
    assert found.high == math.inf
    assert found.low >= 0.0
    assert found.noise == pytest.approx(5.0, rel=0.1)


def test_there_is_no_interval_before_there_are_some_updates():
    scale = NoiseScale()
    assert scale.estimate() is None
    for seen in looked_at(LEAST - 1, 4, 1.0, 1.0):
        scale.add(seen)
    assert (scale.estimate().low, scale.estimate().high) == (0.0, math.inf)


def test_the_estimate_follows_a_training_whose_noise_rises():
    scale = NoiseScale()
    for seen in [*looked_at(300, 8, 1.0, 2.0), *looked_at(300, 8, 1.0, 20.0, seed=1)]:
        scale.add(seen)
    found = scale.estimate()
    assert found.low <= 20.0 <= found.high


def test_what_tells_nothing_is_left_out():
    assert squares_of([4.0], [1.0], 4.0) is None
    assert squares_of([4.0, math.inf], [0.5, 0.5], 3.0) is None
    assert squares_of([4.0, 5.0], [0.5, 0.5], math.nan) is None
    assert squares_of([4.0, 5.0], [0.0, 0.0], 0.0) is None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 0.9)), min_size=1, max_size=40))
def test_whatever_comes_the_interval_is_one(seen):
    scale = NoiseScale()
    for local, update, share in seen:
        scale.add(Squares(local, update, share))
    found = scale.estimate()
    assert 0.0 <= found.low <= found.high
    assert not math.isnan(found.scale)
