"""Flight-recorder dumps: what is taken from them, and what hostile ones do."""

import json
import pickle
import tarfile

import numpy as np
import pytest
from flight_dumps import Job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from starprof.errors import InputError
from starprof.importers.load import load

WORLD = {"0": [0, 1, 2, 3]}


def small_job():
    return Job(WORLD).run_of("0", 1, 3).call("0", 4, [0, 1, 2], "scheduled")


def rows(run, rank):
    table = run.collectives
    return table[table["rank"] == rank]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_dump_gives_one_row_per_call(tmp_path, form):
    run = load([small_job().write(tmp_path, form=form)])
    assert [info.rank for info in run.ranks] == [0, 1, 2, 3]
    mine = rows(run, 0)
    assert mine["sequence"].tolist() == [1, 2, 3, 4]
    assert mine["name"].tolist() == ["all_reduce"] * 4
    assert mine["state"].tolist() == ["completed"] * 3 + ["scheduled"]
    assert mine["bytes"].tolist() == [4096] * 4
    assert set(mine["ranks"]) == {"0-3"}
    assert set(mine["group_name"]) == {"group 0 (0)"}


def test_no_time_of_a_call_is_made_up(tmp_path):
    run = load([small_job().write(tmp_path)])
    assert run.collectives["dur_us"].isna().all()
    assert run.collectives["step"].isna().all()


def test_a_duration_that_was_measured_is_kept(tmp_path):
    job = small_job()
    job.entries[0][0]["duration_ms"] = 1.5
    run = load([job.write(tmp_path)])
    assert rows(run, 0)["dur_us"].tolist()[0] == 1500.0


def test_the_rank_in_the_content_goes_before_the_one_in_the_file_name(tmp_path):
    for rank in (0, 1):
        content = {**small_job().dump(rank), "rank": rank + 2}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(content, 2))
    assert [info.rank for info in load([str(tmp_path)]).ranks] == [2, 3]


@pytest.mark.parametrize("name", ["nccl_trace_rank_{}", "_dump_{}", "{}.pkl", "rank{}.json"])
def test_the_rank_is_taken_from_usual_file_names(tmp_path, name):
    run = load([small_job().write(tmp_path, name=name)])
    assert [info.rank for info in run.ranks] == [0, 1, 2, 3]


def test_a_file_name_without_a_number_is_an_error(tmp_path):
    (tmp_path / "dump").write_bytes(pickle.dumps(small_job().dump(0), 2))
    with pytest.raises(InputError, match="does not say its rank"):
        load([str(tmp_path / "dump")])


def test_a_rank_that_comes_twice_is_an_error(tmp_path):
    job = small_job()
    job.write(tmp_path)
    job.write(tmp_path, name="copy_{}")
    with pytest.raises(InputError, match="rank 0 comes twice"):
        load([str(tmp_path)])


def test_dumps_of_several_jobs_are_told_apart(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        small_job().write(tmp_path / name)
    with pytest.raises(InputError, match=r"dumps of 2 jobs.*first.*second"):
        load([str(tmp_path)])


def test_a_tar_of_dumps_is_read(tmp_path):
    (tmp_path / "job").mkdir()
    small_job().write(tmp_path / "job")
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "job", "job")
    assert len(load([str(tmp_path / "dumps.tar.gz")]).ranks) == 4


def test_a_dump_without_entries_stays_a_rank_and_is_said(tmp_path):
    job = Job(WORLD, only_pending=True).run_of("0", 1, 3).call("0", 4, [0, 1, 2], "scheduled")
    run = load([job.write(tmp_path)])
    assert len(run.ranks) == 4
    assert "no entries in the dumps of ranks 3" in run.info["note"]


def test_the_status_says_the_last_call_of_a_rank_without_entries(tmp_path):
    job = Job(WORLD, only_pending=True).run_of("0", 1, 3).call("0", 4, [0, 1, 2], "scheduled")
    mine = rows(load([job.write(tmp_path)]), 3)
    assert mine["sequence"].tolist() == [3]
    assert mine["state"].tolist() == ["completed"]
    assert mine["name"].isna().all()


def test_a_rank_that_never_called_has_a_row_that_stands_for_no_call(tmp_path):
    job = Job(WORLD).call("0", 1, [0, 1, 2], "scheduled")
    mine = rows(load([job.write(tmp_path)]), 3)
    assert mine["sequence"].tolist() == [0]
    assert mine["calls"].tolist() == [0]


def test_the_status_of_a_group_with_sends_is_not_taken_for_collectives(tmp_path):
    # It counts sends too, which every rank numbers for itself.
    job = Job({"0": [0, 1]}).run_of("0", 1, 3).send("0", 0, 1, count=50)
    assert rows(load([job.write(tmp_path)]), 0)["sequence"].dropna().max() == 3


def test_a_status_that_its_own_entries_contradict_is_not_taken(tmp_path):
    job = Job(WORLD, only_pending=True).run_of("0", 1, 3).call("0", 4, [0, 1, 2], "scheduled")
    folder = job.write(tmp_path)
    wrong = job.dump(0)
    wrong["pg_status"]["0"]["last_enqueued_collective"] = 2
    (tmp_path / "dump_0").write_bytes(pickle.dumps(wrong, 2))
    assert not len(rows(load([folder]), 3))


def test_sends_name_both_ends_as_global_ranks_and_have_no_sequence(tmp_path):
    job = Job({"0": [0, 1, 2, 3], "7": [1, 3]}).run_of("0", 1, 1).send("7", 1, 3).send("7", 3, 1, kind="recv")
    table = load([job.write(tmp_path)]).collectives
    sent = table[table["sequence"].isna()]
    assert sent["name"].tolist() == ["send 1->3", "recv 3<-1"]


def test_groups_of_one_name_with_different_members_stay_apart(tmp_path):
    for rank, members in ((0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [2, 3])):
        job = Job({"0": members}).run_of("0", 1, 2)
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(job.dump(rank), 2))
    assert load([str(tmp_path)]).collectives["group_name"].nunique() == 2


def test_hosts_are_taken_where_a_dump_names_them(tmp_path):
    for rank in range(4):
        content = {**small_job().dump(rank), "host_name": f"node{rank // 2}"}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(content, 2))
    infos = load([str(tmp_path)]).ranks
    assert [(info.host, info.node) for info in infos] == [("node0", 0), ("node0", 0), ("node1", 1), ("node1", 1)]


def test_times_in_the_job_are_microseconds(tmp_path):
    run = load([small_job().write(tmp_path)])
    assert np.isclose(rows(run, 0)["start_us"].tolist()[0], 1_700_000_000_001_000.0)


HOSTILE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("[0, 1]")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=10,
)
FIELDS = (
    "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "profiling_name", "time_created_ns", "input_sizes",
    "input_dtypes", "state", "is_p2p", "duration_ms",
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(entry=st.dictionaries(st.sampled_from(FIELDS), HOSTILE), config=HOSTILE, status=HOSTILE)
def test_fields_of_the_wrong_kind_never_raise_anything_else(tmp_path, entry, config, status):
    good = small_job().dump(0)
    content = {**good, "entries": [entry, *good["entries"]], "pg_config": config, "pg_status": status}
    (tmp_path / "dump_0").write_bytes(pickle.dumps(content, 4))
    assert len(load([str(tmp_path / "dump_0")]).collectives) >= 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_dump_is_data_or_one_line(tmp_path, data):
    whole = bytearray(pickle.dumps(small_job().dump(0), 2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(30, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "dump_0").write_bytes(whole[: data.draw(st.integers(40, len(whole)))])
    try:
        load([str(tmp_path / "dump_0")])
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right


def test_deeply_nested_json_is_one_line(tmp_path):
    (tmp_path / "dump_0").write_text('{"pg_config": ' + "[" * 200_000)
    with pytest.raises(InputError, match="cut off or no JSON"):
        load([str(tmp_path / "dump_0")])


def test_json_of_nothing_but_brackets_takes_no_memory(tmp_path):
    (tmp_path / "dump_0").write_text('{"pg_config": {}, "entries": [' + "{}," * 4_100_000 + "{}]}")
    with pytest.raises(InputError, match="more than can be true"):
        load([str(tmp_path / "dump_0")])


def test_shared_lists_of_sizes_are_not_walked_for_ever(tmp_path):
    shape = [1] * 60
    sizes, types = [shape] * 5000, ["Float"] * 5000
    entry = {**small_job().dump(0)["entries"][0], "input_sizes": sizes, "input_dtypes": types}
    content = {**small_job().dump(0), "entries": [entry] * 1000}
    (tmp_path / "dump_0").write_bytes(pickle.dumps(content, 4))
    with pytest.raises(InputError, match="more than can be true"):
        load([str(tmp_path / "dump_0")])


def test_json_that_is_something_else_is_not_recognised(tmp_path):
    (tmp_path / "dump_0").write_text(json.dumps({"pg": 1}))
    with pytest.raises(InputError, match="no known format"):
        load([str(tmp_path / "dump_0")])
