"""The spool, read while it is written: every step once, whatever becomes of the segments meanwhile."""

import json
import time

from starprof.advisor import Ranks, StepTime
from starprof.advisor.feed import SpoolFeed
from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import json_frame, packed_frame
from starprof.spool.segment import SegmentWriter, list_segments

RANK, STEP, NODE = BY_NAME["rank"], BY_NAME["step"], BY_NAME["node"]


def rank_frame(rank, attempt=0, world=2):
    cells = row(RANK, attempt=attempt, rank=rank, node=0, local_rank=rank, world_size=world, detail=json.dumps({}))
    return json_frame(RANK, f"r{rank}-{attempt}/rank", 0, [cells])


def step_frame(rank, numbers, attempt=0):
    start = time.monotonic_ns() - 5_000_000_000
    rows = [
        row(
            STEP, attempt=attempt, rank=rank, step=n, start_mono_ns=start + n * 1000, dur_us=1000, forward_us=300,
            backward_us=400, blocked_us=250, checkpoint_us=50,
        )
        for n in numbers
    ]  # fmt: skip
    return packed_frame(STEP, f"r{rank}-{attempt}/slots", numbers[0], rows)


def host_frame():
    return json_frame(NODE, "n0/node", 0, [row(NODE, node=0, host="alpha")])


def test_steps_come_once_as_they_are_written_and_when_their_segment_is_sealed(tmp_path):
    feed = SpoolFeed(tmp_path)
    writer = SegmentWriter(tmp_path, "n0", seal_seconds=1e9)
    assert list(feed.read()) == []
    writer.write([rank_frame(0), host_frame(), rank_frame(1)])
    (ranks,) = feed.read()
    assert isinstance(ranks, Ranks)
    assert [(info.rank, info.host) for info in ranks.ranks] == [(0, "alpha"), (1, "alpha")]
    writer.write([step_frame(1, [0, 1]), step_frame(0, [0, 1])])
    steps = list(feed.read())
    assert [(s.step, s.rank) for s in steps] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert isinstance(steps[0], StepTime)
    assert (steps[0].own_s, steps[0].blocked_s, steps[0].busy_s) == (0.0007, 0.00025, 0.00005)
    writer.write([step_frame(0, [2])])
    writer.seal()
    writer.write([step_frame(0, [3])])
    assert [s.step for s in feed.read()] == [2, 3]
    for segment in list_segments(tmp_path):
        if segment.sealed:
            segment.path.unlink()  # folded in
    assert list(feed.read()) == []
    writer.close()


def test_a_torn_frame_is_waited_for(tmp_path):
    feed = SpoolFeed(tmp_path)
    part = tmp_path / "n0.0000000000000001.part"
    data = rank_frame(0, world=1).encode() + step_frame(0, [0]).encode()
    part.write_bytes(data[:-10])
    assert [type(event) for event in feed.read()] == [Ranks]
    part.write_bytes(data)
    assert [event.step for event in feed.read()] == [0]


def test_an_advisor_that_starts_anew_knows_the_ranks(tmp_path):
    kept, segments = tmp_path / "ranks", tmp_path / "segments"
    segments.mkdir()
    writer = SegmentWriter(segments, "n0", seal_seconds=0.0)
    writer.write([host_frame(), rank_frame(0), rank_frame(1)])
    (before,) = SpoolFeed(segments, kept=kept).read()
    for segment in list_segments(segments):
        segment.path.unlink()  # folded in
    writer.write([step_frame(0, [7])])
    after, step = SpoolFeed(segments, kept=kept).read()
    assert after == before
    assert step.step == 7
    writer.close()


def test_a_restart_begins_anew(tmp_path):
    feed = SpoolFeed(tmp_path)
    writer = SegmentWriter(tmp_path, "n0")
    writer.write([rank_frame(0, world=1), step_frame(0, [0])])
    assert len(list(feed.read())) == 2
    writer.write([rank_frame(0, attempt=1), step_frame(0, [5], attempt=0)])
    assert list(feed.read()) == [], "one of two ranks, and a step of before"
    writer.write([rank_frame(1, attempt=1), step_frame(0, [0], attempt=1)])
    ranks, step = feed.read()
    assert (ranks.attempt, len(ranks.ranks), step.step) == (1, 2, 0)
    writer.close()
