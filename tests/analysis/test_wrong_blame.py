"""Over many seeds and louder noise: whoever is named really was slowed down."""

import pytest
from verdicts import blamed

from starprof.analysis import diagnose
from starprof.analysis.synthetic import CpuHog, Pinned, Quota, Slow, SlowNic, SyntheticRun

SEEDS = range(1, 5)

FAULTS = {
    "backward": ((Slow("backward", (1,), us=20_000, start=100),), {}, {1}),
    "optimizer": ((Slow("optimizer", (1,), us=30_000, start=100),), {}, {1}),
    "window": ((Slow("forward", (2,), us=30_000, start=100, end=200),), {}, {2}),
    "periodic": ((Slow("backward", (2,), us=500_000, every=10),), {}, {2}),
    "trend": ((Slow("backward", (1,), us=60_000, trend=True),), {}, {1}),
    "hog": ((CpuHog(1, start=120),), {}, {1}),
    "quota": ((Quota(3, start=80),), {}, {3}),
    "pinned": ((Pinned(2),), {}, {2}),
    "nic": ((SlowNic(1, start=120),), {"nodes": 4}, {1}),
    "two": ((Slow("backward", (1,), us=40_000, start=60), Slow("data_wait", (2,), us=30_000, start=200)), {}, {1, 2}),
    "half": ((Slow("backward", (4, 5, 6, 7), us=120_000),), {"ranks": 8}, {4, 5, 6, 7}),
    "two ranks": ((Slow("backward", (1,), us=20_000, start=100),), {"ranks": 2}, {1}),
    "checkpoint": ((Slow("checkpoint", (0,), us=500_000, every=10),), {}, set()),
    "rotating": ((Slow("backward", us=50_000, rotating=True),), {}, set()),
    "uniform": ((Slow("backward", us=30_000, start=150),), {}, set()),
    "one-off": ((Slow("backward", (3,), us=500_000, start=150, end=151),), {}, set()),
    "unseen": ((SlowNic(1, start=120, seen=False),), {"nodes": 4}, set()),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_the_slowed_ranks_are_named(name, seed):
    faults, recipe, slowed = FAULTS[name]
    run = SyntheticRun(seed=seed, cv=0.08, ar1=0.3, faults=faults, **recipe)
    assert blamed(diagnose(run.data())) == slowed
