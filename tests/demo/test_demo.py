"""The demo judges a diagnosis by what it really injected, and refuses what could not work."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from starprof.cli.demo import FaultName
from starprof.demo import run
from starprof.demo.scenarios import SCENARIOS, Truth, matches, true_cost_seconds
from starprof.errors import StarprofError, UsageError
from starprof.model.verdict import Cost, Finding, Verdict

TRUTH = Truth(SCENARIOS["backward"], rank=1, step=80, cost_seconds=4.8)
RIGHT = Finding("chronic", "backward-compute", ranks=(1,), onset_step=80)
NOTHING = Truth(SCENARIOS["none"], rank=1, step=None, cost_seconds=None)


def verdict(*findings, kind="straggler"):
    return Verdict("demo", 4, (0, 159), kind, Cost(0.0, 0.0, 0.0), findings)


def request(**changes):
    return replace(run.Request(SCENARIOS["backward"], rank=1, out=Path("out"), steps=160), **changes)


def test_the_right_rank_cause_and_onset_match():
    assert matches(verdict(RIGHT), TRUTH)
    assert matches(verdict(replace(RIGHT, onset_step=83)), TRUTH)


@pytest.mark.parametrize(
    "wrong",
    [
        verdict(replace(RIGHT, ranks=(2,))),
        verdict(replace(RIGHT, ranks=(1, 2))),
        verdict(replace(RIGHT, cause="data-loading")),
        verdict(replace(RIGHT, onset_step=84)),
        verdict(replace(RIGHT, onset_step=None)),
        verdict(RIGHT, Finding("chronic", "gc", ranks=(3,))),
        verdict(RIGHT, kind="inconclusive"),
        verdict(kind="none"),
    ],
    ids=[
        "other rank",
        "one rank too many",
        "other cause",
        "too late",
        "no onset",
        "one more blamed",
        "unsure",
        "nothing",
    ],
)
def test_anything_else_does_not(wrong):
    assert not matches(wrong, TRUTH)


def test_a_healthy_job_matches_only_without_blame():
    assert matches(verdict(kind="none"), NOTHING)
    assert matches(verdict(Finding("periodic", "checkpoint"), kind="none"), NOTHING)
    assert not matches(verdict(RIGHT), NOTHING)


def test_the_true_cost_is_what_steps_take_beyond_the_median_before_the_fault():
    steps = [9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.5]
    assert true_cost_seconds(steps, onset=9) == pytest.approx(4.5)


def test_every_scenario_can_be_asked_for():
    assert {name.value for name in FaultName} == set(SCENARIOS)


def test_a_rank_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="ranks 0 to 3"):
        run.check(request(rank=4))


def test_too_few_steps_are_refused():
    with pytest.raises(UsageError, match="60 at least"):
        run.check(request(steps=59))


def test_without_torch_and_scikit_learn_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StarprofError, match=r"torch and sklearn: pip install 'starprof\[demo\]'"):
        run.check(request())


@pytest.mark.e2e
def test_the_demo_finds_its_own_fault(tmp_path, capfd):
    from starprof.cli import main

    assert main(["demo", "--json", "--rank", "3", "--out", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    said = json.loads(out)
    assert (said["verdict"], said["findings"][0]["ranks"]) == ("straggler", [3])
    assert "injected: backward fault on rank 3 from step 80" in err
    assert (tmp_path / "demo-backward.html").stat().st_size > 100_000
    assert json.loads((tmp_path / "demo-backward.truth.json").read_text())["step"] == 80
