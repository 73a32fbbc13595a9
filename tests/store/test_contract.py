"""What every place that holds runs must do, a run file and a ClickHouse database alike."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from clickhouse_parts import Engine, needs_engine
from store_parts import rows_frame, send, step_cells, step_frame

from starprof.model.columns import packed_cells
from starprof.model.rundata import RunData
from starprof.model.tables.job import STEP
from starprof.spool.frame import packed_frame
from starprof.spool.layout import Spool
from starprof.store.base import ReadableRun, WritableRun
from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.folding import fold_into_database
from starprof.store.clickhouse.run import ClickHouseRun
from starprof.store.ingest import FoldReport, fold
from starprof.store.query import load_run
from starprof.store.runfile import RunFile


@dataclass
class FilePlace:
    """A run file."""

    path: Path
    run_id: str

    @property
    def name(self) -> str:
        return str(self.path)

    def fold(self, spool: Spool) -> FoldReport:
        return fold(spool, self.path, final=True)

    @contextmanager
    def writing(self) -> Iterator[WritableRun]:
        with RunFile.open(self.path) as run:
            yield run

    @contextmanager
    def reading(self) -> Iterator[ReadableRun]:
        with RunFile.open_read_only(self.path) as run:
            yield run


@dataclass
class DatabasePlace:
    """A run in ClickHouse."""

    url: str
    run_id: str

    @property
    def name(self) -> str:
        return f"{self.url}/{self.run_id}"

    def fold(self, spool: Spool) -> FoldReport:
        return fold_into_database(spool, self.url, final=True)

    @contextmanager
    def writing(self) -> Iterator[WritableRun]:
        with ClickHouseRun.open(parse(self.url), self.run_id) as run:
            yield run

    @contextmanager
    def reading(self) -> Iterator[ReadableRun]:
        with ClickHouseRun(run_of(self.url)._client, parse(self.url), self.run_id) as run:
            yield run


def run_of(url: str) -> ClickHouseRun:
    return ClickHouseRun.open(parse(url), uuid.uuid4().hex)


@pytest.fixture(params=["file", pytest.param("database", marks=needs_engine)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> FilePlace | DatabasePlace:
    run_id = uuid.uuid4().hex
    if request.param == "file":
        return FilePlace(tmp_path / "job.starprof", run_id)
    engine: Engine = request.getfixturevalue("engine")
    return DatabasePlace(engine.url, run_id)


def spool_of(folder: Path, run_id: str, *, store: str = "", started_unix_ns: int = 1_700_000_000_000_000_000) -> Spool:
    """A spool as `record` leaves it."""
    spool = Spool.beside(folder / "job.starprof")
    spool.create()
    facts = {"run_id": run_id, "name": "job", "command": ["python", "train.py"], "started_unix_ns": started_unix_ns}
    spool.run_json.write_text(json.dumps(facts | ({"store": store} if store else {})))
    return spool


def spool_for(place: FilePlace | DatabasePlace, folder: Path) -> Spool:
    store = parse(place.url).text if isinstance(place, DatabasePlace) else ""
    return spool_of(folder, place.run_id, store=store)


def send_all(spool: Spool) -> None:
    """Rows of every kind: packed and plain, with NULLs, of two ranks, with one described anew."""
    ranks = [{"attempt": 0, "rank": r, "node": 0, "device": "cpu", "world_size": 2} for r in (0, 1)]
    node = {"node": 0, "host": "it's \\ host", "detail": '{"a": "ü\\n"}'}
    cells = [step_cells(s, rank=1, dur_us=5000 + s, arrival_us=4000) for s in range(40)]
    sampled = [
        {"node": 0, "mono_ns": n * 10**8, "user_us": None if n % 3 else n, "idle_us": 7} for n in range(50, 0, -1)
    ]
    send(
        spool,
        rows_frame("node", 0, node),
        rows_frame("rank", 0, *ranks),
        step_frame(0, 40),
        packed_frame(STEP, "n0-8-1/slots", 0, [packed_cells(STEP, row) for row in cells]),
        rows_frame("cpu_sample", 0, *({"cpu": c, **row} for row in sampled for c in (-1, 0))),
        rows_frame("rank", 0, {**ranks[1], "device": "cuda:0"}, stream="n0-8-1/rank"),
        rows_frame(
            "event", 0, *({"node": 0, "attempt": a, "kind": "gc", "detail": t} for a in (0, None) for t in "ba")
        ),
        rows_frame("clock", 0, {"node": 0, "offset_ns": 5, "error_ns": 9}, {"node": 0, "offset_ns": 3, "error_ns": 2}),
    )


def assert_same(one: RunData, other: RunData) -> None:
    """Two runs are equal to the last cell, in the same order."""
    own = {"file", "note"}
    assert {k: v for k, v in one.info.items() if k not in own} == {k: v for k, v in other.info.items() if k not in own}
    for field in fields(RunData):
        if field.name in {"info", "steps", "samples"}:
            continue
        here, there = getattr(one, field.name), getattr(other, field.name)
        if isinstance(here, pd.DataFrame):
            pd.testing.assert_frame_equal(here, there)
        else:
            assert here == there, field.name
    assert one.samples.keys() == other.samples.keys()
    for name, frame in one.samples.items():
        pd.testing.assert_frame_equal(frame, other.samples[name], obj=name)
    np.testing.assert_array_equal(one.steps.steps, other.steps.steps)
    np.testing.assert_array_equal(one.steps.start_mono_ns, other.steps.start_mono_ns)
    assert one.steps.columns.keys() == other.steps.columns.keys()
    for name, matrix in one.steps.columns.items():
        np.testing.assert_array_equal(matrix, other.steps.columns[name], err_msg=name)


def test_rows_that_come_again_are_there_once_and_holes_are_told(
    place: FilePlace | DatabasePlace, tmp_path: Path
) -> None:
    spool = spool_for(place, tmp_path)
    send(spool, step_frame(0, 100))
    assert place.fold(spool).rows == 100
    send(spool, step_frame(50, 100))
    send(spool, step_frame(170, 30))
    report = place.fold(spool)
    assert (report.rows, report.duplicates, report.gaps, report.left) == (80, 50, 1, ())
    with place.reading() as run:
        found = [step for (step,) in run.query("SELECT step FROM step ORDER BY step")]
        assert found == [*range(150), *range(170, 200)]
        assert run.query("SELECT stream, next_seq, last_mono_ns FROM ledger") == [("n0-7-1/slots", 200, 200_000_000)]
        assert run.query("SELECT source, lost_rows, from_mono_ns, to_mono_ns FROM gap") == [
            ("n0-7-1/slots", 20, 150_000_000, 171_000_000)
        ]
        assert run.query("SELECT attempt, world_size FROM attempt") == []  # no rank has described itself
    assert list(spool.segments.iterdir()) == []


def test_what_fails_half_way_leaves_nothing(place: FilePlace | DatabasePlace) -> None:
    rows = pa.table({"node": [0, None], "source": ["a", "b"], "reason": ["x", None]})
    with place.writing() as run:
        with suppress(ZeroDivisionError), run.transaction():
            run.append("unavailable", rows)
            run.replace("ledger", pa.table({"stream": ["s"], "next_seq": [2], "last_mono_ns": [None]}), keys=["stream"])
            raise ZeroDivisionError
        assert run.query("SELECT * FROM unavailable") == []
        with run.transaction():
            run.append("unavailable", rows)
    with place.reading() as run:
        assert run.query(f"SELECT source, node, reason FROM unavailable{run.in_order}") == [
            ("a", 0, "x"),
            ("b", None, None),
        ]
        assert run.query("SELECT stream FROM ledger") == []
        numbers = run.arrays(f"SELECT node, source, reason FROM unavailable{run.in_order}")
        assert numbers["node"].mask.tolist() == [False, True]
        assert numbers["reason"].tolist() == ["x", None]
        assert not np.ma.isMaskedArray(numbers["source"]) or not numbers["source"].mask.any()


def test_facts_and_descriptions_are_replaced(place: FilePlace | DatabasePlace) -> None:
    with place.writing() as run:
        run.set_meta({"a": "1", "b": "1"})
        run.set_meta({"b": "2"})
        for device in ("cpu", "cuda"):
            run.replace("rank", pa.table({"attempt": [0], "rank": [1], "device": [device]}), keys=["attempt", "rank"])
        run.append("rank", pa.table({"attempt": [1], "rank": [1], "device": ["x"]}))
        assert {"a": "1", "b": "2", "format": "starprof"}.items() <= run.meta().items()
        assert run.query("SELECT attempt, device FROM rank ORDER BY attempt") == [(0, "cuda"), (1, "x")]


@needs_engine
def test_both_hold_the_same(engine: Engine, tmp_path: Path) -> None:
    """Folded in from the same spool, twice, they are read as the same run to the last cell."""
    places = FilePlace(tmp_path / "job.starprof", "x" * 32), DatabasePlace(engine.url, "x" * 32)
    for number, place in enumerate(places):
        (tmp_path / str(number)).mkdir()
        spool = spool_for(place, tmp_path / str(number))
        send_all(spool)
        place.fold(spool)
        send(spool, step_frame(30, 20), rows_frame("cpu_sample", 100, {"node": 0, "mono_ns": 1, "cpu": -1}))
        place.fold(spool)
    file, database = (load_run(place.name) for place in places)
    assert file.steps.steps.tolist() == list(range(50))
    assert file.attempt == 0
    assert [r.device for r in file.ranks] == ["cpu", "cuda:0"]
    assert_same(file, database)
