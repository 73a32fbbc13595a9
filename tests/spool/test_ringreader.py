"""Rings: every slot is read once or counted as lost, and the writer never notices."""

from __future__ import annotations

from pathlib import Path

import pytest
from spool_parts import TinyRing, step_cells

from starprof.errors import SpoolError
from starprof.model.schema import INT_NULL
from starprof.model.tables.job import EVENT, RANK, STEP
from starprof.spool.frame import packed_frame
from starprof.spool.ringreader import RingReader, rank_frame


def packed(step: int) -> bytes:
    return packed_frame(STEP, "", 0, [step_cells(step)]).payload


def test_new_slots_are_read_from_where_the_last_batch_ended(tiny_ring: TinyRing) -> None:
    reader = RingReader(tiny_ring.path)
    tiny_ring.step(0)
    tiny_ring.step(1)
    first = reader.read(0)
    tiny_ring.step(2)
    second = reader.read(first.next_slot)
    assert first.steps == [packed(0), packed(1)]
    assert (second.first_slot, second.next_slot, second.lost, second.steps) == (2, 3, 0, [packed(2)])
    assert reader.read(3).slots == ()


def test_overwritten_slots_are_counted_as_lost(tiny_ring: TinyRing) -> None:
    for step in range(20):
        tiny_ring.step(step)
    batch = RingReader(tiny_ring.path).read(5)
    assert batch.steps == [packed(step) for step in range(13, 20)]  # 8 slots, the oldest may be in the writer's hands
    assert (batch.lost, batch.next_slot) == (8, 20)


def test_slots_overwritten_while_they_are_copied_are_lost_not_wrong(tiny_ring: TinyRing) -> None:
    class Lapped(RingReader):
        """The writer laps the reader between its first and its second look."""

        looks = 0

        @property
        def written(self) -> int:
            self.looks += 1
            if self.looks == 2:
                for step in range(8, 12):
                    tiny_ring.step(step)
            return super().written

    for step in range(8):
        tiny_ring.step(step)
    batch = Lapped(tiny_ring.path).read(0)
    assert batch.steps == [packed(step) for step in range(5, 8)]
    assert (batch.lost, batch.next_slot) == (5, 8)


def test_a_slot_that_was_never_finished_is_left_alone(tiny_ring: TinyRing) -> None:
    tiny_ring.step(0)
    tiny_ring.put(1, packed(1)[:100], publish=False)
    batch = RingReader(tiny_ring.path).read(0)
    assert (batch.steps, batch.next_slot, batch.lost) == ([packed(0)], 1, 0)


def test_a_damaged_slot_in_the_middle_is_lost(tiny_ring: TinyRing) -> None:
    tiny_ring.step(0)
    tiny_ring.put(99, b"?")
    tiny_ring.step(2)
    batch = RingReader(tiny_ring.path).read(0)
    assert (batch.steps, batch.next_slot, batch.lost) == ([packed(0), packed(2)], 3, 1)


def test_steps_and_events_share_the_numbering_of_slots(tiny_ring: TinyRing) -> None:
    tiny_ring.step(0)
    tiny_ring.step(1)
    tiny_ring.event("gc", step=1, detail="gen 2")
    tiny_ring.step(2)
    batch = RingReader(tiny_ring.path).read(0)
    frames = batch.frames("n3-17-99", node=3)
    assert [(f.table, f.stream, f.seq, f.rows) for f in frames] == [
        (STEP, "n3-17-99/slots", 0, 2),
        (EVENT, "n3-17-99/slots", 2, 1),
        (STEP, "n3-17-99/slots", 3, 1),
    ]
    assert frames[1].json_rows() == [[3, 0, 0, 5, 1, "gc", 7, "gen 2"]]
    assert batch.events == [(0, 0, 5, 1, 7, "gc", "gen 2")]


def test_a_hole_ends_a_frame(tiny_ring: TinyRing) -> None:
    tiny_ring.step(0)
    tiny_ring.put(99, b"?")
    tiny_ring.step(2)
    assert [f.seq for f in RingReader(tiny_ring.path).read(0).frames("r", 0)] == [0, 2]


def test_cells_without_a_value_become_null(tiny_ring: TinyRing) -> None:
    tiny_ring.event("hook-note", step=None)
    batch = RingReader(tiny_ring.path).read(0)
    assert batch.events[0][3] is None
    assert batch.frames("r", 0)[0].json_rows()[0][4] is None
    assert INT_NULL not in batch.frames("r", 0)[0].json_rows()[0]


def test_the_description_is_read_whole_or_not_at_all(tiny_ring: TinyRing) -> None:
    reader = RingReader(tiny_ring.path)
    assert reader.description() is None
    tiny_ring.describe(b'{"rank": 4}')
    assert reader.description() == (2, {"rank": 4})
    tiny_ring.generation += 1  # the writer was killed in the middle of a change
    tiny_ring.map[36:40] = tiny_ring.generation.to_bytes(4, "little")
    assert reader.description() is None


def test_a_description_becomes_one_rank_row_numbered_by_its_version() -> None:
    frame = rank_frame("n0-17-99", 4, {"rank": 4, "attempt": 0, "node": 0, "buckets": 3, "detail": {"seen": "ddp"}})
    assert frame is not None
    assert (frame.table, frame.stream, frame.seq) == (RANK, "n0-17-99/rank", 1)
    cells = dict(zip(RANK.names, frame.json_rows()[0], strict=True))
    assert (cells["rank"], cells["pid"], cells["detail"]) == (4, None, '{"seen": "ddp", "buckets": 3}')


def test_a_process_that_does_not_know_its_rank_has_no_rank_row() -> None:
    assert rank_frame("r", 2, {"pid": 17}) is None


def test_a_file_that_is_no_ring_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ring"
    with pytest.raises(SpoolError, match="can't read the ring"):
        RingReader(path)
    path.write_bytes(b"short")
    with pytest.raises(SpoolError, match="too short"):
        RingReader(path)
    path.write_bytes(bytes(8192))
    with pytest.raises(SpoolError, match="has not initialised"):
        RingReader(path)


def test_a_ring_of_another_version_is_refused(tiny_ring: TinyRing) -> None:
    tiny_ring.map[8] = 99
    with pytest.raises(SpoolError, match="another version of starprof"):
        RingReader(tiny_ring.path)


def test_a_ring_that_was_cut_off_is_refused(tiny_ring: TinyRing) -> None:
    tiny_ring.map[24:28] = (1000).to_bytes(4, "little")
    with pytest.raises(SpoolError, match="cut off"):
        RingReader(tiny_ring.path)
