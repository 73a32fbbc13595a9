"""Runs too long for memory: the verbs diagnose them block by block, say so, and find what the whole run shows."""

import json
import sys
from pathlib import Path

import pytest

from starprof import cli
from starprof.analysis.long import choice
from starprof.analysis.synthetic import SyntheticRun
from starprof.store.save import save_run

sys.path.append(str(Path(__file__).parents[1] / "analysis"))

from live import slowed

RANKS, STEPS, ONSET = 6, 1_500, 601


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """A run with one rank that becomes slow, as the store keeps it."""
    path = tmp_path_factory.mktemp("long") / "job.starprof"
    made = SyntheticRun(ranks=RANKS, steps=STEPS, counters=False, faults=slowed(3, 1.3, ONSET, None))
    save_run(made.data(), path)
    return path


@pytest.fixture
def too_long(monkeypatch):
    """Runs of more than a thousand rank-steps are too long, and few windows are kept."""
    monkeypatch.setattr(choice, "MOST_RANK_STEPS", 1_000)


def verdict_of(capsys, *arguments):
    assert cli.main([*map(str, arguments), "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_block_by_block_the_verdict_is_that_of_the_whole_run(run_file, capsys, monkeypatch):
    whole, _ = verdict_of(capsys, "summary", run_file)
    monkeypatch.setattr(choice, "MOST_RANK_STEPS", 1_000)
    blockwise, err = verdict_of(capsys, "summary", run_file)
    assert "1,500 steps of 6 ranks were diagnosed block by block" in err
    assert blockwise.keys() == whole.keys()
    for name in ("schema", "verdict", "ranks", "run"):
        assert blockwise[name] == whole[name]
    (one,), (other,) = blockwise["findings"], whole["findings"]
    assert (one["ranks"], one["kind"], one["cause"]) == (other["ranks"], other["kind"], other["cause"]) != ([], "", "")
    assert abs(one["onset_step"] - other["onset_step"]) <= 3
    assert one["cost_seconds"] == pytest.approx(other["cost_seconds"], rel=0.1)


@pytest.mark.usefixtures("too_long")
def test_the_summary_says_that_it_was_diagnosed_block_by_block(run_file, capsys):
    assert cli.main(["summary", str(run_file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "STRAGGLER" in out
    assert "Note: 1,500 steps of 6 ranks were diagnosed block by block" in out


@pytest.mark.usefixtures("too_long")
def test_the_page_says_so_too_and_shows_the_means(run_file, tmp_path):
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run_file), "-o", str(page)]) == 0
    assert "were diagnosed block by block" in page.read_text()


@pytest.mark.usefixtures("too_long")
def test_a_long_run_of_another_tool_is_diagnosed_block_by_block_and_kept_as_it_is(tmp_path, capsys):
    rows = ["step,rank,iter_time_s"]
    rows += [f"{s},{r},{0.1 + 0.001 * ((7 * s + 3 * r) % 5)}" for s in range(400) for r in range(4)]
    (tmp_path / "workers.csv").write_text("\n".join(rows) + "\n")
    kept = tmp_path / "kept.starprof"
    _, err = verdict_of(capsys, "analyze", tmp_path / "workers.csv", "-o", kept)
    assert "400 steps of 4 ranks were diagnosed block by block" in err
    assert cli.main(["sql", str(kept), "SELECT count(*) FROM step", "--csv"]) == 0
    assert capsys.readouterr().out.split()[-1] == "1600"
