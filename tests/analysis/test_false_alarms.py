"""Healthy runs are not accused, whatever their noise; benchmarks/false_alarms.py does the same on more runs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdicts import blamed, verdict_of

from starprof.analysis.detect import candidates
from starprof.analysis.noise import measure_noise
from starprof.analysis.settings import DEFAULT

RUNS = 320


def healthy_recipe(seed):
    """8-256 ranks, CV 1-20 %, AR(1) 0-0.9, constant differences of 0-3 %."""
    rng = np.random.default_rng([11, seed])
    return {
        "ranks": int(np.exp(rng.uniform(np.log(8), np.log(256)))),
        "steps": int(rng.integers(100, 500)),
        "seed": seed,
        "cv": rng.uniform(0.01, 0.2),
        "ar1": rng.uniform(0.0, 0.9),
        "spread": rng.uniform(0.0, 0.03),
        "counters": False,
    }


@pytest.mark.parametrize("part", range(8))
def test_no_healthy_run_is_accused(part):
    accused = {}
    for seed in range(part, RUNS, 8):
        verdict = verdict_of(**healthy_recipe(seed))
        if verdict.verdict != "none":
            accused[seed] = (verdict.verdict, blamed(verdict))
    assert accused == {}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    ranks=st.integers(2, 24),
    steps=st.integers(60, 300),
    seed=st.integers(0, 10_000),
    cv=st.floats(0.01, 0.2),
    ar1=st.floats(0.0, 0.9),
)
def test_small_and_short_healthy_runs_are_not_accused(ranks, steps, seed, cv, ar1):
    assert blamed(verdict_of(ranks=ranks, steps=steps, seed=seed, cv=cv, ar1=ar1, spread=0.01, counters=False)) == set()


@pytest.mark.parametrize("seed", range(6))
def test_heavy_tailed_noise_accuses_nobody(seed):
    recipe = {"cv": 0.2, "heavy_tail": True, "ar1": 0.3, "spread": 0.02, "counters": False}
    assert blamed(verdict_of(ranks=4, steps=300, seed=seed, **recipe)) == set()


@pytest.mark.parametrize("seed", range(3))
def test_one_long_excursion_of_a_heavy_tail_with_a_memory_accuses_nobody(seed):
    recipe = {"cv": 0.09, "heavy_tail": True, "ar1": 0.6, "spread": 0.014, "counters": False}
    assert blamed(verdict_of(ranks=160, steps=400, seed=seed, **recipe)) == set()


def test_ranks_that_always_differ_a_little_are_no_news():
    assert verdict_of(ranks=16, spread=0.015, steps=1000, cv=0.01, counters=False).verdict == "none"


def noise_alone(seed, settings, ranks, spread):
    """Lateness of some ranks over 64 steps of normal noise, and the noise as measured."""
    rng = np.random.default_rng([31, seed])
    work = 1.0 + spread * rng.standard_normal((ranks, 1)) + 0.02 * rng.standard_normal((ranks, 64))
    late = work - np.median(work, axis=0)
    return late, measure_noise(late, work, settings)


def at_most(rate, runs):
    return runs * rate + 3.0 * np.sqrt(runs * rate * (1.0 - rate))


@pytest.mark.parametrize("rate", [0.3, 0.05])
def test_the_documented_rate_of_noise_is_kept_where_it_is_high_enough_to_be_counted(rate):
    settings = replace(DEFAULT, false_alarm_rate=rate, noise_margin_z=0.0, min_lateness=0.0)
    late = sum(candidates(*noise_alone(seed, settings, 12, 0.0), settings).any() for seed in range(100))
    assert late <= at_most(rate, 100)


@pytest.mark.parametrize("rate", [0.3, 0.05])
def test_the_documented_rate_of_constant_differences_is_kept_from_some_dozens_of_ranks_on(rate):
    settings = replace(DEFAULT, spread_false_alarm_rate=rate)
    late = 0
    for seed in range(100):
        lateness, noise = noise_alone(seed, settings, 32, 0.03)
        late += bool((lateness.mean(axis=1) >= noise.spread_bar).any())
    assert 0 < late <= at_most(rate, 100)
