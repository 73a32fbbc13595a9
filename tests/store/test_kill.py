"""kill -9, many times and for real: what was acknowledged is in the run file, once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_parts import new_spool, rows_of, send, step_frame

from starprof.spool.layout import Spool
from starprof.spool.segment import list_segments
from starprof.store.ingest import fold

KILLS = 15

WRITER = """
import itertools, sys
from pathlib import Path
sys.path += sys.argv[3:]
from store_parts import step_frame
from starprof.spool.segment import SegmentWriter
stream, spool = sys.argv[2], Path(sys.argv[1])
writer = SegmentWriter(spool, "n0", seal_bytes=20_000)
for number in itertools.count():
    writer.write([step_frame(3 * number, 3, stream=stream)])
    print(3 * number + 3, flush=True)
"""

RING_WRITER = """
import itertools, sys
from pathlib import Path
from starprof.model.columns import packed_cells
from starprof.spool.ringwriter import RingWriter
sys.path += sys.argv[2:]
from store_parts import step_cells, STEP
import os
ring = RingWriter(Path(sys.argv[1]) / f"n0-{os.getpid()}-1.ring", slots=1_000_000 // 320)
print(ring.path, flush=True)
for step in itertools.count():
    ring.step(step, packed_cells(STEP, step_cells(step)))
    print(step + 1, flush=True)
"""

HELPERS = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "spool")]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to be cleaned up, however the test ends."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", script, *arguments, *HELPERS]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen[str], lines: int) -> list[str]:
    """SIGKILL after some lines of output; everything that it had printed by then."""
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    printed += process.stdout.readlines()
    assert process.wait() == -signal.SIGKILL
    return [line for line in printed if line.endswith("\n")]


def test_rows_of_a_killed_writer_are_there_once(
    spool: Spool, run_file: Path, started: list[subprocess.Popen[str]]
) -> None:
    rng = random.Random(1)
    acknowledged: dict[str, int] = {}
    for life in range(KILLS):
        stream = f"n0-{life}-1/step"
        process = start(WRITER, str(spool.segments), stream)
        started.append(process)
        acknowledged[stream] = int(kill_after(process, rng.randrange(1, 60))[-1])
        if life % 4 == 3:
            fold(spool, run_file)
    assert fold(spool, run_file, final=True).damaged == ()
    assert_each_row_once(run_file, acknowledged)
    assert list_segments(spool.segments) == []


def test_rows_in_the_ring_of_a_killed_rank_are_there_once(
    spool: Spool, run_file: Path, started: list[subprocess.Popen[str]]
) -> None:
    rng = random.Random(2)
    acknowledged: dict[str, int] = {}
    for _ in range(KILLS):
        process = start(RING_WRITER, str(spool.rings))
        started.append(process)
        path, *counts = kill_after(process, rng.randrange(2, 200))
        acknowledged[f"{Path(path.strip()).stem}/slots"] = int(counts[-1])
    fold(spool, run_file, final=True)
    assert_each_row_once(run_file, acknowledged)
    assert list(spool.rings.iterdir()) == []


def assert_each_row_once(run_file: Path, acknowledged: dict[str, int]) -> None:
    """Streams hold steps 0..n-1 each, n being at least what was acknowledged; nothing is doubled."""
    ledger = dict(rows_of(run_file, "SELECT stream, next_seq FROM ledger"))
    assert ledger.keys() == acknowledged.keys()
    assert all(ledger[stream] >= count for stream, count in acknowledged.items())
    expected = sorted(step for count in ledger.values() for step in range(count))
    found = [step for (step,) in rows_of(run_file, "SELECT step FROM step ORDER BY step")]
    assert found == expected
    assert rows_of(run_file, "SELECT * FROM gap") == []


INGESTER = """
import os, signal, sys
from pathlib import Path
from starprof.spool.layout import Spool
from starprof.store import ingest
ingest.COMMIT_BYTES, ingest.APPEND_BYTES = 60_000, 20_000
print("ready", flush=True)
ingest.fold(Spool(Path(sys.argv[1])), Path(sys.argv[2]), final=True)
print("done", flush=True)
"""


def test_an_ingester_that_is_killed_again_and_again_folds_everything_in_once(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    run_file = tmp_path / "job.starprof"
    spool = new_spool(run_file)
    rows = _send_more(spool, 0, segments=60)
    rng = random.Random(3)
    half_way = kills = 0
    while kills < KILLS:
        process = start(INGESTER, str(spool.root), str(run_file))
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = len(list_segments(spool.segments))
        if kills % 2:  # at any moment, most often before the first commit
            time.sleep(rng.uniform(0, 0.1))
        else:  # after a commit
            while process.poll() is None and len(list_segments(spool.segments)) == before:
                time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:  # it was faster than the kill
            rows = _send_more(spool, rows, segments=40)
            continue
        kills += 1
        half_way += 0 < len(list_segments(spool.segments)) < before
        rows = _send_more(spool, rows, segments=10)
    fold(spool, run_file, final=True)
    assert half_way
    assert rows_of(run_file, "SELECT count(*), count(DISTINCT step), max(step) FROM step") == [(rows, rows, rows - 1)]
    assert rows_of(run_file, "SELECT * FROM gap") == []
    assert list_segments(spool.segments) == []


def _send_more(spool: Spool, rows: int, *, segments: int) -> int:
    """Write more segments of 100 rows; returns the number of rows written so far."""
    for _ in range(segments):
        send(spool, step_frame(rows, 100))
        rows += 100
    return rows
