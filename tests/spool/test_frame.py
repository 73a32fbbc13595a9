"""Frames with a good checksum and rows that are not: who writes a spool may be of another version, or hostile."""

import zlib
from dataclasses import replace

import pytest

from starprof.errors import SpoolError
from starprof.model.schema import row
from starprof.model.tables.job import STEP
from starprof.model.tables.sync import SYNC_SWITCH
from starprof.spool.frame import PACKED, frames, json_frame, packed_frame

SWITCH = json_frame(SYNC_SWITCH, "n0/sync_switch", 0, [row(SYNC_SWITCH, version=3, to_mode="asgd")])
STEPS = packed_frame(STEP, "n0-0/slots", 0, [row(STEP, rank=1, step=2)] * 2)


def changed(**cells):
    return json_frame(SYNC_SWITCH, SWITCH.stream, 0, [row(SYNC_SWITCH, **{"version": 3, **cells})])


def test_rows_that_fit_are_told():
    SWITCH.check()
    STEPS.check()
    assert dict(zip(SYNC_SWITCH.names, SWITCH.json_rows()[0], strict=True))["to_mode"] == "asgd"


@pytest.mark.parametrize(
    "bad",
    [
        changed(to_mode=float("inf")),
        changed(to_mode=["asgd"]),
        changed(version=1 << 63),
        changed(version=1.5),
        changed(version="3"),
        replace(SWITCH, rows=2),
        replace(SWITCH, payload=b"[[1]]"),
        replace(SWITCH, payload=b"{}"),
        replace(SWITCH, payload=b"\xff"),
        replace(SWITCH, payload=b"[" * 100_000),
    ],
    ids=lambda frame: frame.payload[:30].decode(errors="replace"),
)
def test_cells_that_do_not_fit_their_columns_are_an_error(bad):
    with pytest.raises(SpoolError, match="sync_switch"):
        bad.json_rows()


@pytest.mark.parametrize(
    "bad",
    [
        replace(STEPS, rows=3),
        replace(STEPS, payload=STEPS.payload[1:]),
        replace(STEPS, encoding=9),
        replace(SWITCH, encoding=PACKED),
    ],
    ids=["too few rows", "a byte less", "no known encoding", "text that is packed"],
)
def test_packed_rows_that_do_not_fit_their_table_are_an_error(bad):
    with pytest.raises(SpoolError):
        bad.check()


def test_a_name_that_is_no_text_is_read_all_the_same():
    data = bytearray(replace(SWITCH, stream="n0-\x7f").encode())
    data[data.index(b"\x7f")] = 0xFF
    data[4:8] = zlib.crc32(bytes(data[8:])).to_bytes(4, "little")
    ((found, end),) = frames(bytes(data))
    assert (found.stream, end) == ("n0-\\xff", len(data))
    assert found.json_rows() == SWITCH.json_rows()
