"""Op traces that lack something, or whose clocks are apart: what is still said, and whom it must not be said of."""

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.settings import DEFAULT
from starprof.analysis.synthetic.op_job import MS, OpJob
from starprof.analysis.whatif import op_trace, replay_of
from starprof.analysis.whatif.clocks import on_one_clock
from starprof.analysis.whatif.interval import mean_interval


def between(first, end, factor, otherwise=1.0):
    return lambda steps: np.where((steps >= first) & (steps < end), factor, otherwise)


def seconds(job):
    return job.frame.assign(end=lambda f: f.start_us + f.dur_us).groupby("step").end.max().sum() / 1e6


def test_a_clock_that_is_ahead_makes_no_slow_interface():
    verdict = diagnose(OpJob(clock_us={(1, 1): 20 * MS}).data())
    assert verdict.verdict == "none"
    assert "clocks are 20" in verdict.reason


def test_clocks_are_put_right_to_a_fraction_of_a_transfer():
    apart = {(d, p): 37 * MS * d - 11 * MS * p for d in range(4) for p in range(4)}
    right, wrong = (replay_of(op_trace(OpJob(clock_us=clock).data())) for clock in ({}, apart))
    clocked = on_one_clock(wrong, DEFAULT.replay)
    assert clocked.apart_us == pytest.approx(144 * MS, rel=1e-3)
    assert clocked.replay.now_us == pytest.approx(right.now_us, rel=1e-3)


def test_clocks_that_agree_are_left_alone():
    replay = replay_of(op_trace(OpJob().data()))
    assert on_one_clock(replay, DEFAULT.replay).replay is replay


@pytest.mark.parametrize("slow", [{}, {(1, 1): 2.0}])
def test_a_rank_that_was_not_recorded_leaves_the_answer_open_where_nobody_else_is_slow(slow):
    verdict = diagnose(OpJob(slow=slow, missing=((1, 1),)).data())
    assert verdict.verdict == "inconclusive"
    assert blamed(verdict) == set()
    assert "stage 1 of pipeline 1" in verdict.reason


def test_a_slow_rank_is_named_although_another_was_not_recorded():
    job = OpJob(slow={(2, 2): 1.5}, missing=((1, 1),))
    verdict = diagnose(job.data())
    assert blamed(verdict) == {job.rank(2, 2)}
    assert "stage 1 of pipeline 1" in verdict.reason


@pytest.mark.parametrize("experts", [2, 4])
def test_ranks_that_wait_for_a_slow_one_in_an_exchange_of_experts_are_not_late(experts):
    job, healthy = (OpJob(experts=experts, slow=slow) for slow in ({(3, 1): 1.4}, {}))
    verdict = diagnose(job.data())
    assert blamed(verdict) == {job.rank(3, 1)}
    assert verdict.cost.seconds == pytest.approx(seconds(job) - seconds(healthy), rel=0.03)


def test_a_rank_that_stands_for_its_tensor_parallel_group_says_so():
    job = OpJob(tensor=4, slow={(2, 3): 1.5})
    finding = only_finding(diagnose(job.data()))
    assert "one of 4 ranks that share each place" in words(finding)
    assert "any of those, ranks 56-59," in words(finding)


def test_a_link_that_is_slow_for_a_while_has_its_steps_and_the_test_that_tells_its_ends_apart():
    job = OpJob(steps=60, links={(1, 1): between(20, 40, 60.0)})
    verdict = diagnose(job.data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("shared", "transient", ())
    assert abs(finding.onset_step - 120) <= 1
    assert abs(finding.end_step - 139) <= 1
    assert finding.cost_seconds > 0
    assert "Test rank 5 with rank 4, and rank 9 with rank 4" in finding.next


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_link_that_is_slow_one_way_says_which(way):
    finding = only_finding(diagnose(OpJob(link_ways={(way, 1, 1): 100.0}).data()))
    slow, quick = ("activations", "gradients") if way == "forward" else ("gradients", "activations")
    assert f"longer: {slow} " in words(finding)
    assert f"{quick}, the other way, are as quick as ever" in words(finding)


def test_without_other_pipelines_a_link_is_held_against_its_own_past():
    job = OpJob(pipelines=1, steps=60, links={(0, 1): between(20, 40, 100.0)})
    finding = only_finding(diagnose(job.data()))
    assert (finding.cause, finding.kind, finding.ranks) == ("network-path", "transient", ())
    assert abs(finding.onset_step - 120) <= 1


def test_links_that_are_all_slow_at_once_are_one_finding():
    links = {(d, p): between(20, 40, 60.0) for d in range(4) for p in range(3)}
    verdict = diagnose(OpJob(steps=60, links=links).data())
    assert verdict.verdict == "shared"
    assert "12 of 12 links" in words(only_finding(verdict))


def test_all_links_of_a_short_pipeline_do_not_prove_the_rank_in_its_middle():
    verdict = diagnose(OpJob(stages=3, links={(1, 0): 60.0, (1, 1): 60.0}).data())
    assert verdict.verdict == "shared"
    assert blamed(verdict) == set()


@pytest.mark.parametrize("stages", [[1], [0, 1, 2, 3]])
def test_collectives_that_are_slow_for_a_while_have_their_steps(stages):
    groups = {("grads-reduce-scatter", stage): between(20, 40, 40.0) for stage in stages}
    verdict = diagnose(OpJob(steps=60, groups=groups).data())
    finding = only_finding(verdict)
    assert (verdict.verdict, finding.kind, finding.ranks) == ("shared", "transient", ())
    assert (finding.onset_step, finding.end_step) == (120, 139)
    assert finding.role == ({"pp": 1} if stages == [1] else {})


def test_what_a_fault_costs_lies_in_its_interval():
    job, healthy = OpJob(slow={(1, 2): 1.5}), OpJob()
    cost = diagnose(job.data()).cost
    low, high = cost.seconds_interval
    assert low <= cost.seconds <= high
    assert low * 0.95 <= seconds(job) - seconds(healthy) <= high * 1.05


def test_intervals_hold_the_mean_of_dependent_steps_as_often_as_they_say():
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        noise = rng.standard_normal(60)
        low, high = mean_interval(10 + noise[2:] + 0.5 * noise[1:-1] + 0.3 * noise[:-2])
        held += low <= 10 <= high
    assert 0.9 <= held / 200 <= 0.99


def test_intervals_are_the_same_each_time():
    values = np.random.default_rng(1).random(30)
    assert mean_interval(values) == mean_interval(values.copy())
    assert mean_interval(values[:1]) == (values[0], values[0])


def test_a_pipeline_of_which_one_of_two_stages_was_recorded_is_nothing_to_compare_with():
    def cost(rng, shape):
        more = np.where(np.arange(shape[1]) == 1, 1.4, 1.0)[None, :, None]
        return np.exp(0.3 * rng.standard_normal(shape)) * more

    job = OpJob(pipelines=2, stages=2, micro_batches=3, noise=0.06, cost=cost, missing=((0, 0),))
    assert blamed(diagnose(job.data())) == set()


@pytest.mark.parametrize("seed", range(8))
def test_noise_of_two_ranks_alone_is_no_slowness_of_either(seed):
    """The faster of two is what the other is held against, so that half of the differences are nothing at all."""
    job = OpJob(pipelines=2, stages=1, micro_batches=2, steps=75, noise=0.06, seed=seed)
    assert diagnose(job.data()).verdict == "none"
