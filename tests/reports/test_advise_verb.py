"""`starprof advise` on run files, what it prints, and the section of the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from reports_fixtures import EVIL, make_hostile

from starprof.analysis.diagnose import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.cli import main
from starprof.model.rundata import RunData
from starprof.reports import html
from starprof.reports.advised import advice_of, render
from starprof.reports.terminal import Terminal
from starprof.store.save import save_run

DOC = (Path(__file__).parents[2] / "docs" / "advise.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def slow() -> RunData:
    """Rank 1 of eight takes nearly twice as long: a mode pays."""
    fault = Slow("backward", ranks=(1,), us=60_000.0, start=50)
    return SyntheticRun(ranks=8, steps=200, faults=(fault,)).data()


@pytest.fixture(scope="module")
def recorded(slow: RunData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "demo.starprof"
    save_run(slow, path)
    return path


def test_the_answer_the_steps_and_their_commands_are_printed(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["advise", str(recorded)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("ACT: ")
    assert "starprof ctl " in told.out
    assert "Modes, against native steps" in told.out
    assert told.err == ""


def fields(value: Any, path: str = "") -> set[str]:
    """Paths of all fields; what is below options and inputs has names of its own."""
    if isinstance(value, dict) and not path.endswith(("options", "inputs")):
        here = {f"{path}.{name}" if path else name: part for name, part in value.items()}
        return set(here).union(*(fields(part, name) for name, part in here.items()))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return fields(value[0], f"{path}[]")
    return set()


def test_the_json_has_the_documented_fields_and_no_other(recorded: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["advise", str(recorded), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert fields(told) == set(re.findall(r"^\| `([^`]+)` \|", DOC, flags=re.MULTILINE))
    assert told["schema"] == 1


def test_a_run_of_one_rank_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "one.starprof"
    save_run(SyntheticRun(ranks=1, steps=40).data(), path)
    assert main(["advise", str(path)]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith("starprof: no advice: Only one rank")


def test_lines_fit_the_terminal_but_for_commands(slow: RunData):
    text = render(advice_of(slow, diagnose(slow)), Terminal(width=60))
    assert max(len(line) for line in text.splitlines() if not line.startswith("      ")) <= 60


def test_the_report_has_the_section_and_marks_the_mode(slow: RunData):
    page = html.render(slow, diagnose(slow))
    section = page.split('<section id="advice">', 1)[1].split("</section>", 1)[0]
    assert "<h2>What to do</h2>" in section
    assert section.count('class="culprit"') == 1


def test_what_comes_from_a_run_is_inert(slow: RunData):
    hostile = make_hostile(slow, diagnose(slow))
    page = html.render(*hostile)
    assert "<img" not in page.split('<section id="advice">', 1)[1].split("</section>", 1)[0]
    assert EVIL not in page
    text = render(advice_of(*hostile), Terminal())
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_report_without_material_for_advice_has_no_such_section():
    run = SyntheticRun(ranks=1, steps=40).data()
    assert '<section id="advice">' not in html.render(run, diagnose(run))
