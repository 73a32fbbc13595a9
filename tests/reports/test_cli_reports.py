"""`starprof summary` and `starprof report` on a real run file, through the real command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reports_fixtures import make_run

from starprof.cli import main
from starprof.store.save import save_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "demo.starprof"
    save_run(make_run(), path)
    return path


def test_summary_names_the_rank_and_returns_zero(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(recorded)]) == 0
    assert capsys.readouterr().out.startswith("STRAGGLER: rank 1")


def test_summary_as_json_is_exactly_the_verdict(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(recorded), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["verdict"] == "straggler"
    assert told["findings"][0]["ranks"] == [1]


def test_report_is_written_and_its_size_told_on_stderr(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    target = tmp_path / "report.html"
    assert main(["report", str(recorded), "-o", str(target)]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(rf"Wrote {re.escape(str(target))} \(\d\.\d MB\)\n", told.err)
    assert "Rank 1" in target.read_text(encoding="utf-8")


def test_two_reports_of_one_run_are_the_same_bytes(recorded: Path, tmp_path: Path):
    for name in ("a.html", "b.html"):
        assert main(["report", str(recorded), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_report_does_not_overwrite_without_force(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "report.html"
    target.write_text("mine")
    assert main(["report", str(recorded), "-o", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["report", str(recorded), "-o", str(target), "--force"]) == 0
    assert target.read_text() != "mine"


def test_a_redacted_report_names_no_host(recorded: Path, tmp_path: Path):
    target = tmp_path / "report.html"
    assert main(["report", str(recorded), "-o", str(target), "--redact"]) == 0
    assert "node0" not in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", [["summary"], ["report", "-o", "report.html"]])
def test_a_file_that_is_no_run_is_one_line_and_code_1(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("other.starprof").write_text("not a database")
    assert main([verb[0], "other.starprof", *verb[1:]]) == 1
    error = capsys.readouterr().err
    assert error.startswith("starprof: ")
    assert error.count("\n") == 1
    assert not Path("report.html").exists()


def summary_process(recorded: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "starprof", "summary", str(recorded)],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )


def test_a_pipe_gets_no_colour(recorded: Path):
    assert b"\x1b" not in summary_process(recorded).stdout


def test_an_ascii_terminal_gets_ascii(recorded: Path):
    out = summary_process(recorded, PYTHONIOENCODING="ascii").stdout
    assert out.isascii()
    assert b"x slower" in out


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colour_unless_it_is_refused(recorded: Path, environment: dict[str, str], coloured: bool):
    reader, writer = os.openpty()
    plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "starprof", "summary", str(recorded)],
        env={**plain, "TERM": "xterm", **environment},
        stdout=writer,
    )
    os.close(writer)
    out = b""
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:  # Linux: the other end of a terminal is gone
            break
        if not part:
            break
        out += part
    os.close(reader)
    assert process.wait() == 0
    assert (b"\x1b[1;31m" in out) is coloured
