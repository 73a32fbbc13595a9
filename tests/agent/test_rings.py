"""Which process a ring belongs to, and what is drained when writing fails."""

import json
import os
import subprocess
import time

import pytest

from starprof.agent.buffer import RowBuffer
from starprof.agent.rings import Rings
from starprof.collectors.base import NodeContext
from starprof.collectors.gpu_map import Card
from starprof.model.schema import BY_CODE, BY_NAME, INT_NULL, row
from starprof.spool.ringwriter import RingWriter


def packed(step):
    cells = row(BY_NAME["step"], attempt=0, rank=3, step=step, start_mono_ns=step, dur_us=1)
    return [INT_NULL if cell is None else cell for cell in cells]


@pytest.fixture
def context():
    return NodeContext()


@pytest.fixture
def rings(tmp_path, context):
    rings = Rings(tmp_path, context, {})
    yield rings
    rings.close()


def ring_of(folder, pid, made_ns=None, **description):
    made_ns = time.monotonic_ns() if made_ns is None else made_ns
    ring = RingWriter(folder / f"n0-{pid}-{made_ns}.ring", slots=64)
    ring.describe({"rank": 3, "attempt": 0, "pid": pid, "world_size": 8} | description)
    return ring


def drained(rings, rows=None):
    rings.find()
    return rings.drain(time.monotonic_ns(), rows or RowBuffer())


def steps(frames):
    return [(f.seq, f.rows) for f in frames if f.table.name == "step"]


def test_the_collectors_learn_the_ranks_process(tmp_path, rings, context):
    ring_of(tmp_path, os.getpid())
    drained(rings)

    assert context.rank_pids == {3: os.getpid()}
    assert rings.alive(time.monotonic_ns())


def test_a_later_process_with_the_same_pid_is_not_the_rank(tmp_path, rings, context):
    ring_of(tmp_path, os.getpid(), made_ns=1)
    drained(rings)

    assert context.rank_pids == {}


def test_after_a_restart_of_the_job_the_newest_attempt_is_the_rank(tmp_path, rings, context):
    with subprocess.Popen(["sleep", "60"]) as old:
        ring_of(tmp_path, old.pid, attempt=0)
        ring_of(tmp_path, os.getpid(), attempt=1)
        rows = RowBuffer()
        drained(rings, rows)
        assert context.rank_pids == {3: os.getpid()}
        old.kill()

    attempts = {code: content for code, content in rows.take().items() if BY_CODE[code].name == "attempt"}
    assert sorted(cells[0] for content in attempts.values() for cells in content) == [0, 1]


def test_what_could_not_be_written_is_drained_again(tmp_path, rings):
    ring = ring_of(tmp_path, os.getpid())
    for step in range(3):
        ring.step(step, packed(step))
    first = drained(rings)
    again = drained(rings)
    assert steps(first) == steps(again) == [(0, 3)]
    assert [f.table.name for f in again] == ["rank", "step"]

    assert rings.commit()
    ring.step(3, packed(3))
    assert steps(drained(rings)) == [(3, 1)]


def test_a_description_that_changes_is_sent_again(tmp_path, rings):
    ring = ring_of(tmp_path, os.getpid(), rank=None)
    assert [f.table.name for f in drained(rings)] == []
    rings.commit()
    ring.describe({"rank": 3, "attempt": 0, "pid": os.getpid()})

    assert [f.table.name for f in drained(rings)] == ["rank"]


def test_a_rank_that_said_good_bye_makes_no_event_of_its_own(tmp_path, rings, context):
    with subprocess.Popen(["sleep", "60"]) as process:
        ring = ring_of(tmp_path, process.pid)
        ring.event("rank-exit", mono_ns=1, attempt=0, rank=3, detail="exit")
        rows = RowBuffer()
        drained(rings, rows)
        rings.commit()
        process.kill()
    rings.close_ended(time.monotonic_ns(), rows)

    assert BY_NAME["event"].code not in rows.take()
    assert context.rank_pids == {}


def test_a_ring_is_kept_until_everything_in_it_is_written(tmp_path, rings):
    with subprocess.Popen(["sleep", "60"]) as process:
        ring = ring_of(tmp_path, process.pid)
        ring.step(0, packed(0))
        drained(rings)
        process.kill()
    rings.close_ended(time.monotonic_ns(), RowBuffer())

    assert steps(drained(rings)) == [(0, 1)]


def test_a_file_that_is_no_ring_yet_is_tried_again(tmp_path, rings):
    path = tmp_path / f"n0-{os.getpid()}-5.ring"
    path.write_bytes(b"")
    assert drained(rings) == []
    path.unlink()
    ring = RingWriter(path, slots=64)
    ring.step(0, packed(0))

    assert steps(drained(rings)) == [(0, 1)]


def test_a_successor_goes_on_where_the_agent_before_stopped(tmp_path, rings, context):
    ring = ring_of(tmp_path, os.getpid())
    for step in range(5):
        ring.step(step, packed(step))
    drained(rings)
    rings.commit()
    ring.step(5, packed(5))
    successor = Rings(tmp_path, context, rings.next_slots())

    assert steps(drained(successor)) == [(5, 1)]
    successor.close()


CARDS = [Card(f"GPU-{i}0000000-aaaa-bbbb-cccc-00000000000{i}", f"00000000:0{i}:00.0", "Invented GPU") for i in range(4)]


@pytest.mark.parametrize(
    ("said", "uuid", "reason"),
    [
        # CUDA_VISIBLE_DEVICES=3,1 makes physical GPU 1 the process's second device.
        ({"device": "cuda:1", "detail": {"CUDA_VISIBLE_DEVICES": "3,1"}}, CARDS[1].uuid, None),
        ({"device": "cuda:2", "detail": {}}, CARDS[2].uuid, None),
        ({"device": "cuda:0", "gpu_uuid": CARDS[3].uuid, "detail": {"CUDA_VISIBLE_DEVICES": "3"}}, CARDS[3].uuid, None),
        ({"device": "cuda:1", "detail": {"CUDA_VISIBLE_DEVICES": "2"}}, None, "device 1 is not visible"),
        ({"device": "cpu", "detail": {}}, None, None),
    ],
)
def test_a_ranks_gpu_is_completed_from_what_the_driver_lists(tmp_path, rings, context, said, uuid, reason):
    context.gpu_cards = lambda: CARDS
    ring_of(tmp_path, os.getpid(), **said)
    (cells,) = next(frame for frame in drained(rings) if frame.table.name == "rank").json_rows()
    told = dict(zip(BY_NAME["rank"].names, cells, strict=True))
    assert told["gpu_uuid"] == uuid
    assert (reason or "") in str(json.loads(told["detail"] or "{}").get("gpu_unknown", ""))
    assert ("gpu_unknown" in (told["detail"] or "")) == (reason is not None)
