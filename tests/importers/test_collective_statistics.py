"""Sums and means of collectives per rank: TraceLens and msprof."""

import json

import pytest

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load

SUMMARY = (
    "rank,Process Group Name,Process Group Ranks,Collective name,Group size,dtype,In msg nelems,Out msg nelems,"
    "In msg size (MB)_first,Out msg size (MB)_first,dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
)
TRACE_TIME = (
    "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive)"
)


def blamed(verdict):
    return sorted({rank for finding in verdict.findings for rank in finding.ranks})


def summary(tmp_path, means, calls=160, std=3000.0, name="allreduce", members=None):
    members = list(range(len(means))) if members is None else members
    rows = [
        f'{rank},0,"{members}",{name},{len(members)},Float,1000,1000,0.004,0.004,{mean * calls},{mean},{std},'
        f"{min(means)},{max(means)},{calls}"
        for rank, mean in enumerate(means)
    ]
    path = tmp_path / "nccl_summary_long.csv"
    path.write_text("\n".join([SUMMARY, *rows]) + "\n")
    return str(path)


def trace_time(tmp_path, rows, stages=()):
    """Rows of (step, rank, computing, communication, free)."""
    lines = [f"{step},rank,{rank},{c},{m},0,{m},{f},{c + m + f},0,{m}" for step, rank, c, m, f in rows]
    lines += [f',stage,"{members}",1,1,1,1,1,1,0,1' for members in stages]
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text("\n".join([TRACE_TIME, *lines]) + "\n")
    return str(path)


def test_the_rank_that_waits_least_over_many_calls_is_named(tmp_path):
    run = load([summary(tmp_path, [50_000, 45_000, 48_000, 12_000, 51_000, 47_000, 44_000, 50_000])])
    assert set(run.collectives["calls"]) == {160}
    verdict = diagnose(run)
    assert blamed(verdict) == [3]
    assert verdict.cost.seconds == pytest.approx((44_000 - 12_000) * 160 / 1e6)
    assert verdict.cost.share == 0.0
    assert "share of the job's time that is can't be told" in " ".join(verdict.findings[0].evidence)


def test_few_calls_name_nobody(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [50_000, 45_000, 12_000, 48_000], calls=6)]))
    assert verdict.verdict == "inconclusive"
    assert "Only 6 calls" in verdict.reason


def test_means_that_spread_more_than_they_differ_name_nobody(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [50_000, 45_000, 40_000, 48_000], calls=60, std=30_000)]))
    assert verdict.verdict == "inconclusive"
    assert "spread too much" in verdict.reason


def test_ranks_that_wait_alike_are_healthy(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [20_000 + 50 * (i % 7) for i in range(64)])]))
    assert verdict.verdict == "none"


def test_two_equally_late_ranks_are_both_named(tmp_path):
    means = [50_000.0] * 8
    means[2], means[5] = 12_000.0, 12_100.0
    assert blamed(diagnose(load([summary(tmp_path, means)]))) == [2, 5]


def test_the_root_of_broadcasts_is_not_taken_for_the_last_to_arrive(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [100, 45_000, 48_000, 47_000], name="broadcast")]))
    assert not blamed(verdict)


def test_all_to_alls_may_differ_by_their_data_and_name_nobody(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [100, 45_000, 48_000, 47_000], name="all_to_allv")]))
    assert verdict.verdict == "inconclusive"


def test_few_ranks_of_a_large_group_name_nobody(tmp_path):
    verdict = diagnose(load([summary(tmp_path, [50_000, 12_000], members=list(range(16)))]))
    assert not blamed(verdict)


def test_tables_without_ranks_are_refused_with_the_name_of_the_one_that_has_them(tmp_path):
    path = tmp_path / "nccl_summary_implicit_sync.csv"
    path.write_text("Collective name,dtype,comm_latency_mean,skew in start time_mean,count\nallreduce,Float,1,2,3\n")
    with pytest.raises(InputError, match=r"nccl_summary_long\.csv"):
        load([str(path)])


def test_single_calls_of_tracelens_are_judged_one_by_one(tmp_path):
    columns = "collective_id,index_in_group,rank,Process Group Name,Process Group Ranks,Collective name,dtype,ts,dur"
    rows = [
        f'0_{call},{call},{rank},0,"[0, 1, 2, 3]",allreduce,Float,{call * 1000 + (300 if rank == 2 else 0)},'
        f"{100 if rank == 2 else 400 + rank}"
        for call in range(120)
        for rank in range(4)
    ]
    path = tmp_path / "nccl_long.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    verdict = diagnose(load([str(path)]))
    assert blamed(verdict) == [2]
    assert "rank 2: 120" in " ".join(verdict.findings[0].evidence)


def test_rows_without_a_rank_or_a_duration_are_left_out_and_counted(tmp_path):
    path = summary(tmp_path, [50_000, 45_000, 12_000, 48_000])
    with open(path, "a") as file:
        file.write('x,0,"[0]",allreduce,1,F,1,1,1,1,1,1,1,1,1,1\n7,0\n')
    run = load([path])
    assert [r.rank for r in run.ranks] == [0, 1, 2, 3]
    assert "2 rows" in " ".join(run.unavailable["reason"])


def test_the_public_statistics_name_rank_4(public_data):
    verdict = diagnose(load([str(public_data("tracelens_llama70b"))]))
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == [4]
    assert "11.7 ms on rank 4, 26.2 ms to 71.8 ms on the others" in " ".join(verdict.findings[0].evidence)


def test_the_npu_that_is_idle_while_the_others_wait_is_host_bound(tmp_path):
    rows = [("", r, 80_000, 500_000 - 400_000 * (r == 6), 100_000 + 400_000 * (r == 6)) for r in range(8)]
    verdict = diagnose(load([trace_time(tmp_path, rows)]))
    assert blamed(verdict) == [6]
    assert verdict.findings[0].cause == "host-bound"
    assert verdict.findings[0].confidence < 0.8
    assert "unknown number of steps" in " ".join(verdict.findings[0].evidence)


def test_the_npu_that_computes_longer_is_slow_itself(tmp_path):
    rows = [("", r, 80_000 + 300_000 * (r == 2), 500_000 - 300_000 * (r == 2), 50_000) for r in range(8)]
    verdict = diagnose(load([trace_time(tmp_path, rows)]))
    assert blamed(verdict) == [2]
    assert verdict.findings[0].cause == "gpu-compute"


def test_npus_that_wait_alike_are_healthy(tmp_path):
    rows = [("", r, 80_000, 500_000 + 1000 * r, 100_000) for r in range(8)]
    assert diagnose(load([trace_time(tmp_path, rows)])).verdict == "none"


def test_one_recorded_step_of_npus_is_inconclusive(tmp_path):
    rows = [(4, r, 80_000, 500_000 - 400_000 * (r == 6), 100_000 + 400_000 * (r == 6)) for r in range(8)]
    verdict = diagnose(load([trace_time(tmp_path, rows)]))
    assert verdict.verdict == "inconclusive"
    assert not blamed(verdict)


def test_many_recorded_steps_of_npus_name_the_one_that_is_always_last(tmp_path):
    rows = [
        (step, r, 80_000, 500_000 - 400_000 * (r == 6), 100_000 + 400_000 * (r == 6))
        for step in range(6)
        for r in range(8)
    ]
    assert blamed(diagnose(load([trace_time(tmp_path, rows)]))) == [6]


def test_npus_are_compared_within_their_pipeline_stage(tmp_path):
    """The second stage waits less by design; within each stage all are alike."""
    rows = [("", r, 80_000, 500_000 if r < 4 else 200_000, 100_000 if r < 4 else 400_000) for r in range(8)]
    path = trace_time(tmp_path, rows, stages=["(0, 1, 2, 3)", "(4, 5, 6, 7)"])
    assert not blamed(diagnose(load([path])))


def test_sums_of_different_lengths_name_nobody(tmp_path):
    rows = [("", r, 80_000, 500_000 - 400_000 * (r == 6), 100_000) for r in range(8)]
    assert not blamed(diagnose(load([trace_time(tmp_path, rows)])))


def test_negative_times_are_refused(tmp_path):
    with pytest.raises(InputError, match="negative"):
        load([trace_time(tmp_path, [("", 0, -1, 5, 5), ("", 1, 1, 5, 5)])])


def test_operations_alone_are_read_and_few_of_them_are_inconclusive(tmp_path):
    times = {str(r): {"Communication Time Info": {"Elapse Time(ms)": 1.0 + r}} for r in range(4)}
    path = tmp_path / "cluster_communication.json"
    path.write_text(json.dumps({"(0, 1, 2, 3)": {"step3": {f"hcom_allReduce__1_{n}@5": times for n in range(3)}}}))
    run = load([str(path)])
    assert len(run.collectives) == 12
    assert set(run.collectives["name"]) == {"all_reduce"}
    assert diagnose(run).verdict == "inconclusive"


def test_a_damaged_file_of_operations_is_one_clear_error(tmp_path):
    path = tmp_path / "cluster_communication.json"
    path.write_text('{"(0, 1)": {"step": {"hcom": {"0": {"Communication Time Info": {"Elapse')
    with pytest.raises(InputError, match="cut off"):
        load([str(path)])


def test_the_public_npus_name_the_host_bound_rank_1(public_data):
    verdict = diagnose(load([str(public_data("ascend_cluster"))]))
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == [1]
    assert verdict.findings[0].cause == "host-bound"
