"""Who is slow, since when, in which shape, and in which part of the step. Truth comes from the simulation."""

from dataclasses import replace

import pytest
from verdicts import blamed, only_finding, verdict_of, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("forward", causes.FORWARD_COMPUTE),
        ("backward", causes.BACKWARD_COMPUTE),
        ("optimizer", causes.OPTIMIZER),
        ("data_wait", causes.DATA_LOADING),
        ("h2d", causes.HOST_TO_DEVICE),
        ("user", causes.USER_CODE),
        ("unaccounted", causes.USER_CODE),
    ],
)
def test_a_slow_phase_is_named_with_its_rank_onset_and_cost(phase, cause):
    run = SyntheticRun(faults=(Slow(phase, (1,), us=30_000, start=100),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.ranks, finding.cause) == ("straggler", (1,), cause)
    assert abs(finding.onset_step - 100) <= 3
    assert finding.onset_interval[0] <= 100 <= finding.onset_interval[1]
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert finding.cause_share >= 0.8


@pytest.mark.parametrize("added_us", [200_000, 20_000, 6_000])
def test_a_delay_inside_backward_is_found_although_all_steps_last_equally_long(added_us):
    run = SyntheticRun(faults=(Slow("backward", (1,), us=added_us),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.ranks, finding.cause) == ("straggler", (1,), causes.BACKWARD_COMPUTE)
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_slowness_from_the_first_step_is_chronic_and_starts_there():
    finding = only_finding(verdict_of(Slow("forward", (2,), us=20_000)))
    assert (finding.kind, finding.onset_step, finding.onset_interval, finding.end_step) == ("chronic", 0, (0, 0), None)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_was_a_little_late_all_along_and_then_becomes_very_late_has_the_onset_of_the_rise(ranks):
    rise = Slow("backward", (1,), us=45_000, start=100)
    run = SyntheticRun(ranks=ranks, steps=200, faults=(Slow("backward", (1,), us=5_000), rise))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.ranks, finding.cause) == ("straggler", (1,), causes.BACKWARD_COMPUTE)
    assert abs(finding.onset_step - 100) <= 3
    assert finding.cost_seconds == pytest.approx(replace(run, faults=(rise,)).cost_seconds(), rel=0.2)


def test_slowness_from_the_first_step_that_ends_is_still_chronic():
    finding = only_finding(verdict_of(Slow("forward", (2,), us=20_000, end=250)))
    assert finding.kind == "chronic"
    assert finding.onset_step == 0
    assert abs(finding.end_step - 249) <= 3


def test_slowness_in_a_window_is_transient_with_both_ends():
    run = SyntheticRun(faults=(Slow("forward", (2,), us=30_000, start=100, end=200),))
    finding = only_finding(diagnose(run.data()))
    assert finding.kind == "transient"
    assert abs(finding.onset_step - 100) <= 3
    assert abs(finding.end_step - 199) <= 3
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_a_rank_that_is_slow_every_tenth_step_is_a_periodic_straggler():
    run = SyntheticRun(faults=(Slow("backward", (2,), us=500_000, every=10, start=40),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("straggler", "periodic", (2,))
    assert "every 10 steps" in words(finding)
    assert finding.cause == causes.BACKWARD_COMPUTE
    assert finding.onset_step == 40
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_slowness_that_grows_step_by_step_is_a_trend():
    run = SyntheticRun(faults=(Slow("backward", (1,), us=60_000, trend=True),))
    finding = only_finding(diagnose(run.data()))
    assert (finding.kind, finding.ranks) == ("trend", (1,))
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_a_single_slow_step_is_a_one_off_and_nobody_is_blamed():
    run = SyntheticRun(faults=(Slow("backward", (3,), us=500_000, start=150, end=151),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks, finding.onset_step) == ("none", "one-off", (), 150)
    assert "ank 3" in finding.evidence[0]
    assert finding.cost_seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_a_random_rank_late_in_every_step_is_rotating_and_nobody_is_blamed():
    run = SyntheticRun(faults=(Slow("backward", us=50_000, rotating=True),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("rotating", "rotating", ())
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_slow_stretches_that_move_over_the_ranks_are_rotating():
    stretches = [Slow("backward", (i % 4,), us=40_000, start=20 + 40 * i, end=60 + 40 * i) for i in range(9)]
    verdict = verdict_of(*stretches)
    assert (verdict.verdict, blamed(verdict)) == ("rotating", set())


def test_everybody_slower_from_one_step_on_is_uniform_and_nobody_is_blamed():
    run = SyntheticRun(faults=(Slow("backward", us=30_000, start=150),))
    verdict = diagnose(run.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("uniform", "uniform", ())
    assert abs(finding.onset_step - 150) <= 3
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_everybody_slow_from_the_first_step_has_nothing_to_compare_with():
    assert verdict_of(Slow("backward", us=100_000)).verdict == "none"


def test_two_slow_ranks_have_a_finding_each_and_the_total_counts_nothing_twice():
    run = SyntheticRun(
        faults=(Slow("backward", (1,), us=40_000, start=60), Slow("data_wait", (2,), us=30_000, start=200))
    )
    verdict = diagnose(run.data())
    by_cause = {f.cause: f for f in verdict.findings}
    assert by_cause[causes.BACKWARD_COMPUTE].ranks == (1,)
    assert by_cause[causes.DATA_LOADING].ranks == (2,)
    assert by_cause[causes.BACKWARD_COMPUTE].cost_seconds == pytest.approx(run.cost_seconds(0), rel=0.2)
    assert by_cause[causes.DATA_LOADING].cost_seconds == pytest.approx(run.cost_seconds(1), rel=0.2)
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)
    assert verdict.cost.seconds == pytest.approx(sum(f.cost_seconds for f in verdict.findings), rel=1e-3)


def test_ranks_with_the_same_fault_share_a_finding():
    finding = only_finding(verdict_of(Slow("backward", (1, 2), us=40_000, start=60), ranks=8))
    assert finding.ranks == (1, 2)


@pytest.mark.parametrize("slow", [(4, 5, 6, 7), (3, 4, 5, 6, 7)])
def test_half_of_the_ranks_slow_from_the_start_are_all_named(slow):
    run = SyntheticRun(ranks=8, faults=(Slow("backward", slow, us=120_000),))
    verdict = diagnose(run.data())
    assert blamed(verdict) == set(slow)
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_a_majority_that_becomes_slow_is_told_from_the_minority_that_stays_fast():
    slow = (3, 4, 5, 6, 7)
    verdict = verdict_of(Slow("backward", slow, us=40_000, start=100), ranks=8)
    assert (verdict.verdict, blamed(verdict)) == ("straggler", set(slow))


@pytest.mark.parametrize("start", [0, 100])
def test_with_two_ranks_the_slower_one_is_named(start):
    run = SyntheticRun(ranks=2, faults=(Slow("backward", (1,), us=20_000, start=start),))
    verdict = diagnose(run.data())
    assert blamed(verdict) == {1}
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


STAGES = [{"pp": i // 2, "dp": i % 2} for i in range(8)]


def with_roles(data, roles):
    return replace(data, ranks=tuple(replace(i, role=r) for i, r in zip(data.ranks, roles, strict=True)))


def test_a_heavy_pipeline_stage_is_no_slow_rank():
    data = SyntheticRun(ranks=8, faults=(Slow("backward", (6, 7), us=60_000),)).data()
    assert blamed(diagnose(with_roles(data, STAGES))) == set()


def test_a_rank_is_compared_with_those_of_its_own_role():
    data = SyntheticRun(ranks=8, faults=(Slow("backward", (6, 7), us=60_000), Slow("forward", (7,), us=30_000))).data()
    (finding,) = [f for f in diagnose(with_roles(data, STAGES)).findings if f.ranks]
    assert (finding.ranks, finding.cause) == ((7,), causes.FORWARD_COMPUTE)
    assert finding.role == {"dp": 1, "pp": 3}


def test_a_rank_without_peers_is_compared_with_its_own_past():
    data = SyntheticRun(faults=(Slow("backward", (2,), us=30_000, start=150),)).data()
    finding = only_finding(diagnose(with_roles(data, [{"pp": i} for i in range(4)])))
    assert finding.ranks == (2,)
    assert abs(finding.onset_step - 150) <= 3


def test_ranks_without_peers_that_slow_down_together_are_uniform():
    data = SyntheticRun(faults=(Slow("backward", us=30_000, start=150),)).data()
    verdict = diagnose(with_roles(data, [{"pp": i} for i in range(4)]))
    assert (verdict.verdict, blamed(verdict)) == ("uniform", set())


def test_many_ranks_and_noise_do_not_hide_a_slow_one():
    run = SyntheticRun(ranks=64, steps=600, cv=0.1, ar1=0.5, faults=(Slow("backward", (17,), us=25_000, start=200),))
    verdict = diagnose(run.data())
    assert blamed(verdict) == {17}
    assert verdict.cost.seconds == pytest.approx(run.cost_seconds(), rel=0.2)


def test_text_is_concrete():
    finding = only_finding(verdict_of(Slow("backward", (1,), us=20_000, start=100), nodes=2))
    text = words(finding)
    assert "rank 1" in text
    assert "since step 100" in text
    assert "ms" in text
    assert finding.nodes == ("node0",)
    assert finding.action
    assert finding.verify
