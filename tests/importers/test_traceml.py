"""TraceML's final summary: what means per rank tell about waiting for data, and what they can't."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_fleets import loaded

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.model.verdict import Cost, Verdict
from starprof.store.query import load_run
from starprof.store.save import save_run

STEP, STEPS = 200.0, 256


def phases(waits, *, forward=40.0, seed=0):
    """Mean phases in ms of ranks that wait for each other in the backward pass, as DDP does."""
    rng = np.random.default_rng([91, seed])
    rows = []
    for wait in waits:
        h2d, first, optimizer = 0.4, forward * rng.normal(1, 0.01), 6.0
        step = STEP * rng.normal(1, 0.001)
        backward = step - wait - h2d - first - optimizer - 2.0
        rows.append(
            {
                "input_wait_ms": wait,
                "step_time_ms": step,
                "traced_step_time_ms": step - wait,
                "dataloader_fetch_cpu_ms": wait,
                "h2d_ms": h2d,
                "forward_ms": first,
                "backward_ms": backward,
                "optimizer_ms": optimizer,
                "residual_ms": 2.0,
            }
        )
    return rows


def section(rows, *, clock="gpu", steps=STEPS, world=None, kind="BALANCED"):
    def identity(rank):
        return {"global_rank": rank, "local_rank": rank % 4, "node_rank": rank // 4, "hostname": f"host{rank // 4}",
                "local_world_size": 4, "world_size": world or len(rows)}  # fmt: skip

    return {
        "metadata": {"mode": "single_node", "global_ranks_seen": len(rows), "section_metric_names": list(rows[0])},
        "diagnosis": {"kind": kind, "status": kind, "ranks": [], "evidence": {}},
        "issues": [],
        "global": {
            "index_by": "global_rank",
            "window": {"kind": "step_window", "alignment": "common_steps", "steps_analyzed": steps, "start_step": 10,
                       "end_step": 9 + steps, "diagnosis_clock": clock},
        },
        "groups": {"by": "global_rank",
                   "rows": {str(r): {"identity": identity(r), "metrics": m} for r, m in enumerate(rows)}},
        "units": {"time": "ms"},
        "card": "",
    }  # fmt: skip


def summary(rows, *, gpus=None, **how):
    """A whole summary, as version 1.7 is laid out."""
    return {
        "schema_version": 1.7,
        "duration_s": None,
        "meta": {"run_name": "job", "world_size": None, "gpus_observed": len(rows)},
        "primary_diagnosis": {"kind": "NO_CLEAR_PERFORMANCE_BOTTLENECK"},
        "system": {"metadata": {"gpus_observed": len(rows) if gpus is None else gpus}, "groups": {"rows": {}}},
        "process": {},
        "step_time": section(rows, **how),
        "step_memory": {},
    }


def read(folder, content):
    return loaded(folder, json.dumps(content, indent=2), "final_summary.json")


def verdict(folder, content) -> Verdict:
    return diagnose(read(folder, content))


def waiting(rank, wait=60.0, ranks=8):
    return [wait if r == rank else 1.0 + 0.1 * r for r in range(ranks)]


def test_every_rank_has_its_phases_in_microseconds_and_its_host(tmp_path):
    run = read(tmp_path, summary(phases(waiting(5))))
    assert (run.info["source_format"], run.info["timing"]) == ("traceml", "wall")
    assert [r.rank for r in run.ranks] == list(range(8))
    assert [(r.node, r.host, r.local_rank) for r in run.ranks][5] == (1, "host1", 1)
    assert run.steps["data_wait_us"][5, 0] == pytest.approx(60_000)
    assert run.steps["dur_us"][:, 0] == pytest.approx(STEP * 1e3, rel=0.01)
    assert "means over 256 steps of 8 ranks" in run.info["note"]


def test_the_rank_that_waits_for_data_while_the_others_wait_for_it_is_named(tmp_path):
    result = verdict(tmp_path, summary(phases(waiting(5))))
    (finding,) = result.findings
    assert (result.verdict, finding.ranks, finding.cause, finding.nodes) == (
        "straggler", (5,), "data-loading", ("host1",))  # fmt: skip
    assert result.steps == (10, 265)
    assert result.cost.share == pytest.approx((60 - 1.7) / STEP, abs=0.02)
    assert finding.confidence < 0.7
    assert any("whether it is so in all of them" in line for line in finding.evidence)


def test_two_ranks_of_a_host_with_slow_storage_are_named_together(tmp_path):
    waits = waiting(5)
    waits[6] = 63.0
    (finding,) = verdict(tmp_path, summary(phases(waits))).findings
    assert finding.ranks == (5, 6)


def test_the_section_alone_tells_the_same(tmp_path):
    assert verdict(tmp_path, section(phases(waiting(5)))).findings[0].ranks == (5,)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_named_among_healthy_ranks(tmp_path, seed):
    result = verdict(tmp_path, summary(phases(waiting(None), seed=seed)))
    assert (result.verdict, [f.ranks for f in result.findings]) == ("inconclusive", [()])
    assert "can't be told from means" in result.reason


def test_a_rank_that_computes_longer_is_shown_but_not_named(tmp_path):
    rows = phases(waiting(None))
    rows[3]["forward_ms"] += 50.0
    rows[3]["backward_ms"] -= 50.0
    result = verdict(tmp_path, summary(rows))
    assert (result.verdict, result.findings[0].ranks) == ("inconclusive", ())
    assert any("Forward" in line and "most on rank 3" in line for line in result.findings[0].evidence)
    assert "starprof record" in result.findings[0].next


def test_all_ranks_waiting_for_data_alike_blames_none(tmp_path):
    result = verdict(tmp_path, summary(phases([80.0 + r for r in range(8)])))
    assert result.verdict == "inconclusive"
    assert "42 % of the step" in result.reason


def test_waiting_that_differs_from_rank_to_rank_names_none(tmp_path):
    result = verdict(tmp_path, summary(phases([90.0, 60.0, 30.0, 1.0])))
    assert result.verdict == "inconclusive"
    assert "differ among themselves" in result.reason


def test_waiting_that_the_hosts_measured_may_be_hidden_behind_queued_work(tmp_path):
    result = verdict(tmp_path, summary(phases(waiting(5)), clock="cpu"))
    assert result.verdict == "inconclusive"
    assert "Rank 5 waits" in result.reason
    assert "may delay nobody" in result.reason


def test_without_any_gpu_the_hosts_clock_is_the_devices(tmp_path):
    assert verdict(tmp_path, summary(phases(waiting(5)), clock="cpu", gpus=0)).findings[0].ranks == (5,)


def test_a_rank_whose_peers_do_not_wait_for_it_in_their_passes_is_not_named(tmp_path):
    rows = phases(waiting(None))
    rows[1]["input_wait_ms"] += 60.0  # as where it waits in its loader for another rank's broadcast
    for rank, row in enumerate(rows):
        if rank != 1:
            row["residual_ms"] += 60.0
        row["step_time_ms"] += 60.0
    result = verdict(tmp_path, summary(rows))
    assert result.verdict == "inconclusive"
    assert "don't seem to wait" in result.reason


def test_sharded_weights_that_are_awaited_in_the_forward_pass_count_as_waiting(tmp_path):
    rows = phases(waiting(5))
    for rank, row in enumerate(rows):
        if rank != 5:
            row["forward_ms"] += 50.0
            row["backward_ms"] -= 50.0
    assert verdict(tmp_path, summary(rows)).findings[0].ranks == (5,)


def test_steps_of_different_length_are_not_compared(tmp_path):
    rows = phases(waiting(5))
    rows[5]["step_time_ms"] *= 1.4
    result = verdict(tmp_path, summary(rows))
    assert result.verdict == "inconclusive"
    assert "not equally long" in result.reason


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"world": 16}, "Only 8 of 16 ranks"), ({"steps": 5}, "Means over 5 steps only"), ({"steps": None}, "1 step")],
)
def test_too_few_ranks_or_steps_name_nobody(tmp_path, how, reason):
    content = summary(phases(waiting(5)), **{k: v or 1 for k, v in how.items()})
    if how == {"steps": None}:
        content["step_time"]["global"]["window"]["steps_analyzed"] = None
    result = verdict(tmp_path, content)
    assert result.verdict == "inconclusive"
    assert reason in result.reason


def test_a_single_rank_has_nobody_to_compare_with(tmp_path):
    assert "Only rank 0" in verdict(tmp_path, summary(phases([30.0]))).reason


def test_waiting_that_one_rank_did_not_measure_is_not_taken_for_zero(tmp_path):
    rows = phases(waiting(5))
    rows[2]["input_wait_ms"] = None
    result = verdict(tmp_path, summary(rows))
    assert result.verdict == "inconclusive"
    assert "data of rank 2 was not measured" in result.reason


def test_passes_that_were_not_measured_name_nobody(tmp_path):
    rows = phases(waiting(5))
    for row in rows:
        row["forward_ms"] = row["backward_ms"] = None
    assert verdict(tmp_path, summary(rows)).verdict == "inconclusive"


def test_summaries_before_the_two_clocks_are_read_as_the_hosts(tmp_path):
    rows = [
        {
            "total_step_ms": row["step_time_ms"],
            "dataloader_ms": row["input_wait_ms"],
            "forward_ms": row["forward_ms"],
            "backward_ms": row["backward_ms"],
            "wait_ms": 2.0,
        }
        for row in phases(waiting(5))
    ]
    run = read(tmp_path, summary(rows))
    assert run.steps["data_wait_us"][5, 0] == pytest.approx(60_000)
    assert run.steps["unaccounted_us"][5, 0] == pytest.approx(2_000)
    assert "as the hosts measure it" in diagnose(run).reason


def test_a_traced_step_beside_the_total_of_the_cpu_gets_its_waiting_added(tmp_path):
    rows = [
        row | {"total_step_ms": 999.0, "dataloader_ms": 0.1, "step_time_ms": row["traced_step_time_ms"]}
        for row in phases(waiting(5))
    ]
    for row in rows:
        del row["traced_step_time_ms"]
    run = read(tmp_path, summary(rows))
    assert run.steps["dur_us"][:, 0] == pytest.approx(STEP * 1e3, rel=0.01)
    assert diagnose(run).findings[0].ranks == (5,)


def test_traceml_s_own_finding_is_told_beside_ours(tmp_path):
    content = summary(phases(waiting(5)), kind="INPUT_STRAGGLER")
    content["step_time"]["diagnosis"]["ranks"] = [5, "<b>", -1]
    assert "TraceML itself says INPUT_STRAGGLER (rank 5)" in read(tmp_path, content).info["note"]
    content["step_time"]["diagnosis"]["kind"] = "\x1b[31m<b>"
    assert "TraceML itself" not in read(tmp_path, content).info["note"]


@pytest.mark.parametrize("rows", [{}, {"0": None}, {"0": {"identity": {}, "metrics": {"step_time_ms": None}}}])
def test_a_summary_without_step_times_says_so_in_one_line(tmp_path, rows):
    content = summary(phases([1.0, 2.0]), kind="NO_DATA")
    content["step_time"]["groups"]["rows"] = rows
    with pytest.raises(InputError, match="holds no step times of any rank; TraceML itself says NO_DATA"):
        read(tmp_path, content)


@pytest.mark.parametrize("left", ["system", "process", "meta", "step_memory", "duration_s"])
def test_other_sections_may_be_missing(tmp_path, left):
    content = summary(phases(waiting(5)))
    del content[left]
    assert verdict(tmp_path, content).findings[0].ranks == (5,)


def test_a_rank_that_comes_twice_is_refused(tmp_path):
    text = json.dumps(summary(phases([1.0, 2.0]))).replace('"rows": {"0":', '"rows": {"1": {}, "0":')
    with pytest.raises(InputError, match="unique keys"):
        loaded(tmp_path, text, "final_summary.json")
    with pytest.raises(InputError, match="rank 1 comes twice"):
        loaded(tmp_path, text.replace('{"1": {}', '{"01": {}'), "final_summary.json")


def test_a_file_cut_in_the_middle_is_refused_in_one_line(tmp_path):
    text = json.dumps(summary(phases(waiting(5))))
    with pytest.raises(InputError, match="cut off"):
        loaded(tmp_path, text[: len(text) // 2], "final_summary.json")


def test_summaries_of_two_runs_are_not_mixed(tmp_path):
    from starprof.importers.load import load

    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(summary(phases(waiting(5)))))
    with pytest.raises(InputError, match="2 summaries"):
        load([str(tmp_path)])


def test_the_verdict_survives_writing_and_reading_the_run(tmp_path):
    run = read(tmp_path, summary(phases(waiting(5))))
    save_run(run, tmp_path / "job.starprof")
    again = diagnose(load_run(tmp_path / "job.starprof"))
    assert (again.verdict, again.findings) == ("straggler", diagnose(run).findings)


HOSTILE = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(-(10**400), 10**400), st.lists(st.none())
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=HOSTILE, where=st.sampled_from(["input_wait_ms", "step_time_ms", "backward_ms", "steps", "end", "host"]))
def test_hostile_values_end_in_a_verdict_or_one_line(tmp_path, value, where):
    content = summary(phases(waiting(None)))
    window = content["step_time"]["global"]["window"]
    row = content["step_time"]["groups"]["rows"]["3"]
    if where == "host":
        row["identity"] = {"hostname": value, "node_rank": value, "local_rank": value, "world_size": value}
    elif where in ("steps", "end"):
        window["steps_analyzed" if where == "steps" else "end_step"] = value
    else:
        row["metrics"][where] = value
    try:
        result = verdict(tmp_path, content)
    except InputError as refused:
        told = str(refused)
        result = Verdict("", 0, None, "inconclusive", Cost(0.0, 0.0, 0.0), reason=told)
    assert "\n" not in result.reason
    assert all(np.isfinite([result.cost.seconds, result.cost.share]))
    assert not any(f.ranks for f in result.findings) or where == "input_wait_ms"
