"""Verdicts on jobs that were moved to rounds: the slow rank is named, and costs are those of native steps."""

import pytest
from sync_lab import Phase, controlled_run

from starprof.analysis.diagnose import diagnose
from starprof.analysis.own_time import own_time
from starprof.analysis.settings import DEFAULT
from starprof.reports.sections import anatomy
from starprof.reports.terminal import Terminal, render

NATIVE = Phase("native", 60)
M_SYNC = Phase("m-sync", 300, {"m": 7})


def verdict_of(folder, *phases, **job):
    run = controlled_run(folder, [*phases, Phase("native", 20)], since=0, **job)
    return run, diagnose(run)


def blamed(verdict):
    return {rank for finding in verdict.findings for rank in finding.ranks}


@pytest.mark.parametrize("rounds", [M_SYNC, Phase("m-sync-fold", 300, {"m": 6}), Phase("asgd", 1_500)], ids=str)
def test_the_slow_rank_is_named_and_never_one_that_waits(tmp_path, rounds):
    _, verdict = verdict_of(tmp_path, NATIVE, rounds)
    assert verdict.verdict == "straggler"
    assert blamed(verdict) == {5}


def test_a_slow_rank_costs_in_native_steps_only_and_what_rounds_have_spared_is_told(tmp_path):
    run = controlled_run(tmp_path, [NATIVE, M_SYNC], since=0)
    verdict = diagnose(run)
    own = own_time(run, DEFAULT)
    lost_us = 0.06e6 * 2.1 * (~own.rounds).sum()
    assert verdict.cost.seconds == pytest.approx(lost_us / 1e6, rel=0.35)
    assert f"{own.rounds.sum()} of {len(own.steps)} steps were made in rounds" in verdict.reason
    spared_s = float(verdict.reason.rpartition("about ")[2].split(" s")[0])
    assert spared_s == pytest.approx(0.06 * 2.1 * own.rounds.sum(), rel=0.15)
    assert verdict.cost.share == pytest.approx(verdict.cost.seconds * 1e6 / own.job_us.sum(), rel=0.01)


def test_a_job_that_was_never_long_in_native_steps_is_judged_all_the_same(tmp_path):
    run = controlled_run(tmp_path, [Phase("native", 4), M_SYNC], since=0)
    verdict = diagnose(run)
    assert blamed(verdict) == {5}
    assert verdict.cost.seconds < 0.5


def test_nobody_is_blamed_for_rounds(tmp_path):
    _, verdict = verdict_of(tmp_path, NATIVE, M_SYNC, factor=1.0)
    assert blamed(verdict) == set()
    assert verdict.verdict == "none"
    assert "in rounds, where nobody waits for the slowest: costs are those of native steps." in verdict.reason


def test_waiting_for_a_release_is_not_called_a_collective(tmp_path):
    run, verdict = verdict_of(tmp_path, NATIVE, M_SYNC)
    assert "waited" in render(run, verdict, Terminal(color=False, width=100))
    assert anatomy.labels_of(run)["blocked_us"] == "waiting for others"
