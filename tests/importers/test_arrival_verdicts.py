"""Who comes last: verdicts on traces of profilers, from jobs whose straggler is known."""

import random

import pytest
from kineto_lab import KERNELS, Job, write

from starprof.analysis import diagnose
from starprof.importers.load import load


def verdict_on(tmp_path, job, only=None):
    traces = job.traces()
    return diagnose(load([write(tmp_path / "job", {r: t for r, t in traces.items() if only is None or r in only})]))


def blamed(verdict):
    return sorted({rank for finding in verdict.findings for rank in finding.ranks})


def evidence(verdict):
    return " ".join([verdict.reason, *(line for f in verdict.findings for line in f.evidence)])


def late_rank(who, us):
    return lambda rank, step, call: us if rank == who else 0.0


@pytest.mark.parametrize("backend", [*KERNELS, "gloo"])
def test_a_rank_that_is_always_late_is_named(tmp_path, backend):
    verdict = verdict_on(tmp_path, Job(backend=backend, late=late_rank(3, 200)))
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == [3]
    assert 0.05 < verdict.cost.share < 0.2


@pytest.mark.parametrize(("world", "who"), [(2, 0), (3, 2), (4, 1), (16, 15), (64, 17)])
def test_a_chronic_last_arriver_is_named_whatever_the_number_of_ranks(tmp_path, world, who):
    verdict = verdict_on(tmp_path, Job(world=world, steps=12, calls=5, late=late_rank(who, 200)))
    assert blamed(verdict) == [who]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("steps", "calls"), [(3, 20), (10, 5)])
def test_nobody_is_named_in_a_healthy_job_of_64_ranks(tmp_path, seed, steps, calls):
    verdict = verdict_on(tmp_path, Job(world=64, steps=steps, calls=calls, noise_us=100, seed=seed))
    assert not blamed(verdict)
    assert verdict.verdict == ("none" if steps >= 4 else "inconclusive")


def test_calls_without_steps_are_enough_when_there_are_many(tmp_path):
    verdict = verdict_on(tmp_path, Job(steps=1, calls=200, annotated=False, late=late_rank(5, 200)))
    assert blamed(verdict) == [5]


def test_few_calls_without_steps_are_not(tmp_path):
    verdict = verdict_on(tmp_path, Job(steps=1, calls=15, annotated=False, late=late_rank(5, 200)))
    assert verdict.verdict == "inconclusive"
    assert not blamed(verdict)
    assert "rank 5: 15" in evidence(verdict)


def test_one_step_is_never_enough_however_many_calls_it_has(tmp_path):
    verdict = verdict_on(tmp_path, Job(steps=1, calls=200, late=late_rank(5, 200)))
    assert verdict.verdict == "inconclusive"
    assert not blamed(verdict)
    assert "rank 5: 200" in evidence(verdict)
    assert "Only 1 step" in verdict.reason


def test_clocks_that_are_hours_apart_and_drift_change_nothing(tmp_path):
    def clock(rank):
        return rank * 3.6e9 + random.Random(rank).uniform(0, 1e6)

    verdict = verdict_on(tmp_path, Job(clock=clock, late=late_rank(2, 200)))
    assert blamed(verdict) == [2]


def test_a_rank_that_starts_first_on_its_own_clock_can_be_the_last(tmp_path):
    verdict = verdict_on(tmp_path, Job(clock=lambda rank: -500.0 if rank == 2 else 0.0, late=late_rank(2, 200)))
    assert blamed(verdict) == [2]


def test_late_steps_on_changing_ranks_blame_nobody(tmp_path):
    def late(rank, step, call):
        return 5000.0 if rank == random.Random(step).randrange(8) and call == 0 else 0.0

    verdict = verdict_on(tmp_path, Job(steps=20, calls=5, late=late))
    assert verdict.verdict == "rotating"
    assert not blamed(verdict)


def test_a_rank_that_is_late_in_a_single_step_is_not_a_straggler(tmp_path):
    verdict = verdict_on(tmp_path, Job(steps=8, late=lambda r, step, c: 3000.0 if (r, step) == (4, 2) else 0.0))
    assert not blamed(verdict)


def test_two_ranks_that_are_late_together_are_both_named(tmp_path):
    job = Job(steps=15, late=lambda rank, step, call: 300.0 if rank in (1, 6) else 0.0)
    assert blamed(verdict_on(tmp_path, job)) == [1, 6]


def test_the_longest_step_does_not_make_a_straggler(tmp_path):
    traces = Job(late=late_rank(3, 200)).traces()
    for event in traces[1]["traceEvents"]:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] *= 1.5
    assert blamed(diagnose(load([write(tmp_path / "job", traces)]))) == [3]


def test_few_ranks_of_many_are_inconclusive_and_it_is_said_why(tmp_path):
    verdict = verdict_on(tmp_path, Job(world=16, late=late_rank(3, 300)), only={2, 3})
    assert verdict.verdict == "inconclusive"
    assert not blamed(verdict)
    assert "Only 2 of 16 ranks left a trace" in verdict.reason


def test_one_rank_is_inconclusive(tmp_path):
    verdict = verdict_on(tmp_path, Job(world=4, steps=6), only={2})
    assert verdict.verdict == "inconclusive"
    assert "Only rank 2 of 4 left a trace" in verdict.reason


def test_one_missing_rank_of_many_does_not_hide_the_straggler(tmp_path):
    verdict = verdict_on(tmp_path, Job(world=8, late=late_rank(3, 200)), only=set(range(7)))
    assert blamed(verdict) == [3]


def test_ranks_that_wait_in_one_group_are_not_blamed_in_another(tmp_path):
    """Rank 2 is slow; its tensor-parallel partner waits for it, and then comes late to its data-parallel group."""
    groups = [[0, 1], [2, 3], [4, 5], [6, 7], [0, 2, 4, 6], [1, 3, 5, 7]]
    verdict = verdict_on(tmp_path, Job(steps=12, calls=4, groups=groups, late=late_rank(2, 400)))
    assert blamed(verdict) == [2]


def test_calls_that_do_not_end_together_are_no_ground_for_blame(tmp_path):
    traces = Job(steps=12, calls=10).traces()
    rng = random.Random(3)
    for rank, trace in traces.items():
        for event in trace["traceEvents"]:
            if event["cat"] == "kernel" and event["name"].startswith("nccl"):
                event["ts"] += rng.uniform(0, 4000)
                event["dur"] = 900.0 if rank != 4 else 100.0
    verdict = diagnose(load([write(tmp_path / "job", traces)]))
    assert not blamed(verdict)
    assert "don't end at the same moment" in verdict.reason


def with_all_to_alls(traces, change=lambda rank, event: None):
    for rank, trace in traces.items():
        for event in trace["traceEvents"]:
            if event["name"].startswith("nccl") and event["cat"] == "kernel":
                event["args"]["Collective name"] = "all_to_allv"
                change(rank, event)
    return traces


def test_a_rank_with_less_to_exchange_is_not_taken_for_the_last_to_arrive(tmp_path):
    def cold_expert(rank, event):
        if rank == 2:
            event["dur"] -= 150.0

    traces = with_all_to_alls(Job(steps=12, transfer_us=400.0).traces(), cold_expert)
    verdict = diagnose(load([write(tmp_path / "job", traces)]))
    assert not blamed(verdict)
    assert "less data to exchange" in verdict.reason


def test_a_rank_that_is_late_at_all_to_alls_is_named_where_they_end_at_once(tmp_path):
    traces = with_all_to_alls(Job(steps=12, late=late_rank(2, 200)).traces())
    assert blamed(diagnose(load([write(tmp_path / "job", traces)]))) == [2]


def test_where_nobody_is_late_but_a_trace_is_missing_the_missing_rank_may_be(tmp_path):
    verdict = verdict_on(tmp_path, Job(world=8), only=set(range(7)))
    assert verdict.verdict == "inconclusive"
    assert "Only 7 of 8 ranks" in verdict.reason


def test_pipeline_schedules_are_not_taken_for_stragglers(tmp_path):
    traces = Job(world=4, steps=12, calls=5, late=late_rank(3, 400)).traces()
    for trace in traces.values():
        trace["traceEvents"].append(
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": 0, "tid": 9, "ts": 0, "dur": 1,
             "args": {"Collective name": "send", "Process Group Name": "9", "Process Group Ranks": "[0, 1, 2, 3]"}}
        )  # fmt: skip
    verdict = diagnose(load([write(tmp_path / "job", traces)]))
    assert verdict.verdict == "inconclusive"
    assert "stages of a pipeline" in verdict.reason


def test_the_phase_that_carries_the_lateness_is_the_cause(tmp_path):
    def loading(rank, begin):
        return {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.x",
                "pid": rank, "tid": 7, "ts": begin, "dur": 3000 if rank == 1 else 100}  # fmt: skip

    job = Job(world=4, steps=12, calls=5, backend="gloo",
              late=lambda rank, step, call: 3000.0 if rank == 1 and call == 0 else 100.0 * (call == 0))  # fmt: skip
    traces = job.traces()
    for rank, trace in traces.items():
        steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep")]
        trace["traceEvents"] += [loading(rank, e["ts"]) for e in steps]
    verdict = diagnose(load([write(tmp_path / "job", traces)]))
    assert blamed(verdict) == [1]
    assert verdict.findings[0].cause == "data-loading"


def test_the_public_8_rank_trace_is_inconclusive_with_the_exact_last_arrivers(public_data):
    verdict = diagnose(load([str(public_data("kineto_dlrm_8rank"))]))
    assert verdict.verdict == "inconclusive"
    assert not blamed(verdict)
    assert "rank 7: 5, rank 5: 2, rank 4: 1." in evidence(verdict)
    assert "rank 1" not in evidence(verdict)


def test_two_of_128_public_ranks_are_inconclusive(public_data):
    folder = public_data("kineto_hta")
    verdict = diagnose(load([str(folder / "sampled_rank-0.json.gz"), str(folder / "sampled_rank-1.json.gz")]))
    assert verdict.verdict == "inconclusive"
    assert "Only 2 of 128 ranks" in verdict.reason


@pytest.mark.parametrize("name", ["nccl_data", "control", "test", "rank-34.cpu_only.pt.trace"])
def test_single_public_ranks_are_inconclusive(public_data, name):
    verdict = diagnose(load([str(public_data("kineto_hta") / f"{name}.json.gz")]))
    assert verdict.verdict == "inconclusive"
    assert "nobody to compare it with" in verdict.reason
