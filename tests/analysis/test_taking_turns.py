"""Most ranks are slow in every step, in turn: nobody is late against the median, and the job is slow all the same."""

import numpy as np
import pytest
from verdicts import blamed

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model.rundata import RunData


def in_turn(slow, ranks=8, steps=300, us=45_000.0, seed=5):
    """`slow` of the ranks, other ones in each step, lose about `us` of host time."""
    rng = np.random.default_rng(seed)
    run = SyntheticRun(ranks, steps, seed=seed, cv=0.02, counters=False).data()
    hit = np.argsort(rng.random((ranks, steps)), axis=0) < slow
    extra = np.where(hit, us * rng.uniform(0.8, 1.2, (ranks, steps)), 0.0)
    columns = dict(run.steps.columns)
    own = columns["dur_us"] - columns["blocked_us"] + extra
    transfer = columns["blocked_us"].min(axis=0)
    columns["unaccounted_us"] = columns["unaccounted_us"] + extra
    columns["dur_us"] = np.broadcast_to(own.max(axis=0) + transfer, own.shape).copy()
    columns["blocked_us"] = columns["dur_us"] - own
    return RunData(**{**vars(run), "steps": type(run.steps)(run.steps.steps, columns, run.steps.start_mono_ns)})


@pytest.mark.parametrize("slow", [5, 6, 7])
def test_most_ranks_late_in_turn_are_rotating_and_nobody_is_blamed(slow):
    verdict = diagnose(in_turn(slow))
    assert (verdict.verdict, blamed(verdict)) == ("rotating", set())
    # What all could do in each step is what the quick ones do.
    assert verdict.cost.share == pytest.approx(50.0 / (50.0 + 67.0), abs=0.1)


def test_ranks_that_are_quick_in_every_step_are_not_taking_turns():
    run = SyntheticRun(8, 300, counters=False, faults=(Slow("forward", tuple(range(2, 8)), us=45_000.0),))
    assert diagnose(run.data()).verdict != "rotating"


@pytest.mark.parametrize("seed", range(6))
def test_wide_noise_has_no_second_mode(seed):
    run = SyntheticRun(8, 400, seed=seed, cv=0.2, heavy_tail=seed % 2 == 1, counters=False)
    assert diagnose(run.data()).verdict == "none"
