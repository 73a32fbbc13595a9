"""Segments: what a writer acknowledged is there, once, whatever happens to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spool_parts import step_frame

from starprof.errors import SpoolError
from starprof.spool.segment import SegmentWriter, claim, list_segments, readable_frames


def seqs(path: Path) -> list[int]:
    return [frame.seq for frame, _, _ in readable_frames(path.read_bytes())]


def test_frames_come_back_in_order_from_sealed_segments(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n0", seal_bytes=1)
    for number in range(3):
        writer.write([step_frame(2 * number), step_frame(2 * number + 1)])
    writer.close()
    found = list_segments(tmp_path)
    assert all(segment.sealed for segment in found)
    assert [s for segment in found for s in seqs(segment.path)] == [0, 1, 2, 3, 4, 5]


def test_a_part_is_sealed_when_it_is_old_enough(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n0", seal_seconds=0.0)
    writer.write([step_frame(0)])
    assert [segment.sealed for segment in list_segments(tmp_path)] == [True]
    writer.close()


def test_written_frames_are_visible_before_the_seal(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n0")
    writer.write([step_frame(0)])
    (part,) = list_segments(tmp_path)
    assert not part.sealed
    assert seqs(part.path) == [0]
    writer.close()


def test_closing_a_writer_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    SegmentWriter(tmp_path, "n0").close()
    assert list(tmp_path.iterdir()) == []


def test_a_living_writers_part_cannot_be_claimed(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "n0")
    writer.write([step_frame(0)])
    (part,) = list_segments(tmp_path)
    assert claim(part.path) is None
    writer.seal()
    assert claim(part.path) is None  # renamed: it is not there any more


def test_a_new_writer_adopts_what_a_killed_one_left_and_goes_on_behind_it(tmp_path: Path) -> None:
    whole, torn = step_frame(0).encode(), step_frame(1).encode()[:-1]
    (tmp_path / "n0.000000000007.part").write_bytes(whole + torn)
    writer = SegmentWriter(tmp_path, "n0")
    writer.write([step_frame(1)])
    writer.close()
    found = list_segments(tmp_path)
    assert [seqs(segment.path) for segment in found] == [[0], [1]]
    assert found[0].path.read_bytes() == whole


def test_a_part_without_a_whole_frame_is_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "n0.7.part").write_bytes(step_frame(0).encode()[:-1])
    SegmentWriter(tmp_path, "n0").close()
    assert list_segments(tmp_path) == []


def test_numbers_grow_also_when_all_earlier_segments_are_gone(tmp_path: Path) -> None:
    numbers = []
    for _ in range(2):
        writer = SegmentWriter(tmp_path, "n0", seal_bytes=1)
        writer.write([step_frame(0)])
        writer.write([step_frame(1)])
        numbers += [segment.number for segment in list_segments(tmp_path)]
        for segment in list_segments(tmp_path):
            segment.path.unlink()
    assert numbers == sorted(set(numbers))


def test_segments_sort_by_source_and_number(tmp_path: Path) -> None:
    for name in ("n1.2.seg", "n0.10.part", "n0.9.seg", "other.txt", "n0.x.seg"):
        (tmp_path / name).touch()
    assert [segment.path.name for segment in list_segments(tmp_path)] == ["n0.9.seg", "n0.10.part", "n1.2.seg"]


def test_a_source_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a segment source"):
        SegmentWriter(tmp_path, "../n0")


@given(st.integers(0, 400), st.binary(min_size=0, max_size=40))
def test_damage_in_the_middle_costs_only_the_frames_it_hits(at: int, junk: bytes) -> None:
    parts = [step_frame(n).encode() for n in range(4)]
    data = b"".join(parts)
    damaged = data[:at] + junk + data[at + len(junk) :]
    size = len(parts[0])
    intact = [n for n in range(4) if damaged[n * size : (n + 1) * size] == parts[n]]
    assert [frame.seq for frame, _, _ in readable_frames(damaged)] == intact


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_is_said_and_writing_goes_on_when_there_is_space(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(40_000))
    writer = SegmentWriter(small_disk, "n0")
    acknowledged: list[int] = []

    def write_until_full() -> None:
        for number in range(1000):
            writer.write([step_frame(10 * number, 10)])
            acknowledged.append(10 * number)

    with pytest.raises(SpoolError, match="no space left"):
        write_until_full()
    refused = acknowledged[-1] + 10
    with pytest.raises(SpoolError, match="no space left"):
        writer.write([step_frame(refused, 10)])
    ballast.unlink()
    writer.write([step_frame(refused, 10)])
    writer.close()
    assert [s for segment in list_segments(small_disk) for s in seqs(segment.path)] == [*acknowledged, refused]


@pytest.mark.root
def test_a_read_only_folder_is_said(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(SpoolError, match=r"can't write the spool in .*Read-only"):
        SegmentWriter(small_disk, "n0").write([step_frame(0)])
