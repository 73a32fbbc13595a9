"""Healthy running jobs are not accused; benchmarks/false_alarms.py --detector live does the same on more of them."""

from dataclasses import replace

import numpy as np
import pytest
from live import events

from starprof.analysis.live.caution import cautious
from starprof.analysis.live.rules import live_z
from starprof.analysis.noise import measure_noise
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic import SyntheticRun


def healthy(seed):
    """8-128 ranks, CV 1-20 %, AR(1) 0-0.9, constant differences of 0-3 %."""
    rng = np.random.default_rng([17, seed])
    return SyntheticRun(
        ranks=int(np.exp(rng.uniform(np.log(8), np.log(128)))),
        steps=int(rng.integers(120, 300)),
        seed=seed,
        cv=rng.uniform(0.01, 0.2),
        ar1=rng.uniform(0.0, 0.9),
        spread=rng.uniform(0.0, 0.03),
        counters=False,
    )


@pytest.mark.parametrize("part", range(4))
def test_healthy_streams_name_nobody_not_even_provisionally(part):
    assert {seed: found for seed in range(part, 24, 4) if (found := events(healthy(seed)))} == {}


@pytest.mark.parametrize("seed", range(3))
def test_heavy_tails_that_last_for_some_steps_name_nobody(seed):
    assert events(SyntheticRun(ranks=40, steps=200, seed=seed, cv=0.13, ar1=0.7, heavy_tail=True, counters=False)) == []


def test_heavy_tails_on_a_thousand_ranks_name_nobody():
    run = SyntheticRun(ranks=1024, steps=150, seed=1, cv=0.2, ar1=0.5, spread=0.02, heavy_tail=True, counters=False)
    assert events(run) == []


@pytest.mark.parametrize("seed", range(12))
def test_noise_whose_memory_a_short_look_underrates_names_nobody(seed):
    assert events(SyntheticRun(ranks=21, steps=100, seed=seed, cv=0.17, ar1=0.25, spread=0.0125, counters=False)) == []


@pytest.mark.parametrize(("ar1", "memory"), [(0.0, 1.0), (0.25, 1.67), (0.5, 3.0), (0.8, 9.0)])
@pytest.mark.parametrize("ranks", [8, 64])
def test_the_error_of_a_mean_is_not_underrated_on_average_nor_overrated_by_much(ar1, memory, ranks):
    steps = 12 * int(np.ceil(memory)) + 36
    ratio = []
    for seed in range(20):
        noise = SyntheticRun(ranks=ranks, steps=steps, seed=seed, ar1=ar1)._noise(
            np.random.default_rng(seed), (ranks, steps + 50), ar1
        )[:, 50:]
        late = 0.1 * (noise - np.median(noise, axis=0))
        measured = cautious(measure_noise(late, 1.0 + 0.1 * noise, DEFAULT), steps, np.arange(ranks), ranks, DEFAULT)
        ratio.append(float(measured.sigma.mean()) / 0.1 * np.sqrt(measured.memory / memory))
    assert 0.97 <= np.mean(ratio) <= 1.3


def test_the_documented_rate_is_kept_where_it_is_high_enough_to_be_counted():
    settings = replace(DEFAULT, live_false_alarm_rate=0.25, live_horizon_steps=150)
    runs = [SyntheticRun(ranks=8, steps=150, seed=seed, cv=0.1, spread=0.0, counters=False) for seed in range(24)]
    accused = sum(bool(events(run, settings)) for run in runs)
    assert accused <= 24 * 0.25 + 3.0 * np.sqrt(24 * 0.25 * 0.75)


def test_the_bar_rises_with_ranks_and_looks_and_falls_with_the_rate():
    usual = live_z(16, DEFAULT)
    assert live_z(1024, DEFAULT) > usual
    assert live_z(16, replace(DEFAULT, live_horizon_steps=100_000)) > usual
    assert live_z(16, replace(DEFAULT, live_false_alarm_rate=0.05)) < usual
