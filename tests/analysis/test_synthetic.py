"""The synthetic run is only worth something if it obeys the rules of synchronous training."""

import numpy as np
import pytest

from starprof.analysis.synthetic import CpuHog, Quota, Slow, SlowNic, SyntheticRun, synthetic_run
from starprof.model.schema import BY_NAME, STEP_SPANS


def test_all_ranks_take_equally_long_and_the_culprit_blocks_least():
    steps = synthetic_run(4, 200, faults=[Slow("backward", (2,), us=30_000)]).steps
    cycle = np.diff(steps.start_mono_ns, axis=1)
    assert np.allclose(cycle[:, 1:].sum(axis=1), cycle[0, 1:].sum(), rtol=0.01)
    assert steps["blocked_us"].mean(axis=1).argmin() == 2


def test_spans_add_up_to_the_step():
    steps = synthetic_run(4, 50, faults=[Slow("checkpoint", (0,), us=500_000, every=10)]).steps
    assert np.array_equal(sum(steps[name] for name in STEP_SPANS), steps["dur_us"])


def test_same_recipe_same_run_and_other_seed_another():
    first, again, other = (synthetic_run(3, 30, seed=s).steps["dur_us"] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_true_cost_of_a_chronic_fault_is_what_it_adds_to_every_step():
    run = SyntheticRun(cv=0.01, steps=300, faults=(Slow("forward", (1,), us=50_000),))
    assert run.cost_seconds(0) == pytest.approx(300 * 0.05, rel=0.05)
    assert run.cost_seconds() == pytest.approx(run.cost_seconds(0))


def test_costs_of_overlapping_faults_add_up_to_the_whole():
    run = SyntheticRun(faults=(Slow("forward", (1,), us=50_000), Slow("backward", (2,), us=20_000, start=100)))
    assert run.cost_seconds(0) + run.cost_seconds(1) == pytest.approx(run.cost_seconds())


def test_frames_have_the_columns_of_the_schema_and_counters_never_fall():
    data = synthetic_run(4, 100, nodes=2, faults=[CpuHog(1, start=40), Quota(3), SlowNic(1)])
    for name, frame in data.samples.items():
        assert list(frame.columns) == list(BY_NAME[name].names), name
    for _, of_rank in data.samples["process_sample"].query("rank >= 0").groupby("rank"):
        assert (of_rank["cpu_us"].diff().dropna() >= 0).all()


def test_noise_has_the_requested_size_and_memory():
    own = SyntheticRun(steps=20_000, ranks=2, cv=0.1, ar1=0.8, spread=0.0).own_us["forward"][:, 1:]
    relative = own / own.mean(axis=1, keepdims=True) - 1
    assert relative.std() == pytest.approx(0.1, rel=0.15)
    lag_one = np.corrcoef(relative[0, 1:], relative[0, :-1])[0, 1]
    assert lag_one == pytest.approx(0.75, abs=0.1)
