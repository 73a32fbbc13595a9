"""What control did: in the run file once, and read back whole after merging, rewriting and saving."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_parts import new_spool, rows_frame, rows_of, send
from test_query import assert_same_rows
from test_sql import starprof

from starprof.control.journal import NATIVE, ControlJournal
from starprof.model.rundata import RunData
from starprof.model.schema import TABLES
from starprof.model.tables.sync import SYNC_STEP, SYNC_SWITCH, SYNC_UPDATE
from starprof.model.valuelists import contributors_of, from_listed_values, gradient_cells, listed_values
from starprof.spool.layout import Spool
from starprof.store import query
from starprof.store.compact import compact
from starprof.store.ingest import fold
from starprof.store.merge import merge
from starprof.store.query import load_run
from starprof.store.runfile import RunFile, table_ddl
from starprof.store.save import save_run
from starprof.store.schema_doc import EXAMPLES
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Close

SYNC = (SYNC_UPDATE, SYNC_SWITCH, SYNC_STEP)


def write(spool: Spool, *, node: int = 0, ranks: int = 8, updates: int = 20, attempt: int = 0, first: int = 0) -> None:
    """Rounds of all ranks but the last, after a switch from native steps."""
    journal = ControlJournal(spool.segments, node, attempt=attempt)
    journal.switch(from_mode=NATIVE, to_mode="m-sync", to_options={"m": ranks - 1}, asked_by="user", version=first)
    for version in range(first, first + updates):
        gradients = tuple(Gradient(rank, version, version, 32) for rank in range(ranks - 1))
        weights = (1 / (ranks - 1),) * (ranks - 1)
        journal.update(Close(1, version, 0, gradients, weights, tuple(range(ranks - 1))), mode="m-sync")
        for rank in range(ranks - 1):
            journal.rank_step(rank=rank, step=version, number=version, version=version + 1, waited_us=9, updates=1)
    journal.close()
    assert journal.errors == 0


def recorded(run_file: Path, **job: int) -> Path:
    """A run file with a rank of node 0 and what `write` writes."""
    spool = new_spool(run_file, run_id=run_file.stem)
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": job.get("node", 0), "node": job.get("node", 0)}))
    write(spool, **job)
    fold(spool, run_file, final=True)
    return run_file


def frames(run: RunData) -> list[pd.DataFrame | None]:
    return [run.sync_updates, run.sync_switches, run.sync_steps]


def test_all_records_are_read_for_their_attempt(spool: Spool, run_file: Path) -> None:
    send(spool, rows_frame("rank", 0, *({"attempt": a, "rank": 0, "node": 0} for a in (0, 1))))
    write(spool, updates=20)
    write(spool, updates=5, attempt=1)
    fold(spool, run_file, final=True)
    assert [len(frame) for frame in frames(load_run(run_file, attempt=0))] == [20, 1, 140]
    assert [len(frame) for frame in frames(load_run(run_file, attempt=1))] == [5, 1, 35]


def test_a_run_without_control_has_no_such_records(spool: Spool, run_file: Path) -> None:
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": 0, "node": 0}))
    fold(spool, run_file, final=True)
    assert frames(load_run(run_file)) == [None, None, None]


def test_folding_in_twice_and_rewriting_the_file_changes_nothing(tmp_path: Path) -> None:
    run_file = recorded(tmp_path / "job.starprof")
    before = [rows_of(run_file, f"SELECT * FROM {table.name}") for table in SYNC]
    fold(Spool.beside(run_file), run_file, final=True)
    compact(run_file)
    assert [rows_of(run_file, f"SELECT * FROM {table.name}") for table in SYNC] == before
    assert [len(rows) for rows in before] == [20, 1, 140]


def test_saved_records_come_back(tmp_path: Path) -> None:
    run = load_run(recorded(tmp_path / "job.starprof"))
    save_run(run, tmp_path / "copy.starprof")
    for read, saved in zip(frames(load_run(tmp_path / "copy.starprof")), frames(run), strict=True):
        assert_same_rows(read, saved)


def test_merged_records_follow_their_node(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a.starprof", updates=3)
    spool = new_spool(tmp_path / "b.starprof", run_id="b")
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": 9, "node": 0}), source="n0")
    write(spool, updates=4, first=3)
    fold(spool, tmp_path / "b.starprof", final=True)
    merge([a, tmp_path / "b.starprof"], tmp_path / "out.starprof")
    told = rows_of(tmp_path / "out.starprof", "SELECT node, version FROM sync_update ORDER BY version")
    assert told == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (1, 6)]
    assert rows_of(tmp_path / "out.starprof", "SELECT node, count(*) FROM sync_switch GROUP BY 1 ORDER BY 1") == [
        (0, 1),
        (1, 1),
    ]
    assert rows_of(tmp_path / "out.starprof", "SELECT count(*) FROM sync_step") == [(49,)]


def make_version_3(path: Path) -> None:
    """A file as it was before control, with one step record."""
    with duckdb.connect(path) as connection:
        for table in TABLES:
            if table not in SYNC:
                connection.execute(table_ddl(table))
        connection.execute("CREATE TABLE meta (key VARCHAR, value VARCHAR)")
        connection.execute("CREATE TABLE ledger (stream VARCHAR, next_seq BIGINT, last_mono_ns BIGINT)")
        connection.execute("INSERT INTO meta VALUES ('format', 'starprof'), ('schema_version', '3')")
        connection.execute("INSERT INTO step (attempt, rank, step, start_mono_ns, dur_us) VALUES (0, 1, 2, 3, 4)")


def test_an_older_file_is_read_unchanged_and_gets_the_tables_when_it_is_written_to(run_file: Path) -> None:
    make_version_3(run_file)
    before = run_file.read_bytes()
    assert frames(load_run(run_file)) == [None, None, None]
    assert run_file.read_bytes() == before
    with RunFile.open(run_file) as run:
        columns = {table.name: tuple(run.columns(table.name)) for table in SYNC}
    assert columns == {table.name: table.names for table in SYNC}
    types = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE table_name LIKE 'sync%'"
    migrated = rows_of(run_file, types)
    RunFile.open(run_file.with_name("new.starprof")).close()
    assert sorted(migrated) == sorted(rows_of(run_file.with_name("new.starprof"), types))


def test_of_very_many_records_a_part_is_read_that_shows_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = new_spool(tmp_path / "job.starprof")
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": 0, "node": 0}))
    journal = ControlJournal(spool.segments, 0)
    for version in range(4_000):  # eight ranks take turns
        rank = version % 8
        journal.update(Close(1, version, 0, (Gradient(rank, version // 8, version),), (0.125,)), mode="asgd")
        journal.rank_step(rank=rank, step=version // 8, number=version // 8, version=version, waited_us=0, updates=8)
    journal.close()
    fold(spool, tmp_path / "job.starprof", final=True)
    monkeypatch.setattr(query, "SYNC_UPDATES_MAX", 500)
    monkeypatch.setattr(query, "SYNC_STEPS_MAX", 500)
    run = load_run(tmp_path / "job.starprof")
    assert run.sync_updates is not None
    assert run.sync_steps is not None
    assert 300 < len(run.sync_updates) < 700
    assert 300 < len(run.sync_steps) < 700
    shares = run.sync_updates["contributors"].value_counts(normalize=True)
    assert len(shares) == 8
    assert shares.max() < 0.25
    monkeypatch.setattr(query, "SYNC_UPDATES_MAX", 1_000_000)
    monkeypatch.setattr(query, "SYNC_GRADIENTS_MAX", 400)
    assert len(load_run(tmp_path / "job.starprof").sync_updates) < 600


def test_the_documented_question_tells_the_contributions_of_each_rank(tmp_path: Path) -> None:
    run_file = recorded(tmp_path / "job.starprof", updates=20)
    (select,) = [select for title, select in EXAMPLES if "whose gradients" in title]
    assert rows_of(run_file, select) == [("m-sync", rank, 20, 1.0) for rank in range(7)]
    done = starprof("sql", run_file, select, "--csv")
    assert done.stdout.splitlines()[1:] == [f"m-sync,{rank},20,1.0" for rank in range(7)]


def test_a_question_from_the_command_line_reaches_switches_and_steps(tmp_path: Path) -> None:
    run_file = recorded(tmp_path / "job.starprof", updates=2)
    done = starprof("sql", run_file, "SELECT from_mode, to_mode, asked_by, version FROM sync_switch", "--csv")
    assert done.stdout.splitlines()[1:] == ["native,m-sync,user,0"]
    done = starprof("sql", run_file, "SELECT sum(waited_us) AS us FROM sync_step", "--csv")
    assert done.stdout.splitlines()[1:] == [str(14 * 9)]


def test_an_update_of_hundreds_of_ranks_takes_less_than_a_kilobyte(tmp_path: Path) -> None:
    empty = recorded(tmp_path / "empty.starprof", updates=0).stat().st_size
    rng = np.random.default_rng(1)
    spool = new_spool(tmp_path / "job.starprof")
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": 0, "node": 0}))
    journal = ControlJournal(spool.segments, 0)
    numbers = np.zeros(256, int)
    for version in range(1_000):  # nobody is certain to be in, so that nothing of it can be guessed
        numbers += rng.random(256) < 0.97
        ranks = np.flatnonzero(rng.random(256) < 0.9)
        gradients = tuple(Gradient(int(r), int(numbers[r]), version - int(rng.random() < 0.1), 32) for r in ranks)
        close = Close(1, version, 0, gradients, (1 / 256,) * len(gradients), tuple(map(int, ranks)))
        journal.update(close, mode="m-sync-fold", options={"m": 230})
    journal.close()
    fold(spool, tmp_path / "job.starprof", final=True)
    assert ((tmp_path / "job.starprof").stat().st_size - empty) / 1_000 < 1_000


numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False))


@given(st.lists(numbers, max_size=50))
def test_lists_of_values_come_back(values: list[float]) -> None:
    assert from_listed_values(listed_values(values)) == tuple(values)


@given(st.text(alphabet="0123456789*,-.einf²٣", max_size=30))
def test_texts_that_are_no_lists_are_no_error_and_no_flood(text: str) -> None:
    assert len(from_listed_values(text)) <= 1 << 20
    assert len(contributors_of("0-3", text)) <= 1 << 20


gradient_rows = st.tuples(
    st.integers(0, 5), st.integers(0, 99), st.integers(0, 50), st.integers(1, 64), st.floats(0.0, 1.0)
)


@given(st.lists(gradient_rows, max_size=12))
def test_every_gradient_of_an_update_comes_back(rows: list[tuple[int, int, int, int, float]]) -> None:
    cells = json.loads(json.dumps(gradient_cells(50, rows)))
    ranks = contributors_of(cells["contributors"], cells["per_contributor"])
    names = ("numbers", "staleness", "samples", "weights")
    lists = [from_listed_values(cells[name]) for name in names]
    back = [(r, n, 50 - stale, s, w) for r, n, stale, s, w in zip(ranks, *lists, strict=True)]
    assert back == sorted(rows)
    assert cells["gradients"] == len(rows)
