"""What is missing is said; missing is neither zero nor healthy."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from verdicts import blamed, only_finding, verdict_of

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SlowNic, SyntheticRun
from starprof.model.verdict import NotCollected

FAULT = Slow("backward", (1,), us=30_000, start=100)


def test_no_step_records_at_all_is_inconclusive_and_says_what_to_check():
    verdict = verdict_of(missing_ranks=(0, 1, 2, 3))
    assert (verdict.verdict, verdict.steps, verdict.findings) == ("inconclusive", None, ())
    assert "No step records" in verdict.reason


def test_a_rank_without_records_is_loud_and_a_healthy_rest_is_no_acquittal():
    verdict = verdict_of(missing_ranks=(2,))
    assert verdict.verdict == "inconclusive"
    assert "No samples from rank 2" in verdict.reason
    assert NotCollected("steps of rank 2", "no samples from this rank") in verdict.not_collected


def test_a_slow_rank_is_named_though_another_left_no_records():
    verdict = verdict_of(FAULT, missing_ranks=(2,))
    assert (verdict.verdict, blamed(verdict)) == ("straggler", {1})
    assert "No samples from rank 2" in verdict.reason


def test_a_rank_that_the_world_size_promises_but_nobody_saw_is_missing():
    data = SyntheticRun().data()
    data = replace(data, info={**data.info, "world_size": 5})
    assert "No samples from rank 4" in diagnose(data).reason


def test_one_rank_alone_has_nobody_to_compare_with():
    verdict = verdict_of(missing_ranks=(1, 2, 3))
    assert verdict.verdict == "inconclusive"
    assert "Only one rank" in verdict.reason


def test_too_few_steps_are_inconclusive_and_say_how_many_are_needed():
    verdict = verdict_of(steps=10)
    assert verdict.verdict == "inconclusive"
    assert "needed" in verdict.reason


@pytest.mark.parametrize("hole", [np.nan, 0.0])
def test_without_measured_waiting_own_time_is_not_guessed(hole):
    data = SyntheticRun(faults=(FAULT,)).data()
    data.steps.columns["blocked_us"][:] = hole
    verdict = diagnose(data)
    assert (verdict.verdict, blamed(verdict)) == ("inconclusive", set())
    assert "waiting" in verdict.reason


def test_lost_steps_of_some_ranks_do_not_change_the_answer():
    run = SyntheticRun(faults=(FAULT,))
    data = run.data()
    rng = np.random.default_rng(1)
    lost = rng.random(data.steps["dur_us"].shape) < 0.05
    for column in data.steps.columns.values():
        column[lost] = np.nan
    data.steps.start_mono_ns[lost] = 0
    finding = only_finding(diagnose(data))
    assert finding.ranks == (1,)
    assert abs(finding.onset_step - 100) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_a_rank_that_stopped_early_is_told_and_does_not_stop_the_rest():
    data = SyntheticRun(faults=(FAULT,)).data()
    for column in data.steps.columns.values():
        column[3, 250:] = np.nan
    verdict = diagnose(data)
    assert blamed(verdict) == {1}
    assert any("150 steps missing" in n.reason for n in verdict.not_collected)


def test_clocks_of_nodes_that_differ_by_hours_do_not_matter():
    run = SyntheticRun(nodes=4, faults=(SlowNic(1, start=120),))
    data = run.data()
    shift = 10**16
    data.steps.start_mono_ns[2] += shift
    for name, frame in data.samples.items():
        if "mono_ns" in frame and name.endswith("_sample"):
            frame.loc[frame["node"] == 2, "mono_ns"] += shift
    finding = only_finding(diagnose(data))
    assert finding.ranks == (1,)


def test_unavailable_sources_and_gaps_are_listed_with_their_reasons():
    data = SyntheticRun(nodes=2).data()
    unavailable = pd.DataFrame({"node": [1], "source": ["nvml"], "reason": ["no driver"]})
    gaps = pd.DataFrame({"source": ["agent"], "node": [0], "reason": ["agent was killed"]})
    verdict = diagnose(replace(data, unavailable=unavailable, gaps=gaps))
    assert NotCollected("nvml", "no driver (node 1)") in verdict.not_collected
    assert NotCollected("agent", "agent was killed (node 0)") in verdict.not_collected


def test_the_recordings_own_cost_is_in_the_verdict():
    overhead = verdict_of().overhead
    assert overhead.step_us == pytest.approx(12.0)
    assert overhead.agent_cpu == pytest.approx(0.003, rel=0.05)
    assert overhead.agent_rss_bytes == 20_000_000


def test_unknown_overhead_is_none_not_zero():
    data = SyntheticRun(counters=False).data()
    data.steps.columns["hook_ns"][:] = np.nan
    assert diagnose(data).overhead.step_us is None
    assert diagnose(data).overhead.agent_cpu is None
