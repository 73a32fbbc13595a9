from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from starprof.model import causes
from starprof.model.verdict import Cost, Finding, Verdict, VerdictKind
from starprof.reports import facts, words

FINDING = Finding(
    kind="chronic", cause="backward-compute", ranks=(1,), nodes=("n0",), onset_step=120, slowdown=1.42, confidence=0.97
)
VERDICT = Verdict("demo", 4, (0, 599), "straggler", Cost(11.1, 0.18, 0.0), (FINDING,))


def told(verdict: Verdict, total: float = 62.0) -> str:
    return words.headline(verdict, facts.main_finding(verdict), total).sentence.replace(words.TIMES, "x")


def test_headline_names_rank_size_cause_onset_and_cost_in_one_sentence():
    assert told(VERDICT) == (
        "rank 1 (node n0) makes every step 1.42x slower: backward-compute since step 120; costs 11.1 s of 62 s (18 %)"
    )


def test_headline_of_several_ranks_speaks_of_them_in_the_plural():
    finding = replace(FINDING, ranks=(3, 5), nodes=("n0", "n1"))
    assert told(replace(VERDICT, findings=(finding,))).startswith("ranks 3, 5 (nodes n0, n1) make every step")


def test_headline_of_a_transient_says_which_steps():
    finding = replace(FINDING, kind="transient", end_step=300)
    assert "makes steps 120-300 1.42x slower: backward-compute; costs" in told(replace(VERDICT, findings=(finding,)))


def test_headline_from_the_first_step_does_not_speak_of_a_beginning():
    assert "from the first step on" in told(replace(VERDICT, findings=(replace(FINDING, onset_step=0),)))


def test_headline_of_a_healthy_run_blames_nobody():
    healthy = replace(VERDICT, verdict="none", findings=(), cost=Cost(0.0, 0.0, 0.0))
    assert told(healthy) == "no rank holds the others up"


def test_headline_with_a_periodic_finding_but_no_straggler_still_says_that_nobody_holds_up():
    periodic = Finding(kind="periodic", cause="checkpoint", cost_seconds=1.0)
    text = told(replace(VERDICT, verdict="none", findings=(periodic,)))
    assert text.startswith("no rank holds the others up")


def test_headline_of_an_inconclusive_run_names_nobody():
    unclear = Verdict("demo", 4, (0, 1), "inconclusive", Cost(0.0, 0.0, 0.0), reason="only 2 steps were recorded")
    assert told(unclear) == "the recording does not tell who is slow"


@pytest.mark.parametrize("kind", get_args(VerdictKind))
def test_every_verdict_has_a_title_and_a_headline(kind: VerdictKind):
    assert words.VERDICT_TITLES[kind]
    assert told(replace(VERDICT, verdict=kind, findings=()))


def test_every_cause_is_explained_in_words():
    assert set(words.CAUSE_TITLES) == causes.ALL


def test_many_ranks_are_counted_not_listed():
    finding = replace(FINDING, ranks=tuple(range(12)), nodes=())
    assert words.who(finding) == "ranks 0, 1, 2, 3, 4, 5, … (12 in all)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0421, "42.1 ms"), (11.1, "11.1 s"), (62.0, "62 s"), (320.0, "5 min 20 s"), (7500.0, "2 h 05 min")],
)
def test_seconds_take_the_unit_that_suits_them(value: float, text: str):
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(420.0, "0.42 ms"), (48_230.0, "48.2 ms"), (1_204_000.0, "1,204 ms"), (-1.0, "0.00 ms")]
)
def test_milliseconds_keep_three_digits_and_know_no_negative_zero(value: float, text: str):
    assert words.milliseconds(value) == text


def test_what_was_not_measured_is_a_dash_not_a_zero():
    nan = float("nan")
    assert words.milliseconds(nan) == words.seconds(nan) == words.mebibytes(nan) == words.UNKNOWN


@pytest.mark.parametrize(("share", "text"), [(0.18, "18 %"), (0.0034, "0.34 %"), (0.0, "0 %")])
def test_shares_are_percentages(share: float, text: str):
    assert words.percent(share) == text
