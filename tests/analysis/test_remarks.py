"""What verdicts must say besides: waits near the watchdog's limit, files never closed, warm-up, small evidence."""

from dataclasses import replace

import numpy as np
import pytest
from verdicts import only_finding, verdict_of, words

from starprof.analysis import diagnose
from starprof.analysis.synthetic import Slow, SyntheticRun
from starprof.model import causes
from starprof.model.events import HOOK_NOTE
from starprof.model.rundata import TIMEOUT_S


def waited(seconds, limit, span="eval", step=60):
    """A verdict on a job whose rank 0 lets the others wait once, with a limit of waiting."""
    phases = {"forward": 1e6, "backward": 2e6, "optimizer": 1e5}
    fault = Slow(span, (0,), us=seconds * 1e6, start=step, end=step + 1)
    data = SyntheticRun(4, 120, phases_us=phases, faults=(fault,), counters=False).data()
    detail = {} if limit is None else {TIMEOUT_S: limit}
    return diagnose(replace(data, ranks=tuple(replace(info, detail=detail) for info in data.ranks)))


def said(verdict):
    return " ".join([verdict.reason, *(words(finding) for finding in verdict.findings)])


@pytest.mark.parametrize(("seconds", "limit", "used"), [(3590, 3600.0, "99.7 %"), (560, 600.0, "93.3 %")])
def test_a_wait_that_uses_up_the_limit_warns_before_the_job_dies(seconds, limit, used):
    verdict = waited(seconds, limit)
    assert f"{used} of the limit of {limit:.0f} s" in words(only_finding(verdict))
    assert "makes nothing faster" in said(verdict)


def test_the_warning_stands_by_itself_where_no_finding_is_about_that_step():
    verdict = waited(95, 100.0, span="compile", step=0)
    assert "95.0 % of the limit" in verdict.reason or "of the limit of 100 s" in verdict.reason


@pytest.mark.parametrize("limit", [7200.0, None, float("nan"), -5.0, "soon", True])
def test_a_far_or_unknown_limit_is_not_mentioned(limit):
    assert "limit" not in said(waited(3590, limit))


def test_compiling_in_the_first_steps_is_said_to_be_warm_up():
    verdict = verdict_of(Slow("compile", (1,), us=90e6, end=1), ranks=2, counters=False)
    assert (verdict.verdict, verdict.findings) == ("none", ())
    assert "Rank 1 compiled for 90 s in step 0; the others waited: that is warm-up" in verdict.reason


def test_short_compilation_at_the_start_is_not_worth_a_word():
    assert "compiled" not in verdict_of(Slow("compile", (1,), us=100_000.0, end=1), counters=False).reason


def with_open_files(numbers, rank=1, limit=256.0, *faults):
    data = SyntheticRun(4, 300, faults=faults).data()
    samples = data.samples["process_sample"].assign(fds=np.nan, fds_limit=np.nan)
    mine = samples.index[samples["rank"] == rank][::10]
    samples.loc[mine, "fds"] = np.interp(np.arange(len(mine)), np.linspace(0, len(mine) - 1, len(numbers)), numbers)
    samples.loc[mine, "fds_limit"] = limit
    return diagnose(replace(data, samples={**data.samples, "process_sample": samples}))


def test_files_that_are_never_closed_are_told_though_nothing_is_slow():
    verdict = with_open_files([60, 240])
    assert (verdict.verdict, verdict.findings) == ("none", ())
    assert "of rank 1 rose steadily" in verdict.reason
    assert "of 256 that it may have" in verdict.reason


def test_files_that_are_never_closed_are_a_candidate_for_everybody_s_slowness():
    verdict = with_open_files([60, 240], 1, 256.0, Slow("data_wait", None, us=40_000.0, start=150))
    assert "a candidate for the cause" in words(only_finding(verdict))


def test_files_of_a_victim_are_no_candidate_for_another_rank_s_slowness():
    verdict = with_open_files([60, 240], 1, 256.0, Slow("forward", (3,), us=40_000.0, start=150))
    assert "descriptors" not in words(only_finding(verdict))
    assert "descriptors" in verdict.reason


@pytest.mark.parametrize("numbers", [[60, 60], [20, 200, 200, 200, 200], [60, 240, 60, 240, 60, 240], [60, 75]])
def test_open_files_that_settle_swing_or_hardly_grow_are_no_leak(numbers):
    assert "descriptors" not in said(with_open_files(numbers))


def test_a_little_slowness_says_how_it_is_known_and_that_the_network_is_not_it():
    verdict = verdict_of(Slow("forward", (2,), us=6_000.0, start=200), cv=0.01, counters=False)
    text = words(only_finding(verdict))
    assert "a rule that waits for 20 % would not speak" in text
    assert "the network is not what became slow" in text


def test_a_plain_slowness_needs_no_such_word():
    text = words(only_finding(verdict_of(Slow("forward", (2,), us=40_000.0, start=200), counters=False)))
    assert "would not speak" not in text


def test_what_the_hook_could_not_see_is_quoted_when_there_are_no_steps():
    data = SyntheticRun(2, 50, missing_ranks=(0, 1), counters=False).data()
    events = data.events.reindex(range(2))
    events["kind"], events["rank"], events["detail"] = HOOK_NOTE, [0, 1], "no step boundary seen"
    verdict = diagnose(replace(data, events=events))
    assert verdict.verdict == "inconclusive"
    assert "The hook of ranks 0 and 1 noted: no step boundary seen" in verdict.reason


def test_extra_work_of_rank_0_in_every_step_is_said_to_be_typical_of_that_rank():
    assert "rank == 0" in only_finding(verdict_of(Slow("unaccounted", (0,), us=16_000.0))).action
    assert "rank == 0" not in only_finding(verdict_of(Slow("unaccounted", (2,), us=16_000.0))).action
    assert only_finding(verdict_of(Slow("unaccounted", (0,), us=16_000.0))).cause == causes.USER_CODE
