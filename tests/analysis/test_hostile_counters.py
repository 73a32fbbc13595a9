"""Counters of any kind can't change who is slow, and never break the diagnosis."""

import numpy as np
import pandas as pd
import pytest
from verdicts import blamed

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SlowNic, SyntheticRun
from starprof.model import causes

VALUES = np.array([np.nan, 0.0, -1.0, 1.0, 1e3, 1e9, 1e18, 9.2e18, -1e15, 0.5])
ODD = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300])


def scrambled(data, seed, values):
    rng = np.random.default_rng(seed)
    for name, frame in data.samples.items():
        if not name.endswith("_sample"):
            continue
        keys = {"node", "mono_ns", "rank", "is_rank", "gpu", "nic", "socket", "cpu", "cgroup", "disk", "pid"}
        for column in sorted(set(frame.columns) - keys):
            if rng.random() < 0.7:
                frame[column] = rng.choice(values, len(frame))
    return data


@pytest.mark.parametrize("seed", range(6))
def test_random_counters_do_not_change_who_is_blamed(seed):
    run = SyntheticRun(seed=seed, gpus=True, infiniband=True, nodes=2, faults=(Slow("backward", (1,), us=40_000),))
    verdict = diagnose(scrambled(run.data(), seed, VALUES))
    assert blamed(verdict) == {1}
    assert all(finding.cause in causes.ALL for finding in verdict.findings)


@pytest.mark.parametrize("seed", range(3))
def test_infinite_and_huge_counters_do_not_change_who_is_blamed(seed):
    run = SyntheticRun(seed=seed, gpus=True, infiniband=True, nodes=2, faults=(Slow("h2d", (1,), us=40_000),))
    assert blamed(diagnose(scrambled(run.data(), seed, ODD))) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_random_counters_beside_a_slow_reduction_do_not_break_it(seed):
    run = SyntheticRun(seed=seed, gpus=True, infiniband=True, nodes=3, faults=(SlowNic(1, start=100, seen=False),))
    assert diagnose(scrambled(run.data(), seed, VALUES)).findings


def test_frames_with_hardly_any_columns_are_read_as_not_measured():
    data = SyntheticRun(gpus=True, nodes=2, faults=(Slow("backward", (1,), us=40_000, start=100),)).data()
    for name, frame in data.samples.items():
        data.samples[name] = frame[[c for c in ("node", "mono_ns") if c in frame]]
    assert blamed(diagnose(data)) == {1}


def test_frames_of_nothing_but_null_are_read_as_not_measured():
    data = SyntheticRun(gpus=True, nodes=2, faults=(Slow("forward", (1,), us=40_000, start=100),)).data()
    for name, frame in data.samples.items():
        data.samples[name] = pd.DataFrame({c: pd.Series([None, None], dtype=object) for c in frame.columns})
    assert blamed(diagnose(data)) == {1}
