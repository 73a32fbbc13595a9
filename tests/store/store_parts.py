"""Spools and rows for the tests of the store."""

from __future__ import annotations

import json
from pathlib import Path

from starprof.model.schema import BY_NAME, row
from starprof.spool.frame import Frame, json_frame, packed_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import SegmentWriter
from starprof.store.runfile import RunFile

STEP = BY_NAME["step"]
SECOND_NS = 1_000_000_000


def step_cells(step: int, rank: int = 0, **values: int) -> list[object]:
    cells = {"attempt": 0, "rank": rank, "step": step, "start_mono_ns": 1_000_000 * (step + 1), "dur_us": 1000}
    return row(STEP, **{**cells, **values})


def step_frame(first: int, count: int = 1, stream: str = "n0-7-1/slots") -> Frame:
    return packed_frame(STEP, stream, first, [step_cells(first + i) for i in range(count)])


def rows_frame(table: str, seq: int, *rows: dict[str, object], stream: str | None = None) -> Frame:
    known = BY_NAME[table]
    return json_frame(known, stream or f"n0-1-1/{table}", seq, [row(known, **values) for values in rows])


def new_spool(run_file: Path, run_id: str = "r1") -> Spool:
    spool = Spool.beside(run_file)
    spool.create()
    spool.run_json.write_text(json.dumps({"run_id": run_id, "name": run_file.stem, "command": ["python", "train.py"]}))
    return spool


def send(spool: Spool, *frames: Frame, source: str = "n0") -> None:
    """Write frames to one sealed segment."""
    writer = SegmentWriter(spool.segments, source)
    writer.write(frames)
    writer.close()


def rows_of(run_file: Path, select: str) -> list[tuple[object, ...]]:
    with RunFile.open_read_only(run_file) as run:
        return run.query(select)


def steps_of(run_file: Path) -> list[object]:
    return [step for (step,) in rows_of(run_file, "SELECT step FROM step ORDER BY rowid")]
