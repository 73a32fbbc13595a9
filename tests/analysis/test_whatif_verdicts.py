"""Verdicts on op traces: generated pipeline-parallel jobs with known faults, and without."""

import numpy as np
import pytest
from verdicts import blamed, only_finding, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic.op_job import MS, OpJob, lengths


def judged(**recipe):
    """Diagnosis of a simulated job."""
    return diagnose(OpJob(**recipe).data())


HEAVY = (100 * MS, 150 * MS, 100 * MS, 100 * MS)


def between(first, end, factor):
    """A factor in the steps first..end-1, 1 elsewhere."""
    return lambda steps: np.where((steps >= first) & (steps < end), factor, 1.0)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"pipelines": 2, "stages": 2},
        {"pipelines": 8, "stages": 1},
        {"pipelines": 1},
        {"chunks": 2},
        {"noise": 0.1},
        {"forward_us": (100 * MS, 100 * MS, 100 * MS, 105 * MS)},
        {"steps": 3},
    ],
    ids=["plain", "small", "one stage", "one pipeline", "chunks", "noisy", "slightly heavy", "few steps"],
)
def test_a_healthy_job_has_no_straggler(recipe):
    verdict = judged(**recipe)
    assert verdict.verdict == "none"
    assert verdict.findings == ()
    assert "times the ideal" in verdict.reason


def test_ranks_that_differ_by_a_percent_are_no_stragglers():
    rng = np.random.default_rng(3)
    slow = {(d, p): float(np.exp(0.01 * rng.standard_normal())) for d in range(4) for p in range(4)}
    assert judged(slow=slow).verdict == "none"


@pytest.mark.parametrize(("pipeline", "stage"), [(0, 0), (2, 1), (3, 3)])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_slow_rank_is_named_wherever_it_is(pipeline, stage, factor):
    job = OpJob(micro_batches=16, slow={(pipeline, stage): factor})
    verdict = diagnose(job.data())
    finding = only_finding(verdict)
    assert verdict.verdict == "straggler"
    assert finding.ranks == (job.rank(pipeline, stage),)
    assert finding.kind == "chronic"
    assert finding.cause == "gpu-compute"
    assert finding.role == {"dp": pipeline, "pp": stage}


@pytest.mark.parametrize("recipe", [{"pipelines": 2, "stages": 2}, {"pipelines": 8, "stages": 1}, {"chunks": 2}])
def test_a_slow_rank_is_named_whatever_the_layout(recipe):
    job = OpJob(slow={(1, 0): 1.4}, **recipe)
    assert only_finding(diagnose(job.data())).ranks == (job.rank(1, 0),)


def test_global_rank_numbers_are_those_of_the_trace():
    job = OpJob(tensor=8, slow={(2, 3): 1.5})
    assert only_finding(diagnose(job.data())).ranks == (112,)


def test_the_cost_of_a_slow_rank_is_what_the_job_without_it_saves():
    with_fault, without = (OpJob(slow=slow) for slow in ({(1, 2): 1.5}, {}))
    measured = with_fault.frame.assign(end=lambda f: f.start_us + f.dur_us).groupby("step").end.max().sum() / 1e6
    healthy = without.frame.assign(end=lambda f: f.start_us + f.dur_us).groupby("step").end.max().sum() / 1e6
    assert diagnose(with_fault.data()).cost.seconds == pytest.approx(measured - healthy, rel=0.05)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_cause_is_the_pass_that_is_slow(way):
    job = OpJob(**{f"slow_{way}": {(3, 1): 1.5}})
    finding = only_finding(diagnose(job.data()))
    assert finding.ranks == (job.rank(3, 1),)
    assert finding.cause == f"{way}-compute"


def test_a_rank_that_is_slow_for_a_while_is_transient_with_its_steps():
    finding = only_finding(judged(steps=60, slow={(1, 1): between(20, 40, 1.5)}))
    assert finding.kind == "transient"
    assert abs(finding.onset_step - 120) <= 1
    assert abs(finding.end_step - 139) <= 1


def test_a_rank_that_becomes_slow_is_chronic_from_then_on():
    finding = only_finding(judged(steps=60, slow={(1, 1): between(30, 60, 1.5)}))
    assert finding.kind == "chronic"
    assert abs(finding.onset_step - 130) <= 1
    assert finding.end_step is None


@pytest.mark.parametrize("second", [(3, 2), (3, 1), (1, 3)])
def test_two_slow_ranks_are_both_named_and_their_costs_add_up(second):
    job = OpJob(slow={(1, 1): 1.4, second: 1.3})
    verdict = diagnose(job.data())
    assert blamed(verdict) == {job.rank(1, 1), job.rank(*second)}
    assert sum(f.cost_seconds for f in verdict.findings) == pytest.approx(verdict.cost.seconds, rel=1e-3)


@pytest.mark.parametrize("pipelines", [2, 4])
def test_a_heavy_stage_is_structural_and_blames_nobody(pipelines):
    verdict = judged(pipelines=pipelines, forward_us=HEAVY)
    finding = only_finding(verdict)
    assert verdict.verdict == "structural"
    assert (finding.cause, finding.ranks, finding.role) == ("pipeline-stage", (), {"pp": 1})


def test_a_slow_rank_beside_a_heavy_stage_is_still_named():
    job = OpJob(forward_us=HEAVY, slow={(1, 3): 2.0})
    assert blamed(diagnose(job.data())) == {job.rank(1, 3)}


def test_a_slow_rank_without_peers_is_not_told_from_a_heavy_stage():
    verdict = judged(pipelines=1, slow={(0, 2): 1.5})
    assert verdict.verdict == "inconclusive"
    assert blamed(verdict) == set()
    assert only_finding(verdict).next


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("spread", [0.15, 0.4])
def test_unequal_sequences_are_workload_skew_and_blame_nobody(stages, spread):
    verdict = judged(pipelines=8, stages=stages, cost=lengths(spread))
    finding = only_finding(verdict)
    assert verdict.verdict == "workload-skew"
    assert (finding.cause, finding.kind, finding.ranks) == ("sequence-length", "rotating", ())
    assert "correlation" in words(finding)


def test_a_pipeline_that_always_gets_longer_sequences_is_no_straggler():
    def cost(rng, shape):
        return lengths()(rng, shape) * np.where(np.arange(shape[1]) == 3, 1.5, 1.0)[None, :, None]

    verdict = judged(pipelines=8, cost=cost)
    assert verdict.verdict == "workload-skew"
    assert blamed(verdict) == set()
    assert only_finding(verdict).role == {"dp": 3}


def test_a_slow_rank_among_unequal_sequences_is_named():
    job = OpJob(pipelines=8, cost=lengths(), slow={(4, 2): 1.6})
    verdict = diagnose(job.data())
    assert blamed(verdict) == {job.rank(4, 2)}
    assert [f.cause for f in verdict.findings if not f.ranks] == ["sequence-length"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [5, 30])
def test_of_two_pipelines_of_two_stages_with_unequal_sequences_never_the_wrong_rank_is_named(seed, steps):
    verdict = judged(pipelines=2, stages=2, steps=steps, cost=lengths(0.3), slow={(0, 1): 1.4}, seed=seed)
    assert blamed(verdict) <= {2}


def test_with_one_stage_a_slow_rank_is_not_told_from_longer_sequences():
    verdict = judged(pipelines=8, stages=1, cost=lengths(), slow={(4, 0): 2.0})
    assert verdict.verdict == "inconclusive"
    assert blamed(verdict) == set()
    assert verdict.findings[0].role == {"dp": 4}


def test_a_pipeline_whose_ranks_are_all_slow_is_not_told_from_one_with_more_data():
    verdict = judged(slow={(1, p): 1.3 for p in range(4)})
    assert verdict.verdict == "inconclusive"
    assert blamed(verdict) == set()
    assert only_finding(verdict).role == {"dp": 1}


@pytest.mark.parametrize(("stages", "link"), [(2, (1, 0)), (4, (1, 1)), (4, (3, 2))])
def test_a_slow_link_blames_neither_of_its_ends(stages, link):
    job = OpJob(stages=stages, links={link: 60.0})
    verdict = diagnose(job.data())
    finding = only_finding(verdict)
    assert verdict.verdict == "shared"
    assert (finding.cause, finding.ranks) == ("network-path", ())
    ends = sorted((job.rank(*link), job.rank(link[0], link[1] + 1)))
    assert f"ranks {ends[0]} and {ends[1]}" in words(finding)
    assert finding.next


def test_a_rank_whose_links_are_all_slow_has_a_slow_interface():
    job = OpJob(links={(1, 1): 60.0, (1, 2): 60.0})
    finding = only_finding(diagnose(job.data()))
    assert (finding.ranks, finding.cause) == ((job.rank(1, 2),), "nic-degraded")


def test_a_stage_with_slow_collectives_blames_nobody():
    verdict = judged(groups={("grads-reduce-scatter", 1): 20.0})
    assert verdict.verdict == "shared"
    assert blamed(verdict) == set()
    assert only_finding(verdict).role == {"pp": 1}


def test_ranks_that_wait_for_a_slow_one_are_not_blamed_for_their_long_collectives():
    job = OpJob(slow={(0, 0): 2.0})
    longest = job.frame[job.frame.name == "grads-reduce-scatter"].groupby("rank").dur_us.mean().idxmax()
    assert longest != job.rank(0, 0)
    assert blamed(diagnose(job.data())) == {job.rank(0, 0)}


def test_a_slow_optimizer_is_the_cause_on_its_rank():
    job = OpJob(work_us={("optimizer", 1, 2): 200 * MS})
    finding = only_finding(diagnose(job.data()))
    assert (finding.ranks, finding.cause) == ((job.rank(1, 2),), "optimizer")


def test_a_rank_whose_first_pass_begins_late_waits_for_data_where_data_are_loaded():
    job = OpJob(delay_us={(2, 0): 300 * MS})
    finding = only_finding(diagnose(job.data()))
    assert (finding.ranks, finding.cause) == ((job.rank(2, 0),), "data-loading")


def test_a_rank_in_the_middle_whose_passes_begin_late_is_named_without_a_cause():
    job = OpJob(delay_us={(2, 2): 900 * MS})
    finding = only_finding(diagnose(job.data()))
    assert (finding.ranks, finding.cause, finding.cause_share) == ((job.rank(2, 2),), "unknown", 0.0)


def test_stalls_on_changing_ranks_are_rotating():
    def stalls(at):
        rng = np.random.default_rng(100 * at[0] + at[1])
        return lambda steps: np.where(rng.random(len(steps)) < 0.2, 2.5, 1.0)

    job = OpJob(steps=40, noise=0.01, slow_forward={(d, p): stalls((d, p)) for d in range(4) for p in range(4)})
    verdict = diagnose(job.data())
    assert verdict.verdict == "rotating"
    assert blamed(verdict) == set()
    assert "forward passes" in words(only_finding(verdict))


def test_two_steps_are_too_few_to_blame_anybody():
    verdict = judged(steps=2, slow={(1, 1): 2.0})
    assert verdict.verdict == "inconclusive"
    assert blamed(verdict) == set()
    assert verdict.steps == (100, 101)


def test_one_rank_has_nobody_to_be_compared_with():
    verdict = judged(pipelines=1, stages=1)
    assert verdict.verdict == "inconclusive"
    assert "one rank" in verdict.reason


def test_steps_of_which_operations_are_missing_are_replayed_or_left_out_and_said():
    lost = tuple((3, 1, 1, name) for name in ("optimizer", "grads-reduce-scatter"))
    job = OpJob(slow={(2, 2): 1.5}, lost=lost)
    verdict = diagnose(job.data())
    assert blamed(verdict) == {job.rank(2, 2)}
    assert "1 incomplete step is left out" in verdict.reason


def test_clocks_that_differ_by_a_millisecond_between_nodes_change_nothing():
    job = OpJob(slow={(2, 2): 1.3})
    run = job.data()
    offset = np.random.default_rng(5).uniform(-1e3, 1e3, 64)
    run.operations["start_us"] += offset[run.operations["rank"].to_numpy()]
    assert blamed(diagnose(run)) == {job.rank(2, 2)}


def test_spelling_of_operation_names_does_not_matter():
    def spelt(name):
        return name.replace("forward", "fwd").replace("backward", "BWD").replace("-", "_")

    job = OpJob(slow={(2, 2): 1.3}, names=spelt)
    assert blamed(diagnose(job.data())) == {job.rank(2, 2)}
