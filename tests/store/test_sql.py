"""`starprof sql` and `starprof merge` as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from store_parts import new_spool, rows_frame, send, step_frame

from starprof.spool.layout import Spool
from starprof.store.ingest import fold


def starprof(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "starprof", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_file = tmp_path_factory.mktemp("sql") / "job.starprof"
    spool = new_spool(run_file)
    send(spool, step_frame(0, 3), rows_frame("disk", 0, {"node": 0, "disk": 1, "name": 'a,"b"'}, {"node": 0}))
    fold(spool, run_file, final=True)
    return run_file


def test_the_answer_is_an_aligned_table(recorded: Path) -> None:
    done = starprof("sql", recorded, "SELECT disk, name, disk / 3 AS third FROM disk")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "disk  name      third",
        "----  -----  --------",
        '   1  a,"b"  0.333333',
        "NULL  NULL       NULL",
    ]


def test_csv_can_be_read_back(recorded: Path) -> None:
    done = starprof("sql", recorded, "SELECT disk, name FROM disk", "--csv")
    assert list(csv.reader(io.StringIO(done.stdout))) == [["disk", "name"], ["1", 'a,"b"'], ["", ""]]


def test_json_has_columns_and_rows(recorded: Path) -> None:
    done = starprof(
        "sql", recorded, "SELECT disk, name, 'nan'::DOUBLE AS x, DATE '2020-01-02' AS d FROM disk", "--json"
    )
    assert json.loads(done.stdout) == {
        "schema": 1,
        "columns": ["disk", "name", "x", "d"],
        "rows": [[1, 'a,"b"', None, "2020-01-02"], [None, None, None, "2020-01-02"]],
    }


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELEC 1", "Parser Error: syntax error"),
        ("SELECT nonsense FROM step", 'Referenced column "nonsense" not found'),
        ("DELETE FROM step", "only one SELECT"),
        ("SELECT 1; SELECT 2", "only one SELECT"),
        ("COPY step TO 'x.csv'", "only one SELECT"),
        ("ATTACH 'other.db'", "only one SELECT"),
        ("SET enable_external_access = true", "only one SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "file system operations are disabled"),
        ("SELECT * FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("SELECT * FROM glob('/*')", "file system operations are disabled"),
        ("SELECT * FROM parsed", "Table with name parsed does not exist"),
    ],
)
def test_what_is_no_question_about_the_run_is_refused_in_one_line(recorded: Path, query: str, error: str) -> None:
    before = recorded.read_bytes()
    done = starprof("sql", recorded, query)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert done.stderr.startswith("starprof: ")
    assert done.stderr.count("\n") == 1
    assert recorded.read_bytes() == before


def test_a_missing_file_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = starprof("sql", tmp_path / "none.starprof", "SELECT 1")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"starprof: {tmp_path / 'none.starprof'} does not exist: record a run first, or check the name\n"
    )


def test_what_to_know_about_the_file_goes_to_stderr(tmp_path: Path) -> None:
    run_file = tmp_path / "job.starprof"
    send(new_spool(run_file), step_frame(0, 3))
    done = starprof("sql", run_file, "SELECT count(*) FROM step", "--csv")
    assert done.stdout == "count_star()\n3\n"
    assert "interrupted recording" in done.stderr


def test_merge_says_what_it_wrote_and_what_is_doubtful(tmp_path: Path) -> None:
    files = []
    for rank in (0, 1):
        run_file = tmp_path / f"{rank}.starprof"
        cells = {"attempt": 0, "rank": rank, "node": 0, "world_size": 3}
        send(new_spool(run_file, run_id=str(rank)), rows_frame("rank", 0, cells))
        files.append(Spool.beside(run_file).root if rank else run_file)
    output = tmp_path / "out.starprof"
    done = starprof("merge", *files, "-o", output)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == f"Wrote {output} (2 ranks on 2 nodes)"
    assert "only 2 of 3 ranks" in done.stderr
    again = starprof("merge", *files, "-o", output)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"starprof: {output} exists: choose another name, or remove it first\n"
