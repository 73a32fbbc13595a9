"""Reading runs: what is saved comes back, and files are completed before they are read."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spool_parts import TinyRing
from store_parts import SECOND_NS, new_spool, rows_frame, send, step_frame, steps_of

from starprof.errors import NoDataError, RunFileError
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.schema import BY_NAME, row
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter
from starprof.store import query
from starprof.store.ingest import fold
from starprof.store.query import load_run, open_for_reading
from starprof.store.runfile import RunFile, arrow_rows
from starprof.store.save import save_run
from starprof.store.steps import VALUES

ROWS = st.integers(0, 2**53)


def frame_of(table: str, rows: list[dict[str, object]]) -> pd.DataFrame:
    names = BY_NAME[table].names
    return pd.DataFrame([[r.get(n) for n in names] for r in rows], columns=list(names))


@st.composite
def runs(draw: st.DrawFn) -> RunData:
    """Runs of a few ranks and steps, with holes in the records and in the columns."""
    count, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    first = draw(st.integers(0, 3))
    starts = np.array(draw(st.lists(st.lists(ROWS, min_size=length, max_size=length), min_size=count, max_size=count)))
    starts[0] = np.maximum(starts[0], 1)  # every step was recorded by somebody
    cells = st.one_of(st.integers(0, 10**9), st.none())
    columns = {}
    for name in VALUES:
        drawn = draw(st.lists(cells, min_size=count * length, max_size=count * length))
        values = np.array([np.nan if v is None else float(v) for v in drawn]).reshape(count, length)
        columns[name] = np.where(starts > 0, values, np.nan)
    ranks = tuple(
        RankInfo(
            rank=r,
            node=r % 2,
            host=f"host{r % 2}",
            local_rank=draw(st.one_of(st.none(), st.integers(0, 7))),
            cpus=draw(st.sampled_from([None, "0-3,8"])),
            role=draw(st.sampled_from([{}, {"dp": r}, {"dp": 0, "tp": r, "pp": 1}])),
            backend=draw(st.sampled_from([None, "gloo"])),
            detail=draw(st.sampled_from([{}, {"buckets": 3, "saw": ["ddp"]}])),
        )
        for r in range(count)
    )
    cpu = [{"node": 0, "mono_ns": n, "cpu": -1, "user_us": n, "idle_us": draw(cells)} for n in draw(st.lists(ROWS))]
    return RunData(
        info={"run_id": draw(st.text("abc", min_size=1)), "name": "x", "exit_code": draw(st.sampled_from([None, 0]))},
        attempt=draw(st.integers(0, 3)),
        ranks=ranks,
        steps=Steps(np.arange(first, first + length), columns, starts),
        samples={"cpu_sample": frame_of("cpu_sample", cpu), "nic": frame_of("nic", [{"node": 0, "name": "eth0"}])},
        events=frame_of("event", [{"node": 0, "attempt": None, "kind": "gc", "value": 7, "detail": "x"}]),
        gaps=frame_of("gap", []),
        unavailable=frame_of("unavailable", [{"node": 1, "source": "nvml", "reason": "no driver"}]),
        nodes=frame_of("node", [{"node": 0, "host": "host0"}, {"node": 1, "host": "host1"}]),
        clock_offset_ns={0: (0, 0), 1: (draw(st.integers(-(2**40), 2**40)), 5)},
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs())
def test_a_saved_run_comes_back_as_it_was(tmp_path: Path, run: RunData) -> None:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.starprof"
    save_run(run, path)
    read = load_run(path)
    assert {k: read.info[k] for k in run.info} == run.info
    assert (read.attempt, read.ranks, read.clock_offset_ns) == (run.attempt, run.ranks, run.clock_offset_ns)
    np.testing.assert_array_equal(read.steps.steps, run.steps.steps)
    np.testing.assert_array_equal(read.steps.start_mono_ns, run.steps.start_mono_ns)
    for name in VALUES:
        np.testing.assert_array_equal(read.steps[name], run.steps[name])
    for name in ("cpu_sample", "nic"):
        assert_same_rows(read.samples[name], run.samples[name])
    for name in ("events", "gaps", "unavailable", "nodes"):
        assert_same_rows(getattr(read, name), getattr(run, name))


def assert_same_rows(read: pd.DataFrame, saved: pd.DataFrame) -> None:
    assert list(read.columns) == list(saved.columns)
    plain = [[None if pd.isna(v) else v for v in row] for row in read.itertuples(index=False)]
    assert plain == [[None if pd.isna(v) else v for v in row] for row in saved.itertuples(index=False)]


def test_an_existing_file_is_not_overwritten(run_file: Path) -> None:
    run_file.write_text("mine")
    with pytest.raises(RunFileError, match="exists"):
        save_run(empty_run(), run_file)
    assert run_file.read_text() == "mine"


def empty_run() -> RunData:
    steps = Steps(np.zeros(0, np.int64), {}, np.zeros((0, 0), np.int64))
    frames = [frame_of(t, []) for t in ("event", "gap", "unavailable", "node")]
    return RunData({}, 0, (), steps, {}, *frames)


def test_integers_without_null_stay_integers(spool: Spool, run_file: Path) -> None:
    send(spool, rows_frame("nic", 0, {"node": 0, "nic": 1, "name": "eth0"}, {"node": 0, "nic": 2}))
    send(spool, rows_frame("gap", 0, {"node": 0, "lost_rows": 3}, {"node": None, "lost_rows": None}))
    fold(spool, run_file)
    run = load_run(run_file)
    assert run.samples["nic"]["nic"].dtype == np.int64
    assert run.samples["nic"]["name"].tolist() == ["eth0", None]
    assert run.gaps["lost_rows"].dtype == np.float64


def test_the_longest_attempt_is_read_unless_another_is_asked_for(spool: Spool, run_file: Path) -> None:
    for attempt, steps in ((0, 3), (1, 9), (2, 2)):
        cells = [{"attempt": attempt, "rank": 0, "step": s, "start_mono_ns": 1 + s} for s in range(steps)]
        send(spool, rows_frame("step", 0, *cells, stream=f"n0-{attempt}-1/slots"))
    fold(spool, run_file)
    run = load_run(run_file)
    assert (run.attempt, run.info["attempts"], run.steps.steps.tolist()) == (1, (0, 1, 2), list(range(9)))
    assert load_run(run_file, attempt=2).steps.steps.tolist() == [0, 1]
    with pytest.raises(NoDataError, match="no attempt 7: there are 0, 1, 2"):
        load_run(run_file, attempt=7)


def test_a_rank_of_which_only_steps_are_known_is_there(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2))
    fold(spool, run_file)
    assert load_run(run_file).ranks == (RankInfo(rank=0, node=-1, host=""),)


def test_events_of_other_attempts_are_left_out(spool: Spool, run_file: Path) -> None:
    found = [{"attempt": a, "kind": k} for a, k in ((0, "gc"), (1, "eval"), (None, "xid"))]
    send(spool, rows_frame("event", 0, *found))
    fold(spool, run_file)
    assert load_run(run_file).events["kind"].tolist() == ["gc", "xid"]


def test_nodes_of_one_boot_share_the_clock(spool: Spool, run_file: Path) -> None:
    nodes = [{"node": n, "boot_id": b} for n, b in ((0, "x"), (1, "x"), (2, "y"), (3, "z"))]
    clocks = [{"node": 3, "offset_ns": o, "error_ns": e} for o, e in ((100, 50), (120, 10), (90, 30))]
    send(spool, rows_frame("node", 0, *nodes), rows_frame("clock", 0, *clocks))
    fold(spool, run_file)
    assert load_run(run_file).clock_offset_ns == {0: (0, 0), 1: (0, 0), 3: (120, 10)}


def test_of_too_many_samples_whole_ticks_are_left_out(
    spool: Spool, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [{"node": 0, "mono_ns": t * SECOND_NS, "cpu": c, "user_us": t} for t in range(30) for c in range(4)]
    send(spool, rows_frame("cpu_sample", 0, *cells))
    fold(spool, run_file)
    monkeypatch.setattr(query, "SAMPLE_ROWS_MAX", 40)
    samples = load_run(run_file).samples["cpu_sample"]
    assert len(samples) == 40
    assert samples.groupby("mono_ns").size().tolist() == [4] * 10


def test_an_interrupted_recording_is_completed_by_whoever_reads_first(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2))
    TinyRing(spool.rings / "n0-999999999-5.ring").step(7, rank=1)
    spool.lock.touch()
    run = load_run(run_file)
    assert run.steps.steps.tolist() == [0, 1, 7]
    assert "interrupted recording" in run.info["note"]
    assert not spool.root.exists()
    assert load_run(run_file).info["note"] == ""


def test_a_spool_directory_can_be_named_instead_of_its_file(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2))
    assert load_run(spool.root).steps.steps.tolist() == [0, 1]


def test_while_a_job_outlives_its_recorder_its_rings_stay(spool: Spool, run_file: Path) -> None:
    ring = TinyRing(spool.rings / f"n0-{os.getpid()}-5.ring")
    ring.step(0)
    assert "its job still runs" in load_run(run_file).info["note"]
    ring.step(1)
    assert load_run(run_file).steps.steps.tolist() == [0, 1]
    ring.map.close()


def test_a_damaged_file_of_an_interrupted_recording_is_kept(spool: Spool, run_file: Path) -> None:
    (spool.segments / "n0.1.seg").write_bytes(step_frame(0).encode() + b"junk")
    assert "1 damaged files" in load_run(run_file).info["note"]
    assert (spool.segments / "n0.1.seg.bad").exists()


def test_a_live_recording_is_read_from_a_copy_and_left_alone(spool: Spool, run_file: Path) -> None:
    with spool.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NoDataError, match="has just begun"):
            load_run(run_file)
        send(spool, step_frame(0, 2))
        fold(spool, run_file)
        writer = SegmentWriter(spool.segments, "n0")
        writer.write([step_frame(2, 2)])
        with open_for_reading(run_file) as reading:
            assert "still being recorded" in reading.note
            assert reading.run.query("SELECT count(*) FROM step") == [(2,)]
            fold(spool, run_file, wait_s=0)  # the ingester is not kept waiting
            assert reading.run.query("SELECT count(*) FROM step") == [(2,)]
        writer.close()
    assert [p.name for p in spool.root.glob("snapshot-*")] == []
    assert steps_of(run_file) == [0, 1, 2, 3]


def test_a_spool_that_is_just_being_made_is_left_alone(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        run.append("run", arrow_rows("run", [row(BY_NAME["run"], run_id="r0", name="x")]))
    spool = Spool.beside(run_file)
    spool.create()
    assert load_run(run_file).info["run_id"] == "r0"
    assert spool.segments.exists()


def test_what_cannot_be_folded_in_is_said_and_the_rest_is_read(run_file: Path) -> None:
    first = new_spool(run_file)
    send(first, step_frame(0, 2))
    fold(first, run_file)
    other = new_spool(run_file, run_id="r2")
    send(other, step_frame(5))
    run = load_run(run_file)
    assert run.steps.steps.tolist() == [0, 1]
    assert "can't be folded in, it is missing here" in run.info["note"]
    assert json.loads(other.run_json.read_text())["run_id"] == "r2"


@pytest.mark.root
def test_a_run_on_a_read_only_disk_is_read_as_it_is(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        spool = new_spool(disk / "job.starprof")
        send(spool, step_frame(0, 2))
        fold(spool, disk / "job.starprof")
        send(spool, step_frame(2, 2))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        run = load_run(disk / "job.starprof")
        assert run.steps.steps.tolist() == [0, 1]
        assert "can't be folded in, it is missing here" in run.info["note"]
        assert "Read-only file system" in run.info["note"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_last_row_that_names_a_device_is_valid(spool: Spool, run_file: Path) -> None:
    named = [{"node": 0, "nic": 5, "name": "eth0", "master": m} for m in (None, "bond0")]
    send(spool, rows_frame("nic", 0, {"node": 0, "nic": 4, "name": "lo"}, *named))
    fold(spool, run_file)
    nic = load_run(run_file).samples["nic"]
    assert nic[["nic", "master"]].values.tolist() == [[4, None], [5, "bond0"]]
