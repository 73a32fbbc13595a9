"""Checkpoints, evaluation, garbage collection, compilation: work done now and then is not a slow rank."""

import numpy as np
import pytest
from verdicts import blamed, only_finding, verdict_of, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes


@pytest.mark.parametrize(("span", "cause"), [("checkpoint", causes.CHECKPOINT), ("eval", causes.EVALUATION)])
def test_rank_0_saving_or_evaluating_is_periodic_work_and_nobody_is_blamed(span, cause):
    run = SyntheticRun(faults=(Slow(span, (0,), us=500_000, every=10, start=9),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.cause, finding.ranks) == ("none", "periodic", cause, ())
    assert "every 10 steps" in words(finding)
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_periodic_work_of_rank_0_outside_all_spans_blames_nobody():
    verdict = verdict_of(Slow("unaccounted", (0,), us=400_000, every=20, start=20))
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("none", "periodic", ())
    assert "Rank 0" in words(finding)


def test_a_checkpoint_does_not_hide_a_straggler():
    verdict = verdict_of(Slow("checkpoint", (0,), us=500_000, every=10), Slow("backward", (2,), us=30_000, start=100))
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == {2}
    assert {f.cause for f in verdict.findings} == {causes.CHECKPOINT, causes.BACKWARD_COMPUTE}


def test_the_cost_of_the_verdict_leaves_the_checkpoints_out():
    run = SyntheticRun(
        faults=(Slow("checkpoint", (0,), us=500_000, every=10), Slow("backward", (2,), us=30_000, start=100))
    )
    assert diagnose(run.data()).cost.seconds == pytest.approx(run.cost_seconds(1), rel=0.2)


def test_one_rank_collecting_garbage_again_and_again_is_named():
    run = SyntheticRun(faults=(Slow("gc", (2,), us=300_000, every=15, start=5),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.ranks) == ("straggler", causes.GC, (2,))
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_garbage_collection_on_changing_ranks_is_rotating():
    run = SyntheticRun(faults=(Slow("gc", us=300_000, share=0.1, rotating=True),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.cause, finding.ranks) == ("rotating", "rotating", causes.GC, ())
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_garbage_collections_that_get_longer_are_a_trend():
    finding = only_finding(verdict_of(Slow("gc", (1,), us=600_000, every=20, trend=True)))
    assert (finding.kind, finding.cause) == ("trend", causes.GC)
    assert "leak" in words(finding)


def test_compilation_in_the_first_steps_is_warm_up_and_later_it_is_reported_with_its_step():
    run = SyntheticRun(
        faults=(Slow("compile", (1,), us=90e6, end=1), Slow("compile", (1,), us=3e6, start=200, end=201))
    )
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.cause, finding.kind, finding.onset_step) == (
        "none",
        causes.COMPILE,
        "one-off",
        200,
    )
    assert finding.cost_seconds == pytest.approx(3.0, rel=0.2)


def test_a_little_garbage_collection_in_every_step_is_no_finding():
    data = SyntheticRun().data()
    data.steps.columns["gc_us"][:] = 500.0
    data.steps.columns["dur_us"][:] += 500.0
    assert np.all(data.steps["gc_us"] == 500.0)
    assert diagnose(data).findings == ()
