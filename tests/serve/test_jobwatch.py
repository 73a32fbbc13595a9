"""The watch of a running job: what it makes of records that come late, twice, in pieces, or not at all."""

import json
import os

import numpy as np
import pytest
from serve_parts import MS, describe_ranks, own_times, spool_in, step_cells, step_frame

from starprof.model.schema import BY_NAME, row
from starprof.serve.assembler import PATIENCE_S, Assembler
from starprof.serve.clocks import DRIFT_PPM, ClockTrack
from starprof.serve.jobwatch import JobWatch
from starprof.serve.standing import EXPIRES_S
from starprof.serve.tail import SpoolTail
from starprof.spool.frame import json_frame
from starprof.spool.segment import SegmentWriter
from starprof.store.ingest import fold

WORLD = 4


@pytest.fixture
def spool(tmp_path):
    return spool_in(tmp_path)


@pytest.fixture
def watch(spool):
    made = JobWatch(spool)
    yield made
    made.close()


def steps_of_all(first, count, slow=(), **slowness):
    return [
        step_frame(rank, first, own_times(first + count, seed=rank, **(slowness if rank in slow else {}))[first:])
        for rank in range(WORLD)
    ]


class TestVerdict:
    def test_late_rank_is_named_with_host_onset_and_size(self, spool, watch):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write(describe_ranks(WORLD))
        told = []
        watch.finding_changed = told.append
        for first in range(0, 400, 20):
            writer.write(steps_of_all(first, 20, slow={3}, slow_from=300, factor=1.5))
            watch.poll(first / 20)
        (blame,) = watch.blames(20.0)
        assert (blame.rank, blame.host, blame.status) == (3, "host1", "confirmed")
        assert abs(blame.onset_step - 300) <= 3
        assert 1.4 < blame.slowdown < 1.6
        assert 0.3 < blame.lost_s < 0.6
        assert watch.verdict().verdict == "straggler"
        assert {finding.rank for finding in told} == {3}
        writer.close()

    def test_verdict_expires(self, spool, watch):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write([*describe_ranks(WORLD), *steps_of_all(0, 400, slow={1}, slow_from=200, factor=2.0)])
        watch.poll(5.0)
        assert [blame.rank for blame in watch.blames(5.0)] == [1]
        assert watch.blames(5.0 + EXPIRES_S) == ()
        writer.close()

    def test_new_start_of_the_job_begins_anew(self, spool, watch):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write([*describe_ranks(WORLD), *steps_of_all(0, 400, slow={1}, slow_from=200, factor=2.0)])
        watch.poll(1.0)
        writer.write(describe_ranks(2, attempt=1))
        writer.write([step_frame(rank, 0, own_times(50, seed=rank), attempt=1) for rank in range(2)])
        watch.poll(2.0)
        assert (watch.attempt, len(watch.ranks), watch.last_step()) == (1, 2, 49)
        assert watch.blames(2.0) == ()
        writer.close()


class TestExactlyOnce:
    def test_rows_that_come_twice_count_once(self, spool, watch):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write(describe_ranks(WORLD))
        for first, count in ((0, 30), (20, 30), (20, 30)):
            writer.write(steps_of_all(first, count))
        watch.poll(1.0)
        assert watch.step_rows == 50 * WORLD
        assert watch.tail.duplicates == WORLD * (10 + 30)
        writer.close()

    def test_segment_that_is_folded_in_while_it_is_read_is_read_to_its_end(self, spool, watch, tmp_path):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write(describe_ranks(WORLD))
        writer.write(steps_of_all(0, 30))
        watch.poll(1.0)
        writer.write(steps_of_all(30, 30))
        writer.close()
        fold(spool, tmp_path / "run.starprof")
        assert list(spool.segments.iterdir()) == []
        watch.poll(2.0)
        assert watch.last_step() == 59

    def test_watch_that_is_started_again_still_knows_the_ranks(self, spool, tmp_path):
        writer = SegmentWriter(spool.segments, "n0")
        writer.write([*describe_ranks(WORLD), *steps_of_all(0, 30)])
        first = JobWatch(spool)
        first.poll(1.0)
        first.close()
        writer.seal()
        fold(spool, tmp_path / "run.starprof")
        writer.write(steps_of_all(30, 30))
        second = JobWatch(spool)
        second.poll(2.0)
        assert (len(second.ranks), second.ranks[3].host, second.last_step()) == (WORLD, "host1", 59)
        second.close()
        writer.close()

    def test_torn_frame_is_read_once_it_is_whole(self, spool):
        tail = SpoolTail(spool.segments, {frame.table.code for frame in steps_of_all(0, 1)})
        data = b"".join(frame.encode() for frame in steps_of_all(0, 5))
        part = spool.segments / "n0.1.part"
        found = []
        for end in (10, len(data) // 2, len(data) - 1, len(data)):
            part.write_bytes(data[:end])
            found += tail.poll()
        assert [frame.rows for frame in found] == [5] * WORLD
        tail.close()

    def test_frames_behind_a_damaged_place_are_read(self, spool):
        tail = SpoolTail(spool.segments, {frame.table.code for frame in steps_of_all(0, 1)})
        data = [frame.encode() for frame in steps_of_all(0, 5)]
        (spool.segments / "n0.1.seg").write_bytes(data[0] + b"damage" + data[1])
        assert [frame.stream for frame in tail.poll()] == ["n0-0-0/slots", "n0-1-0/slots"]
        assert tail.damaged == 1
        tail.close()

    def test_rows_of_wrong_types_harm_nothing(self, spool, watch):
        rank = BY_NAME["rank"]
        bad = [row(rank, attempt=0, rank=[1], node={"a": 1}), row(rank, attempt="x", rank=0), [1, 2], 7]
        data = [json_frame(rank, f"n0-9-{i}/rank", 0, [cells]) for i, cells in enumerate(bad)]
        writer = SegmentWriter(spool.segments, "n0")
        writer.write([*data, *describe_ranks(WORLD), *steps_of_all(0, 5)])
        watch.poll(1.0)
        assert watch.last_step() == 4
        writer.close()


class TestAssembler:
    def cells(self, rank, steps):
        return np.array([step_cells(rank, step, 10 * MS) for step in steps], dtype=np.int64)

    def test_step_waits_for_all_ranks_but_not_for_ever(self):
        assembler = Assembler([0, 1])
        assembler.add(self.cells(0, range(3)), 1.0)
        assembler.add(self.cells(1, range(2)), 1.0)
        assert assembler.take(1.0).steps.tolist() == [0, 1]
        assert assembler.take(1.0) is None
        late = assembler.take(1.0 + PATIENCE_S)
        assert late.steps.tolist() == [2]
        assert np.isnan(late.own_us[1]).all()
        assembler.add(self.cells(1, [2]), 9.0)
        assert assembler.late_rows == 1

    def test_rank_that_is_cut_off_is_not_waited_for(self):
        assembler = Assembler([0, 1])
        assembler.add(self.cells(0, range(3)), 1.0)
        assert assembler.take(1.0, np.array([False, True])).steps.tolist() == [0, 1, 2]

    def test_optimizer_counts_to_the_step_after(self):
        rows = self.cells(0, range(3))
        names = BY_NAME["step"].names
        rows[:, names.index("optimizer_us")] = [100, 200, 300]
        assembler = Assembler([0])
        assembler.add(rows, 1.0)
        assert assembler.take(1.0).own_us[0].tolist() == [10 * MS, 10 * MS - 100, 10 * MS - 100]

    def test_more_steps_than_the_window_holds_are_handed_on(self):
        assembler = Assembler(range(2))
        count = assembler.window + 100
        for rank in range(2):
            assembler.add(self.cells(rank, range(count)), 1.0)
        taken = []
        while (whole := assembler.take(1.0)) is not None:
            taken += whole.steps.tolist()
        assert taken == list(range(count))

    def test_strange_ranks_are_left_out(self):
        assembler = Assembler([0, 2])
        for rank in (0, 1, 2, 7):
            assembler.add(self.cells(rank, [0]), 1.0)
        assert assembler.take(1.0).own_us.shape == (2, 1)


class TestClocks:
    def test_error_grows_with_age_and_shrinks_where_measurements_overlap(self):
        track = ClockTrack()
        assert track.now() is None
        track.add(0, 1000, 200)
        track.add(0, 1200, 100)
        assert (track.now().offset_ns, track.now().error_ns) == (1150, 50)
        hour = 3_600_000_000_000
        assert track.at(hour).error_ns == 50 + hour * DRIFT_PPM // 1_000_000

    def test_jump_of_a_clock_makes_older_measurements_void(self):
        track = ClockTrack()
        track.add(0, 0, 100)
        track.add(1_000_000_000, 10_000_000_000, 100)
        assert track.now().offset_ns == 10_000_000_000


def test_what_the_watch_keeps_is_for_its_owner_only(spool, watch):
    writer = SegmentWriter(spool.segments, "n0")
    writer.write(describe_ranks(WORLD))
    watch.poll(1.0)
    assert os.stat(spool.root / "live.known").st_mode & 0o077 == 0
    writer.close()


def test_description_is_json(spool, watch):
    from starprof.serve.view import describe

    writer = SegmentWriter(spool.segments, "n0")
    writer.write([*describe_ranks(WORLD), *steps_of_all(0, 400, slow={2}, slow_from=200, factor=2.0)])
    watch.poll(1.0)
    (spool.root / "advisor.json").write_text('{"schema": 1, "phase": "watching", "notes": []}')
    told = json.loads(json.dumps(describe(watch, "run", 1.5, ranks=2), allow_nan=False))
    assert told["ranks"][0]["rank"] == 2
    assert len(told["ranks"]) == 2
    assert (told["world_size"], told["step"], told["mode"]) == (WORLD, 399, "native")
    assert told["advisor"]["phase"] == "watching"
    writer.close()
