"""Op traces: how they are read, what hostile ones lead to, and the published jobs with their published slowdowns."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.analysis.synthetic.op_job import OpJob
from starprof.analysis.whatif import op_trace, replay_of, shares
from starprof.cli import main
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.reports import html
from starprof.store.query import load_run
from starprof.store.save import save_run

PUBLISHED = "bytedance_whatif"
JOBS = ("AR", "ST", "SE")
SMALL = OpJob(pipelines=2, stages=2, micro_batches=4, steps=4)


def table_of(job):
    """The operations of a job as a parquet file of an op trace holds them."""
    frame = job.frame
    places = {info.rank: (info.role["dp"], info.role["pp"]) for info in job.ranks}
    return pa.table(
        {
            "dp_rank": pa.array([places[rank][0] for rank in frame["rank"]], pa.int8()),
            "stage": pa.array([places[rank][1] for rank in frame["rank"]], pa.int8()),
            "rank": pa.array(frame["rank"], pa.int16()),
            "step": pa.array(frame["step"], pa.int64()),
            "optype": pa.array(frame["name"], pa.string()).dictionary_encode(),
            "start_ts": pa.array(frame["start_us"] / 1e6, pa.float32()),
            "duration": pa.array(frame["dur_us"] / 1e6, pa.float32()),
            "seq_id": pa.array(frame["sequence"], pa.int32()),
            "mc": pa.array(frame["chunk"].fillna(-1).astype(int), pa.int8()),
            "mb_id": pa.array(frame["micro_batch"].fillna(-1).astype(int), pa.int8()),
        }
    )


@pytest.fixture(scope="module")
def table():
    return table_of(SMALL)


@pytest.fixture
def written(tmp_path):
    """Write a table as a trace; returns its path."""

    def write(content, name="trace-X.parquet"):
        pq.write_table(content, tmp_path / name)
        return str(tmp_path / name)

    return write


def changed(content, name, values):
    return content.set_column(content.column_names.index(name), name, values)


def refusal(path):
    with pytest.raises(InputError) as told:
        load([path])
    assert "\n" not in str(told.value)
    return str(told.value)


def test_operations_are_read_with_their_ranks_places_and_microseconds(table, written):
    run = load([written(table)])
    assert [(i.rank, dict(i.role)) for i in run.ranks] == [
        (0, {"dp": 0, "pp": 0}),
        (1, {"dp": 1, "pp": 0}),
        (2, {"dp": 0, "pp": 1}),
        (3, {"dp": 1, "pp": 1}),
    ]
    expected = SMALL.frame
    assert len(run.operations) == len(expected)
    assert list(run.operations["name"]) == list(expected["name"])
    assert run.operations["start_us"].to_numpy() == pytest.approx(expected["start_us"].to_numpy(), abs=0.2)
    assert run.operations["dur_us"].to_numpy() == pytest.approx(expected["dur_us"].to_numpy(), rel=1e-6)
    assert run.operations["micro_batch"].isna().tolist() == expected["micro_batch"].isna().tolist()


def test_what_the_trace_cannot_tell_is_said(table, written):
    run = load([written(table)])
    assert {"sequence lengths", "host and GPU counters"} <= set(run.unavailable["source"])


def test_ranks_are_numbered_by_stage_and_pipeline_where_the_trace_does_not_number_them(table, written):
    run = load([written(table.drop_columns(["rank"]))])
    assert [i.rank for i in run.ranks] == [0, 1, 2, 3]


def test_without_micro_batches_and_sequence_numbers_the_order_of_the_starts_is_taken(written):
    job = OpJob(slow={(2, 1): 1.5})
    bare = table_of(job).drop_columns(["mb_id", "mc", "seq_id"])
    verdict = diagnose(load([written(bare)]))
    assert [f.ranks for f in verdict.findings] == [(job.rank(2, 1),)]


def test_the_sidecar_tells_how_many_gpus_a_lost_second_costs(tmp_path, written):
    job = OpJob(slow={(2, 1): 1.5})
    alone = diagnose(load([written(table_of(job))]))
    (tmp_path / "meta-X.yaml").write_text("trial_name: X\nworld_size: 128\ntp_size: 8\n")
    verdict = diagnose(load([str(tmp_path / "trace-X.parquet")]))
    assert alone.cost.gpu_hours == pytest.approx(alone.cost.seconds * 16 / 3600, abs=1e-6)
    assert verdict.cost.gpu_hours == pytest.approx(verdict.cost.seconds * 128 / 3600, abs=1e-6)


def test_a_saved_run_gives_the_same_verdict(tmp_path, written):
    run = load([written(table_of(OpJob(slow={(2, 1): 1.5})))])
    save_run(run, tmp_path / "kept.starprof")
    first, second = diagnose(run), diagnose(load_run(tmp_path / "kept.starprof"))
    assert first.findings == second.findings
    assert first.cost == second.cost


def test_the_report_of_a_run_without_step_records_shows_the_shares(written):
    run = load([written(table_of(OpJob(slow={(2, 1): 1.5})))])
    page = html.render(run, diagnose(run))
    assert '<section id="whatif">' in page
    assert "S of the job" in page
    assert "backward-compute" in page


def test_several_traces_are_several_jobs_and_one_has_to_be_named(tmp_path, table, written):
    written(table, "trace-A.parquet")
    written(table, "trace-B.parquet")
    told = refusal(str(tmp_path))
    assert "trace-A.parquet, trace-B.parquet" in told
    assert "name one of them" in told


def test_another_parquet_file_is_not_an_op_trace(written):
    assert "no known format" in refusal(written(pa.table({"a": [1, 2]})))


def test_a_trace_that_is_cut_off_is_refused(tmp_path, table, written):
    path = Path(written(table))
    path.write_bytes(path.read_bytes()[:-100])
    refusal(str(path))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_never_lead_to_another_error(tmp_path, table, data):
    path = tmp_path / "trace-D.parquet"
    pq.write_table(table.slice(0, 200), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        diagnose(load([str(path)]))
    except InputError as told:
        assert "\n" not in str(told)  # noqa: PT017 - damage that is not seen is no error


def test_no_operation_at_all_is_refused(table, written):
    assert "no operation" in refusal(written(table.slice(0, 0)))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("duration", -1.0, "less than nothing"),
        ("duration", float("nan"), "not a number"),
        ("start_ts", float("inf"), "not a number"),
        ("duration", 1e9, "really in seconds"),
        ("stage", -3, "negative"),
        ("step", None, "empty"),
        ("optype", None, "name of every operation"),
    ],
)
def test_impossible_values_are_refused_with_what_is_wrong(table, written, column, value, words):
    values = table[column].to_pylist()
    values[7] = value
    kind = pa.string() if column == "optype" else pa.float64() if isinstance(value, float) else pa.int64()
    assert words in refusal(written(changed(table, column, pa.array(values, kind))))


def test_text_where_numbers_belong_is_refused(table, written):
    assert "seconds" in refusal(written(changed(table, "duration", pa.array(["long"] * len(table)))))


def test_a_rank_in_two_places_is_refused(table, written):
    ranks = pc.if_else(pc.equal(table["rank"], 3), 2, table["rank"])
    assert "contradict" in refusal(written(changed(table, "rank", pc.cast(ranks, pa.int64()))))


def test_an_operation_that_comes_twice_is_refused(table, written):
    assert "twice" in refusal(written(pa.concat_tables([table, table.slice(0, 5)])))


def test_a_name_for_every_row_is_no_operation_type(table, written):
    names = pa.array([f"op {at}" for at in range(len(table))])
    assert "kinds of operations" in refusal(written(changed(table, "optype", names)))


def test_names_with_markup_and_escapes_stay_inert(table, written, capsys):
    evil = "</script><script>alert(1)</script>\x1b[2J"
    names = [evil if name == "optimizer" else name for name in table["optype"].to_pylist()]
    path = written(changed(table, "optype", pa.array(names)))
    run = load([path])
    assert "<script>alert" not in html.render(run, diagnose(run))
    assert main(["analyze", path]) == 0
    assert "\x1b[2J" not in capsys.readouterr().out


def test_operations_that_wait_for_each_other_in_a_circle_are_inconclusive(table, written):
    ways = {"forward-send": "forward-recv", "forward-recv": "forward-send"}
    names = [ways.get(name, name) for name in table["optype"].to_pylist()]
    verdict = diagnose(load([written(changed(table, "optype", pa.array(names)))]))
    assert [r for f in verdict.findings for r in f.ranks] == []


@pytest.fixture(scope="module")
def published():
    """A published job, its replay and its published numbers, each read once."""
    known = {}

    def get(folder, job):
        if job not in known:
            run = load([str(folder / f"trace-{job}.parquet")])
            replay = replay_of(op_trace(run))
            told = {kind: json.loads((folder / f"{kind}-{job}.json").read_text()) for kind in ("result", "mw", "ms")}
            known[job] = (run, replay, shares(replay), told)
        return known[job]

    return get


def by_step(found, told):
    return np.array([told[str(step)] for step in found.steps])


TOLERANCE = 6e-7
"""The published numbers come from 32-bit ends of operations, ours from 64-bit ones."""


@pytest.mark.parametrize("job", JOBS)
def test_published_step_times_and_slowdowns_are_reproduced(public_data, published, job):
    _, _, found, told = published(public_data(PUBLISHED), job)
    result = told["result"]
    near = {"rel": TOLERANCE}
    assert found.measured_us / 1e6 == pytest.approx(by_step(found, result["step_t_base"]), **near)
    assert found.now_us / 1e6 == pytest.approx(by_step(found, result["step_t_nodelay"]), **near)
    assert found.ideal_us / 1e6 == pytest.approx(by_step(found, result["step_t_noblk"]), **near)
    assert found.slowdown.per_step == pytest.approx(by_step(found, result["blocking_step_slowdown"]), **near)
    assert found.launch.per_step == pytest.approx(by_step(found, result["launch_step_slowdown"]), **near)
    assert found.now_us.mean() / found.ideal_us.mean() == pytest.approx(result["blocking_slowdown"], **near)
    assert found.measured_us.mean() / found.now_us.mean() == pytest.approx(result["launch_slowdown"], **near)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("name", "attribute"), [("dp_rank", "by_pipeline"), ("stage", "by_stage"), ("optype", "by_type")]
)
def test_published_shares_are_reproduced_as_a_whole_and_step_by_step(public_data, published, job, name, attribute):
    _, _, found, told = published(public_data(PUBLISHED), job)
    mine = {str(key): slowdown for key, slowdown in getattr(found, attribute).items()}
    whole = told["result"][f"blocking_decompose_by_{name}"]
    steps = told["result"][f"blocking_decompose_by_{name}_per_step"]
    assert set(mine) == set(whole)
    for key, slowdown in mine.items():
        assert slowdown.mean == pytest.approx(whole[key], rel=TOLERANCE)
        expected = [steps[str(step)][key] for step in found.steps]
        assert slowdown.per_step == pytest.approx(np.array(expected), rel=TOLERANCE)


@pytest.mark.parametrize("job", JOBS)
def test_published_recovery_by_few_workers_and_by_the_last_stage_is_reproduced(public_data, published, job):
    _, replay, found, told = published(public_data(PUBLISHED), job)
    workers = replay.workers
    few = found.worst[: max(1, int(np.ceil(0.03 * len(found.worst))))]
    picks = {"mw": np.isin(np.arange(len(workers.rank)), few), "ms": workers.pp == workers.pp.max()}
    now, ideal = found.now_us.mean() / 1e6, found.ideal_us.mean() / 1e6
    for kind, picked in picks.items():

        def mask(part, picked=picked):
            return picked[part.worker]

        fixed, only = (float(t[0].mean()) / 1e6 for t in (replay.fixed([mask]), replay.only([mask])))
        expected = told[kind]
        mine = {
            "tori": now,
            "tideal": ideal,
            "trem": fixed,
            "tadd": only,
            "rem": (now - fixed) / (now - ideal),
            "add": (only - ideal) / (now - ideal),
        }
        mine["Mw" if kind == "mw" else "Ms"] = mine["rem"]
        assert set(mine) == set(expected)
        for key, value in mine.items():
            assert value == pytest.approx(expected[key], rel=TOLERANCE, abs=1e-6), (kind, key)
    assert found.recovered_by_few == pytest.approx(told["mw"]["Mw"], abs=1e-6)
    assert found.recovered_by_last_stage == pytest.approx(told["ms"]["Ms"], abs=1e-6)


@pytest.mark.parametrize("job", JOBS)
def test_with_the_32_bit_ends_of_the_published_tool_nothing_but_rounding_of_means_differs(public_data, published, job):
    run, _, _, told = published(public_data(PUBLISHED), job)
    frame = run.operations.copy()
    starts, lasting = (np.float32(frame[c].to_numpy() / 1e6) for c in ("start_us", "dur_us"))
    rounded = ((starts + lasting).astype(np.float64) - starts) * 1e6
    together = ~frame["name"].astype(str).isin(["forward-compute", "backward-compute", "optimizer", "gc"])
    together &= frame["name"].astype(str) != "layernorm-grads-all-reduce"
    frame["dur_us"] = np.where(together, rounded, frame["dur_us"])
    replay = replay_of(op_trace(type(run)(**{**vars(run), "operations": frame})))
    result = told["result"]
    steps = [str(step) for step in replay.steps]
    assert replay.now_us / 1e6 == pytest.approx(np.array([result["step_t_nodelay"][s] for s in steps]), rel=1e-12)
    assert replay.ideal_us / 1e6 == pytest.approx(np.array([result["step_t_noblk"][s] for s in steps]), rel=1e-9)


def test_the_job_with_a_busy_gpu_names_rank_0_and_nobody_else(public_data, published):
    run, _, found, _ = published(public_data(PUBLISHED), "AR")
    verdict = diagnose(run)
    (finding,) = verdict.findings
    assert (verdict.verdict, finding.ranks, finding.kind) == ("straggler", (0,), "chronic")
    assert finding.cause in ("gpu-compute", "backward-compute", "forward-compute")
    assert any("100 % of that is recovered" in line for line in finding.evidence)
    assert found.recovered[1] == pytest.approx(1.0, abs=0.01)


def test_the_job_with_a_heavy_last_stage_is_structural(public_data, published):
    verdict = diagnose(published(public_data(PUBLISHED), "ST")[0])
    (finding,) = verdict.findings
    assert (verdict.verdict, finding.ranks, finding.role) == ("structural", (), {"pp": 3})
    assert finding.cause == "pipeline-stage"


def test_the_job_with_unequal_sequences_is_workload_skew(public_data, published):
    verdict = diagnose(published(public_data(PUBLISHED), "SE")[0])
    assert verdict.verdict == "workload-skew"
    assert (verdict.findings[0].cause, verdict.findings[0].kind) == ("sequence-length", "rotating")
    assert [rank for finding in verdict.findings for rank in finding.ranks] == []
    assert any("correlation 0.99" in line for line in verdict.findings[0].evidence)


def test_the_folder_of_three_jobs_asks_which(public_data):
    assert "name one of them" in refusal(str(public_data(PUBLISHED)))


def test_from_the_command_line_to_a_kept_run_and_a_page_with_the_cost_in_money(tmp_path, written, capsys):
    path, kept, page = written(table_of(OpJob(slow={(2, 1): 1.5}))), tmp_path / "kept", tmp_path / "page.html"
    assert main(["analyze", path, "-o", str(kept), "--html", str(page), "--gpu-hour-price", "2"]) == 0
    shown = capsys.readouterr().out
    assert "rank 6" in shown
    assert "In money" in shown
    assert "at the given price" in page.read_text()
    assert main(["summary", f"{kept}.starprof", "--json", "--gpu-hour-price", "2"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["findings"][0]["ranks"] == [6]
    assert verdict["cost"]["money"] == pytest.approx(2 * verdict["cost"]["gpu_hours"], abs=1e-5)
    assert main(["report", f"{kept}.starprof", "-o", str(page), "--force"]) == 0
    assert "at the given price" not in page.read_text()


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(written, table, capsys, price):
    assert main(["analyze", written(table), "--gpu-hour-price", price]) == 2
    assert "a price is a number" in capsys.readouterr().err
