"""Healthy running jobs are not accused; benchmarks/power.py --live does the same on more of them."""

from dataclasses import replace

import numpy as np
import pytest
from live import events

from starprof.analysis.live.rules import live_z
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
