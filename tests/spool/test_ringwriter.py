import mmap
import os

import pytest

from starprof.model import ring
from starprof.model.columns import INT_NULL
from starprof.model.tables.job import STEP
from starprof.spool.ringreader import RingReader
from starprof.spool.ringwriter import RingWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "n0-1-2.ring"


def cells(number):
    return [number if name == "step" else INT_NULL for name in STEP.names]


def test_what_is_written_can_be_read(path):
    writer = RingWriter(path, slots=8)
    writer.step(5, cells(3))
    writer.event("gc", 6, attempt=0, rank=2, step=3, value=17, detail="full")
    reader = RingReader(path)
    batch = reader.read(0)
    assert len(batch.steps) == 1
    assert batch.events == [(0, 2, 6, 3, 17, "gc", "full")]
    assert batch.next_slot == 2
    assert reader.heartbeat_ns == 6


def test_the_description_can_be_replaced(path):
    writer = RingWriter(path)
    writer.describe({"rank": 1, "cpus": "0-3"})
    writer.describe({"rank": 1})
    assert RingReader(path).description() == (4, {"rank": 1})


def test_a_description_that_does_not_fit_leaves_the_old_one(path):
    writer = RingWriter(path)
    writer.describe({"rank": 1})
    with pytest.raises(ValueError, match="does not fit"):
        writer.describe({"detail": "x" * ring.JSON_MAX_BYTES})
    assert RingReader(path).description() == (2, {"rank": 1})


def test_when_the_ring_is_full_the_oldest_are_overwritten(path):
    writer = RingWriter(path, slots=4)
    for number in range(10):
        writer.step(number, cells(number))
    batch = RingReader(path).read(0)
    assert [s.number for s in batch.slots] == [7, 8, 9]
    assert batch.lost == 7


def test_all_blocks_exist_before_the_file_is_mapped(path):
    RingWriter(path, slots=64)
    assert path.stat().st_blocks * 512 >= ring.HEADER_BYTES + 64 * ring.SLOT_BYTES


def test_a_full_disk_is_an_error_at_once_and_leaves_no_file(path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        RingWriter(path)
    assert list(path.parent.iterdir()) == []


def test_long_text_is_cut_between_characters(path):
    RingWriter(path).event("hook-error", 1, attempt=0, rank=0, detail="é" * 200)
    ((*_, detail),) = RingReader(path).read(0).events
    assert detail == "é" * 100


def test_a_closed_ring_stays_readable(path):
    writer = RingWriter(path)
    writer.step(1, cells(0))
    writer.close()
    assert RingReader(path).written == 1
    assert mmap.PAGESIZE == ring.HEADER_BYTES
