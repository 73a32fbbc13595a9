"""Runs in a ClickHouse database: over real HTTP, with an engine whose process and answers fail."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from clickhouse_parts import Engine, needs_engine
from store_parts import send, step_frame
from test_contract import DatabasePlace, assert_same, send_all, spool_for, spool_of

from starprof import cli
from starprof.analysis.long import choice
from starprof.analysis.synthetic import SyntheticRun
from starprof.analysis.synthetic.faults import CpuHog
from starprof.errors import NoDataError, SpoolError, StoreError
from starprof.model import env
from starprof.model.schema import BY_NAME
from starprof.spool.segment import list_segments
from starprof.store.clickhouse import client, transfer
from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.tables import Layout, statements
from starprof.store.ingest import fold
from starprof.store.query import load_run
from starprof.store.rollup import roll_up
from starprof.store.runfile import RunFile
from starprof.store.save import save_run

pytestmark = needs_engine
HELPERS = [Path(__file__).parent, Path(__file__).parents[1] / "spool"]


@pytest.fixture
def place(engine: Engine) -> DatabasePlace:
    return DatabasePlace(engine.url, uuid.uuid4().hex)


def asked(place: DatabasePlace, select: str) -> list[tuple[object, ...]]:
    with place.reading() as run:
        return run.query(select)


INGESTERS = """
import os, signal, sys
from pathlib import Path
sys.path += sys.argv[3:]
import clickhouse_connect  # once, not in every child
from store_parts import send, step_frame
from starprof.spool.layout import Spool
from starprof.spool.segment import list_segments
from starprof.store import ingest
from starprof.store.clickhouse import folding, ledger
ingest.COMMIT_BYTES, ingest.APPEND_BYTES = 60_000, 20_000
spool, place, insert = Spool(Path(sys.argv[1])), sys.argv[2], ledger.Writer.insert

def killed_before(left):
    def counted(writer, table, *rest):
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        insert(writer, table, *rest)
    pid = os.fork()
    if not pid:
        ledger.Writer.insert = counted
        folding.fold_into_database(spool, place, final=True)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code

rows = deaths = 0
while True:
    while len(list_segments(spool.segments)) < 4:
        send(spool, step_frame(rows, 100))
        rows += 100
    if not killed_before(deaths):
        break
    deaths += 1
print(rows, deaths)
"""


def test_an_ingester_that_is_killed_at_each_step_loses_and_doubles_nothing(
    place: DatabasePlace, tmp_path: Path
) -> None:
    """A later step every time: there are two commits of several blocks each, and what the dead one left is given up."""
    spool = spool_for(place, tmp_path)
    argv = [sys.executable, "-c", INGESTERS, str(spool.root), place.url, *map(str, HELPERS)]
    told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows, deaths = map(int, told.split())
    assert deaths > 6
    assert asked(place, "SELECT count(*), count(DISTINCT step), max(step) FROM step") == [(rows, rows, rows - 1)]
    assert asked(place, "SELECT * FROM gap") == []
    assert list_segments(spool.segments) == []


@pytest.mark.parametrize("how", ["lose", "refuse"])
@pytest.mark.parametrize("insert", [("step_rows", 1), ("ledger_rows", 1), ("ledger_rows", 2)])
def test_an_answer_that_is_lost_or_an_error_half_way_changes_nothing(
    engine: Engine, place: DatabasePlace, tmp_path: Path, how: str, insert: tuple[str, int]
) -> None:
    """At the rows, at the mark that begins a commit, and at the one that makes it count."""
    spool = spool_for(place, tmp_path)
    send(spool, step_frame(0, 100))
    place.fold(spool)
    send(spool, step_frame(90, 110))
    engine.misbehave(how, *insert)
    with pytest.raises(StoreError):
        place.fold(spool)
    assert len(list_segments(spool.segments)) == 1
    place.fold(spool)
    assert asked(place, "SELECT count(*), count(DISTINCT step), max(step) FROM step") == [(200, 200, 199)]
    assert asked(place, "SELECT next_seq FROM ledger") == [(200,)]
    assert list_segments(spool.segments) == []


@pytest.mark.parametrize("insert", [("unavailable_rows", 1), ("ledger_rows", 2)])
def test_a_writer_that_never_heard_the_answer_gives_the_commit_up_and_goes_on(
    engine: Engine, place: DatabasePlace, insert: tuple[str, int]
) -> None:
    rows = pa.table({"source": ["x", "y"]})
    with place.writing() as run:
        run.append("gap", pa.table({"source": ["before"]}))
        engine.misbehave("lose", *insert)
        with pytest.raises(StoreError), run.transaction():
            run.append("unavailable", rows)
        with run.transaction():
            run.append("unavailable", rows)
        assert len(run.query("SELECT source FROM unavailable")) == 2
    assert len(asked(place, "SELECT source FROM unavailable")) == 2
    assert len(asked(place, "SELECT source FROM gap")) == 1
    with place.writing() as run:  # people ask the views
        seen = run._client.query(f"SELECT source FROM starprof.unavailable WHERE run_id = '{place.run_id}'")
        assert len(seen.result_rows) == 2


def test_two_that_write_at_once_are_told(place: DatabasePlace) -> None:
    rows = pa.table({"source": ["x"]})
    with place.writing() as one, place.writing() as other:
        transaction = one.transaction()
        transaction.__enter__()
        one.append("unavailable", rows)
        with pytest.raises(StoreError, match="somebody else writes to run"):
            other.append("unavailable", rows)
        with pytest.raises(StoreError, match="somebody else writes to run"):
            transaction.__exit__(None, None, None)
        other.append("unavailable", rows)
    assert len(asked(place, "SELECT * FROM unavailable")) == 1


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a rank that a CPU hog slows down, with rolled-up samples."""
    path = tmp_path_factory.mktemp("pushed") / "slow.starprof"
    made = SyntheticRun(ranks=4, nodes=2, steps=300, faults=(CpuHog(rank=2),))
    save_run(made.data(), path)
    with RunFile.open(path) as run:
        roll_up(run, BY_NAME["cpu_sample"], raw_s=1, fine_s=2)
    return path


def test_a_pushed_run_has_the_verdict_of_its_file_and_comes_back_as_it_was(
    engine: Engine, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["store", "push", str(run_file), engine.url]) == 0
    (listed,) = (run for run in transfer.runs_in(parse(engine.url)) if run.name == load_run(run_file).info["name"])
    name = f"{engine.url}/{listed.run_id}"
    stored = load_run(name)
    assert_same(replace(load_run(run_file), info=stored.info), stored)

    capsys.readouterr()
    verdicts = []
    for most in (1_000, choice.MOST_RANK_STEPS):  # block by block, and as a whole
        monkeypatch.setattr(choice, "MOST_RANK_STEPS", most)
        for place in (run_file, name):
            assert cli.main(["summary", str(place), "--json"]) == 0
            verdicts.append(json.loads(capsys.readouterr().out))
    assert verdicts[0]["verdict"] == "straggler"
    assert verdicts[0] == verdicts[1]
    assert verdicts[2] == verdicts[3]
    assert cli.main(["analyze", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == verdicts[2]
    assert cli.main(["report", name, "-o", str(tmp_path / "r.html")]) == 0

    back = tmp_path / "back.starprof"
    assert cli.main(["store", "pull", name, "-o", str(back)]) == 0
    assert_same(replace(load_run(back), info=stored.info), stored)
    assert cli.main(["store", "push", str(run_file), engine.url]) == 0
    assert "already" in capsys.readouterr().err


def test_a_run_that_has_grown_is_replaced_as_a_whole_and_only_when_asked(
    engine: Engine, place: DatabasePlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool, path = spool_of(tmp_path, place.run_id), tmp_path / "job.starprof"
    send_all(spool)
    fold(spool, path, final=True)
    push = ["store", "push", str(path), engine.url]
    assert cli.main(push) == 0
    spool_of(tmp_path, place.run_id)
    send(spool, step_frame(40, 5))
    fold(spool, path, final=True)
    assert cli.main(push) == 1
    assert "--force replaces it" in capsys.readouterr().err
    engine.misbehave("refuse", "ledger_rows", 2)
    assert cli.main([*push, "--force"]) == 1
    assert asked(place, "SELECT count(*) FROM step") == [(80,)]
    assert cli.main([*push, "--force"]) == 0
    assert asked(place, "SELECT count(*) FROM step") == [(85,)]
    assert_same(load_run(path), load_run(place.name))
    with place.writing() as run:
        kept = run._client.query(f"SELECT count() FROM starprof.step_rows WHERE run_id = '{place.run_id}'")
        assert kept.result_rows == [(85,)]  # what was replaced takes no room
    spool_of(tmp_path, place.run_id)
    send(spool, step_frame(45, 5))  # the ledger came with it: what another node still has is added
    assert place.fold(spool).rows == 5
    assert cli.main(["store", "remove", place.name]) == 0
    with pytest.raises(NoDataError):
        load_run(place.name)


def test_a_spool_goes_on_where_it_began(place: DatabasePlace, tmp_path: Path) -> None:
    spool = spool_for(place, tmp_path)
    send(spool, step_frame(0, 10))
    with pytest.raises(SpoolError, match="store push"):
        fold(spool, tmp_path / "job.starprof", final=True)
    assert not (tmp_path / "job.starprof").exists()


def test_the_schema_for_a_cluster_can_be_parsed(engine: Engine) -> None:
    """No more than that: there is no cluster here that could run it."""
    connection = client.connect(parse(engine.url))
    for statement in statements("starprof", Layout(cluster="main", keep_days=90)):
        connection.command(f"EXPLAIN AST {statement}")
    connection.close()


def test_a_wrong_password_is_refused_and_told_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Engine.start(tmp_path / "db", secret="default:right-one")
    try:
        monkeypatch.setenv(env.CLICKHOUSE_PASSWORD, "wrong-one")
        with pytest.raises(StoreError, match="AUTHENTICATION_FAILED") as refused:
            client.connect(parse(guarded.url))
        assert "wrong-one" not in str(refused.value)
        monkeypatch.delenv(env.CLICKHOUSE_PASSWORD)
        secret = tmp_path / "secret"
        secret.write_text("right-one\n")
        secret.chmod(0o600)
        monkeypatch.setenv(env.CLICKHOUSE_PASSWORD_FILE, str(secret))
        client.connect(parse(guarded.url)).close()
    finally:
        guarded.stop()
    with pytest.raises(StoreError, match="can't be reached"):
        client.connect(parse(guarded.url))


def test_a_server_that_is_killed_in_the_middle_of_a_commit_goes_on_where_it_was(tmp_path: Path) -> None:
    server = Engine.start(tmp_path / "db")
    place = DatabasePlace(server.url, "r")
    try:
        spool = spool_for(place, tmp_path)
        send(spool, step_frame(0, 100))
        server.misbehave("die", "ledger_rows", 4)
        with pytest.raises(StoreError):
            place.fold(spool)
    finally:
        server.stop()
    server = Engine.start(tmp_path / "db", port=server.port)
    try:
        assert asked(place, "SELECT count(*) FROM step") == [(0,)]
        place.fold(spool)
        assert asked(place, "SELECT count(*), count(DISTINCT step) FROM step") == [(100, 100)]
    finally:
        server.stop()
