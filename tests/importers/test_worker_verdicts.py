"""Verdicts on workers that do not wait for each other: who changed, who was always slow, and who is only different."""

import re

import numpy as np
import pytest
from worker_fleets import blamed, fleet, loaded, long_table, said, synchronous, verdict, wide_table

from starprof.analysis import diagnose
from starprof.importers.load import load
from starprof.reports import terminal
from starprof.store.query import load_run
from starprof.store.save import save_run


def slowed(values, workers, factor, start=0, end=None):
    result = values.copy()
    result[np.ix_(workers, range(start, end or values.shape[1]))] *= factor
    return result


@pytest.mark.parametrize("memory", [0.0, 0.7])
@pytest.mark.parametrize("cv", [0.02, 0.1])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("workers", [4, 16])
def test_nobody_is_named_in_a_healthy_fleet(tmp_path, workers, spread, cv, memory):
    result = verdict(tmp_path, long_table(fleet(workers, spread=spread, cv=cv, memory=memory, seed=workers)))
    assert result.verdict == "none"
    assert not blamed(result)


@pytest.mark.parametrize(("workers", "factor", "length"), [(4, 2.0, 15), (10, 1.5, 40), (24, 3.0, 12), (8, 1.35, 60)])
def test_a_transient_straggler_is_named_with_its_time(tmp_path, workers, factor, length):
    values = slowed(fleet(workers, 300), [2], factor, 150, 150 + length)
    result = verdict(tmp_path, long_table(values, every=10.0, first=1.0))
    (finding,) = result.findings
    assert (result.verdict, finding.kind, finding.ranks) == ("straggler", "transient", (2,))
    assert abs(finding.onset_step - 150) <= 2
    assert abs(finding.end_step - (149 + length)) <= 2
    assert finding.slowdown == pytest.approx(factor, rel=0.1)
    assert f"time = {1 + 10 * finding.onset_step} s" in said(result)


def test_several_workers_that_become_slow_late_are_one_finding(tmp_path):
    result = verdict(tmp_path, long_table(slowed(fleet(10, 250), [6, 7, 8, 9], 1.3, 217)))
    (finding,) = result.findings
    assert finding.ranks == (6, 7, 8, 9)
    assert abs(finding.onset_step - 217) <= 2
    assert finding.end_step is None


def test_a_majority_that_becomes_slow_is_named_and_not_the_rest(tmp_path):
    assert blamed(verdict(tmp_path, long_table(slowed(fleet(10, 250), [0, 1, 2, 3, 4, 5], 1.6, 120)))) == set(range(6))


def test_a_worker_that_was_always_slow_is_chronic(tmp_path):
    result = verdict(tmp_path, long_table(slowed(fleet(10, 200, spread=0.02), [3], 1.4)))
    (finding,) = result.findings
    assert (finding.kind, finding.ranks, finding.onset_step, finding.end_step) == ("chronic", (3,), 0, None)


@pytest.mark.parametrize(("workers", "slow"), [(12, 8), (10, 5), (8, 4), (32, 20)])
def test_half_a_fleet_that_is_slow_is_named_against_the_fast_ones(tmp_path, workers, slow):
    values = slowed(fleet(workers, 120, spread=0.05), list(range(workers - slow, workers)), 3.0)
    result = verdict(tmp_path, long_table(values))
    (finding,) = result.findings
    assert finding.ranks == tuple(range(workers - slow, workers))
    assert finding.slowdown == pytest.approx(3.0, rel=0.1)
    assert "median says nothing" in said(result)


def test_slow_workers_that_become_slower_are_two_findings(tmp_path):
    values = slowed(slowed(fleet(10, 400), [0, 5, 6, 7, 8], 3.5), [5, 6], 3.0, 300)
    always, later = verdict(tmp_path, long_table(values)).findings
    assert (always.ranks, always.onset_step) == ((0, 5, 6, 7, 8), 0)
    assert later.ranks == (5, 6)
    assert abs(later.onset_step - 300) <= 2


def test_constant_variety_is_no_straggler_and_the_levels_are_told(tmp_path):
    levels = np.array([0.83, 0.85, 0.9, 1.02, 1.0, 1.08, 1.01, 0.99, 1.0, 0.95])
    result = verdict(tmp_path, long_table(fleet(10, 240, spread=0.0, cv=0.02) * levels[:, None]))
    (finding,) = result.findings
    assert (result.verdict, finding.kind, finding.ranks) == ("none", "structural", ())
    assert "rank 0 -16 %" in said(result)
    assert "rank 5 +9 %" in said(result)


def test_a_fleet_that_slows_down_together_has_no_straggler(tmp_path):
    result = verdict(tmp_path, long_table(slowed(fleet(8, 300), list(range(8)), 1.6, 150)))
    assert result.verdict == "uniform"
    assert not blamed(result)
    assert result.cost.share == pytest.approx(0.5 * (1 - 1 / 1.6), rel=0.05)


def test_a_worker_that_settles_in_its_first_samples_is_no_straggler(tmp_path):
    assert not blamed(verdict(tmp_path, long_table(slowed(fleet(8, 400), [4], 2.0, 0, 20))))


def test_a_fleet_that_becomes_faster_but_for_one_does_not_make_that_one_a_straggler_by_change(tmp_path):
    values = slowed(fleet(8, 300, spread=0.01), [0, 1, 2, 3, 5, 6, 7], 0.6, 200)
    assert not [f for f in verdict(tmp_path, long_table(values)).findings if f.onset_step and f.ranks]


def test_workers_that_join_late_or_miss_samples_change_nothing(tmp_path):
    values = slowed(fleet(8, 300), [5], 1.8, 200, 240)
    values[2, :120] = np.nan
    values[np.random.default_rng(0).random(values.shape) < 0.1] = np.nan
    assert blamed(verdict(tmp_path, long_table(values))) == {5}


def test_equal_wall_times_do_not_tell_who_is_slow(tmp_path):
    result = verdict(tmp_path, wide_table(synchronous()))
    assert (result.verdict, result.findings) == ("inconclusive", ())
    assert "not identifiable" in result.reason
    assert "Record" in result.reason


def test_the_loss_is_the_workers_own_where_nobody_waits(tmp_path):
    values = slowed(fleet(10, 300, cv=0.01), [2], 2.0, 100, 200)
    result = verdict(tmp_path, long_table(values, every=10.0))
    # Half of 100 samples of 10 s each, in one of ten workers.
    assert result.cost.seconds == pytest.approx(500 / 10, rel=0.05)
    assert result.cost.gpu_hours == pytest.approx(500 / 3600, rel=0.05)
    assert result.cost.share == pytest.approx(0.5 * 100 / 300 / 10, rel=0.05)
    assert "Nobody waits for it (asynchronous): rank 2 lost" in said(result)


def test_times_of_computing_only_do_not_tell_whether_the_others_wait(tmp_path):
    values = slowed(fleet(6, 100, base=100.0, spread=0.0, cv=0.01), [2], 1.5)
    result = verdict(tmp_path, long_table(values, header="rank,step,compute_ms", every=1.0))
    assert blamed(result) == {2}
    assert "asynchronous" not in said(result)
    # 100 steps of 50 ms each, if all wait for it.
    assert "Whether the others wait for it elsewhere is not told; if they do in every step, all lose: 4." in said(
        result
    )


def test_two_workers_that_differ_a_little_are_not_ranked(tmp_path):
    assert not blamed(verdict(tmp_path, long_table(slowed(fleet(2, 200), [1], 1.3))))


def test_a_cause_is_never_guessed_from_times(tmp_path):
    result = verdict(tmp_path, long_table(slowed(fleet(10, 200), [3], 2.0, 100)))
    assert {f.cause for f in result.findings} == {"unknown"}


def test_the_same_verdict_comes_from_the_saved_run(tmp_path):
    run = loaded(tmp_path, long_table(slowed(fleet(10, 200), [3], 2.0, 100)))
    save_run(run, tmp_path / "kept.starprof")
    kept, fresh = diagnose(load_run(tmp_path / "kept.starprof")), diagnose(run)
    assert kept.findings[0].evidence == fresh.findings[0].evidence
    assert kept.findings[0].ranks == (3,)


@pytest.mark.parametrize(
    ("job", "expected"),
    [(1, {6}), (2, set()), (3, {0, 1, 6, 7, 8, 9}), (4, {0, 5, 6, 7, 8})],
)
def test_public_parameter_server_jobs_have_their_known_answers(public_data, job, expected):
    run = loaded_from(public_data("alibaba_pai_minibatch") / f"job_{job}_norm.csv")
    assert blamed(diagnose(run)) == expected


def test_public_job_1_is_transient_at_its_time(public_data):
    (finding,) = diagnose(loaded_from(public_data("alibaba_pai_minibatch") / "job_1_norm.csv")).findings
    assert finding.kind == "transient"
    assert "time = 1811 s" in " ".join(finding.evidence)


def test_public_job_3_tells_the_chronic_from_the_late(public_data):
    always, later = diagnose(loaded_from(public_data("alibaba_pai_minibatch") / "job_3_norm.csv")).findings
    assert (always.ranks, always.onset_step) == ((0, 1), 0)
    assert later.ranks == (6, 7, 8, 9)
    assert "time = 2171 s" in " ".join(later.evidence)


def test_public_job_4_jumps_late(public_data):
    findings = diagnose(loaded_from(public_data("alibaba_pai_minibatch") / "job_4_norm.csv")).findings
    (jump,) = [f for f in findings if set(f.ranks) == {5, 6}]
    assert abs(jump.onset_step - 1874) <= 3
    assert jump.slowdown > 3


def loaded_from(path):

    return load([str(path)])


def test_the_terminal_shows_times_without_a_unit_as_they_stand_in_the_file(tmp_path):
    values = slowed(fleet(6, 100, base=400.0, spread=0.0, cv=0.001), [2], 2.0)
    run = loaded(tmp_path, wide_table(values))
    shown = terminal.render(run, diagnose(run), terminal.Terminal(width=100, color=False, encoding="utf-8"))
    assert re.search(r"2 +\S +80\d(\.\d)? +80\d", shown)
    assert " ms" not in shown
