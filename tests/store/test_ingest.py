"""Folding in: every row exactly once, in order, and nothing lost silently."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spool_parts import TinyRing
from store_parts import STEP, new_spool, rows_frame, rows_of, send, step_cells, step_frame, steps_of

from starprof.errors import RunFileError
from starprof.model.schema import BY_NAME
from starprof.spool.frame import PACKED, Frame, packed_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter, list_segments
from starprof.store.batch import Batch, Position
from starprof.store.ingest import BUSY_EXIT_CODE, fold
from starprof.store.runfile import RunFile, RunFileLocked


def test_rows_go_into_the_table_and_the_segment_goes_away(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 3), rows_frame("node", 0, {"node": 0, "host": "a"}))
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1, 2]
    assert rows_of(run_file, "SELECT node, host, kernel FROM node") == [(0, "a", None)]
    assert (report.rows, report.duplicates, report.gaps, report.left) == (4, 0, 0, ())
    assert list_segments(spool.segments) == []


def test_the_packed_null_becomes_a_real_one(spool: Spool, run_file: Path) -> None:
    gpu = BY_NAME["gpu_sample"]
    cells = {"node": 0, "mono_ns": 1, "gpu": 0, "util_pct": 12.5}
    send(spool, packed_frame(gpu, "n0-1-1/gpu_sample", 0, [[cells.get(n) for n in gpu.names]]))
    fold(spool, run_file)
    found = rows_of(run_file, "SELECT gpu, util_pct, power_w, sm_clock_mhz FROM gpu_sample")
    assert found == [(0, 12.5, None, None)]


def test_folding_again_adds_nothing(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 3))
    copy = {s.path: s.path.read_bytes() for s in list_segments(spool.segments)}
    fold(spool, run_file)
    for path, data in copy.items():
        path.write_bytes(data)
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1, 2]
    assert (report.rows, report.duplicates) == (0, 3)


def test_what_overlaps_is_cut(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 4), step_frame(2, 4))
    send(spool, rows_frame("unavailable", 0, {"node": 0, "source": "a"}, {"node": 0, "source": "b"}))
    send(spool, rows_frame("unavailable", 1, {"node": 0, "source": "b"}, {"node": 0, "source": "c"}))
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1, 2, 3, 4, 5]
    assert rows_of(run_file, "SELECT source FROM unavailable") == [("a",), ("b",), ("c",)]
    assert report.duplicates == 3


def test_a_hole_becomes_a_gap_with_its_size_and_times(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2))
    fold(spool, run_file)
    send(spool, step_frame(5, 2))
    report = fold(spool, run_file)
    assert report.gaps == 1
    (gap,) = rows_of(run_file, "SELECT * FROM gap")
    reason = "overwritten in the ring before they were read"
    assert gap == ("n0-7-1/slots", 0, 0, 2_000_000, 6_000_000, 3, reason)
    assert steps_of(run_file) == [0, 1, 5, 6]


def test_rows_that_come_after_their_hole_was_recorded_are_not_taken(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(2))
    fold(spool, run_file)
    send(spool, step_frame(0, 2))
    fold(spool, run_file)
    assert steps_of(run_file) == [2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=12), st.integers(0, 12))
def test_the_ledger_takes_every_row_once_and_counts_every_hole(sent: list[tuple[int, int]], known: int) -> None:
    batch = Batch({"s/slots": Position(known, None)})
    expected, highest, lost = [], known, 0
    for seq, rows in sent:
        batch.accept(step_frame(seq, rows, stream="s/slots"))
        lost += max(0, seq - highest) if seq + rows > highest else 0
        expected += [n for n in range(seq, seq + rows) if n >= highest]
        highest = max(highest, seq + rows)
    taken = b"".join(batch._packed.get("step", (STEP, []))[1])
    steps = [int.from_bytes(taken[i + 16 : i + 24], "little") for i in range(0, len(taken), 8 * len(STEP.columns))]
    assert steps == expected
    assert batch.next_seq("s/slots") == highest
    assert sum(r[5] for r in batch._plain.get("gap", (None, []))[1]) == lost


def test_a_living_writers_part_is_read_and_left(spool: Spool, run_file: Path) -> None:
    writer = SegmentWriter(spool.segments, "n0")
    writer.write([step_frame(0, 2)])
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1]
    assert [p.suffix for p in report.left] == [".part"]
    writer.write([step_frame(2, 2)])
    writer.close()
    fold(spool, run_file)
    assert steps_of(run_file) == [0, 1, 2, 3]


def test_a_dead_writers_part_is_folded_in_without_its_torn_end(spool: Spool, run_file: Path) -> None:
    path = spool.segments / "n0.1.part"
    path.write_bytes(step_frame(0, 2).encode() + step_frame(2, 2).encode()[:-3])
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1]
    assert (report.damaged, report.left) == ((), ())
    assert not path.exists()


def test_a_damaged_segment_gives_its_good_frames_and_is_kept_aside(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2), step_frame(2, 2), step_frame(4, 2))
    (segment,) = list_segments(spool.segments)
    data = bytearray(segment.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.path.write_bytes(data)
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1, 4, 5]
    assert [p.name for p in report.damaged] == [segment.path.name]
    assert [p.suffix for p in spool.segments.iterdir()] == [".bad"]
    gaps = rows_of(run_file, "SELECT source, lost_rows, reason FROM gap ORDER BY source")
    assert [g[:2] for g in gaps] == [("n0-7-1/slots", 2), (segment.path.name, None)]
    assert "unreadable bytes" in str(gaps[1][2])


@pytest.mark.parametrize(
    "frame",
    [
        Frame(STEP, "n0-7-1/slots", 2, 2, PACKED, b"12345678"),
        Frame(STEP, "n0-7-1/slots", 2, 1, 9, b""),
        rows_frame("node", 0, {"node": "zero"}),
        rows_frame("node", 0, {"host": 12}),
        rows_frame("node", 0, {"cpus": 2**63}),
        Frame(BY_NAME["node"], "n", 0, 1, 2, b"[[1]]"),
        Frame(BY_NAME["node"], "n", 0, 1, 2, b"[["),
        Frame(BY_NAME["node"], "n", 0, 1, PACKED, bytes(8 * len(BY_NAME["node"].columns))),
    ],
    ids=["short", "encoding", "text-for-int", "int-for-text", "too-large", "narrow", "no-json", "packed-text"],
)
def test_a_frame_that_does_not_fit_its_table_does_not_stop_the_others(
    frame: Frame, spool: Spool, run_file: Path
) -> None:
    send(spool, step_frame(0, 2), frame, rows_frame("disk", 0, {"node": 0, "name": "sda"}))
    report = fold(spool, run_file)
    assert steps_of(run_file) == [0, 1]
    assert rows_of(run_file, "SELECT name FROM disk") == [("sda",)]
    assert len(report.damaged) == 1
    assert len(rows_of(run_file, "SELECT * FROM gap")) == 1


def test_a_final_fold_empties_and_removes_the_rings_of_dead_ranks(spool: Spool, run_file: Path) -> None:
    ring = TinyRing(spool.rings / "n2-999999999-5.ring")
    ring.describe(json.dumps({"attempt": 0, "rank": 3, "node": 2, "world_size": 4, "pid": 7}).encode())
    ring.step(0, rank=3)
    ring.event("gc", step=0)
    ring.step(1, rank=3)
    fold(spool, run_file)
    assert steps_of(run_file) == []
    fold(spool, run_file, final=True)
    assert steps_of(run_file) == [0, 1]
    assert rows_of(run_file, "SELECT node, kind FROM event") == [(2, "gc")]
    assert rows_of(run_file, "SELECT rank, node, world_size FROM rank") == [(3, 2, 4)]
    assert rows_of(run_file, "SELECT * FROM attempt") == [(0, 1_000_000, 4)]
    assert list(spool.rings.iterdir()) == []


def test_the_ring_is_read_from_where_the_agent_stopped(spool: Spool, run_file: Path) -> None:
    stem = "n0-999999999-5"
    ring = TinyRing(spool.rings / f"{stem}.ring", slots=4)
    for step in range(6):
        ring.step(step)
    send(spool, step_frame(0, 4, stream=f"{stem}/slots"))
    report = fold(spool, run_file, final=True)
    assert steps_of(run_file) == [0, 1, 2, 3, 4, 5]
    assert report.gaps == 0


def test_the_ring_of_a_living_rank_stays(spool: Spool, run_file: Path) -> None:
    ring = TinyRing(spool.rings / f"n0-{os.getpid()}-5.ring")  # this process maps it
    ring.step(0)
    report = fold(spool, run_file, final=True)
    assert report.left == (ring.path,)
    ring.step(1)
    ring.map.close()
    assert fold(spool, run_file, final=True).left == ()
    assert steps_of(run_file) == [0, 1]
    assert not ring.path.exists()


def test_a_ring_that_cannot_be_read_is_kept_aside(spool: Spool, run_file: Path) -> None:
    (spool.rings / "n0-999999999-5.ring").write_bytes(bytes(8192))
    fold(spool, run_file, final=True)
    assert [p.name for p in spool.rings.iterdir()] == ["n0-999999999-5.ring.bad"]
    assert len(rows_of(run_file, "SELECT * FROM gap")) == 1


def test_only_the_newest_description_of_a_rank_stays(spool: Spool, run_file: Path) -> None:
    for version, backend in ((0, "?"), (3, "gloo"), (2, "old")):
        cells = {"attempt": 0, "rank": 1, "backend": backend}
        send(spool, rows_frame("rank", version, cells, stream="n0-7-1/rank"))
        fold(spool, run_file)
    assert rows_of(run_file, "SELECT rank, backend FROM rank") == [(1, "gloo")]
    assert rows_of(run_file, "SELECT * FROM gap") == []


def test_the_run_row_follows_run_json(spool: Spool, run_file: Path) -> None:
    fold(spool, run_file)
    assert rows_of(run_file, "SELECT name, command, exit_code FROM run") == [("job", "python train.py", None)]
    known = json.loads(spool.run_json.read_text())
    spool.run_json.write_text(json.dumps({**known, "ended_unix_ns": 5, "exit_code": 3}))
    fold(spool, run_file, final=True)
    assert rows_of(run_file, "SELECT ended_unix_ns, exit_code FROM run") == [(5, 3)]


def test_another_recording_does_not_go_into_the_same_file(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0))
    fold(spool, run_file)
    other = new_spool(run_file, run_id="r2")
    send(other, step_frame(1))
    with pytest.raises(RunFileError, match="already holds another run"):
        fold(other, run_file)
    assert steps_of(run_file) == [0]
    assert len(list_segments(other.segments)) == 1


def test_the_spool_can_be_read_without_touching_it(spool: Spool, run_file: Path, tmp_path: Path) -> None:
    send(spool, step_frame(0, 2))
    TinyRing(spool.rings / "n0-999999999-5.ring").step(9, rank=1)
    before = sorted(p for p in spool.root.rglob("*"))
    fold(spool, tmp_path / "copy.starprof", final=True, consume=False)
    assert steps_of(tmp_path / "copy.starprof") == [0, 1, 9]
    assert sorted(p for p in spool.root.rglob("*")) == before


def test_a_second_ingester_says_who_is_at_work(spool: Spool, run_file: Path) -> None:
    with (spool.root / "ingest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4242")
        lock.flush()
        with pytest.raises(RunFileLocked, match="by process 4242"):
            fold(spool, run_file, wait_s=0.1)


@pytest.mark.root
def test_on_a_full_disk_the_rows_stay_in_the_spool_until_there_is_space(spool: Spool, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        run_file = disk / "job.starprof"
        fold(spool, run_file)
        (disk / "ballast").write_bytes(bytes(24_000_000 - run_file.stat().st_size))
        cells = [step_cells(s, start_mono_ns=hash((s, 1)), dur_us=hash((s, 2))) for s in range(20_000)]
        send(spool, packed_frame(STEP, "n0-7-1/slots", 0, cells))
        with pytest.raises(RunFileError, match="no space left"):
            fold(spool, run_file)
        assert len(list_segments(spool.segments)) == 1
        (disk / "ballast").unlink()
        fold(spool, run_file)
        assert steps_of(run_file) == list(range(20_000))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def run_ingester(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "starprof.store.ingest", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_the_ingester_process_folds_and_is_silent(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2))
    done = run_ingester(str(spool.root), str(run_file), "--final")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert steps_of(run_file) == [0, 1]


def test_the_ingester_process_says_in_one_line_what_is_wrong(spool: Spool, run_file: Path) -> None:
    run_file.write_text("not a database" * 500)
    done = run_ingester(str(spool.root), str(run_file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"starprof: {run_file} was not written by starprof\n"


def test_a_busy_run_file_has_its_own_exit_code(spool: Spool, run_file: Path) -> None:
    with RunFile.open(run_file):
        done = run_ingester(str(spool.root), str(run_file))
    assert done.returncode == BUSY_EXIT_CODE
    assert f"in use by process {os.getpid()}" in done.stderr


def test_the_ingester_imports_neither_pandas_nor_torch(spool: Spool, run_file: Path) -> None:
    send(spool, step_frame(0, 2), rows_frame("disk", 0, {"node": 0, "name": "sda"}))
    script = (
        "import sys; from starprof.store.ingest import main; "
        f"code = main([{str(spool.root)!r}, {str(run_file)!r}, '--final']); "
        "print(code, sorted({'pandas', 'torch', 'scipy', 'typer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 []\n", "")
    assert steps_of(run_file) == [0, 1]


def test_step_cells_cover_the_table() -> None:
    assert len(step_cells(0)) == len(STEP.columns)
