"""The coordinator's side: leases, the operator, old words; and random schedules of faults, in virtual time."""

import random

import pytest
from advisor_schedules import play

from starprof.control.coordinator.advised import TAKEN_OVER_S, Advised, NotYoursError, Word
from starprof.control.modes import NATIVE, Mode

ROUNDS = Mode("m-sync", {"m": 3})


class Wanted(list):
    def __call__(self, mode, by, reason):
        self.append((mode, by, reason))


@pytest.fixture
def wanted():
    return Wanted()


@pytest.fixture
def advised(wanted):
    return Advised(wanted)


def test_an_advisor_that_is_silent_loses_what_it_has_moved(advised, wanted):
    advised.said(Word("a", 1, 5.0, ROUNDS, "slow"), 0.0)
    for at_s in (1.0, 3.0, 4.9):
        advised.tick(at_s)
    assert wanted == [(ROUNDS, "advisor", "slow")]
    advised.said(Word("a", 2, 5.0), 4.9)
    advised.tick(9.0)
    assert len(wanted) == 1
    advised.tick(10.0)
    assert wanted[-1][:2] == (NATIVE, "coordinator")
    advised.tick(20.0)
    assert len(wanted) == 2, "once"


def test_there_is_one_advisor_at_a_time(advised, wanted):
    advised.said(Word("a", 1, 5.0), 0.0)
    with pytest.raises(NotYoursError):
        advised.said(Word("b", 1, 5.0, ROUNDS), 4.0)
    advised.tick(6.0)
    advised.said(Word("b", 2, 5.0, ROUNDS), 6.0)
    with pytest.raises(NotYoursError):
        advised.said(Word("a", 2, 5.0, NATIVE), 7.0)
    assert [mode for mode, *_ in wanted] == [ROUNDS]


def test_what_was_said_before_counts_nothing(advised, wanted):
    word = Word("a", 1, 5.0, ROUNDS)
    advised.said(word, 0.0)
    advised.said(Word("a", 2, 5.0, NATIVE), 1.0)
    with pytest.raises(NotYoursError):
        advised.said(word, 2.0)
    assert [mode for mode, *_ in wanted] == [ROUNDS, NATIVE]


def test_the_operators_mode_is_his(advised, wanted):
    advised.said(Word("a", 1, 5.0, ROUNDS), 0.0)
    advised.overruled("user")
    with pytest.raises(NotYoursError, match="user's choice"):
        advised.said(Word("a", 2, 5.0, NATIVE), 1.0)
    advised.tick(100.0)
    assert len(wanted) == 1, "and stays so when the advisor is gone"
    advised.overruled("")
    advised.said(Word("a", 3, 5.0, NATIVE), 101.0)
    assert wanted[-1][0] == NATIVE


def test_what_was_frozen_for_a_while_is_still_on_lease(advised, wanted):
    advised.said(Word("a", 1, 5.0, ROUNDS), 0.0)
    advised.overruled("")  # as `unfreeze` does
    advised.tick(6.0)
    assert wanted[-1][:2] == (NATIVE, "coordinator")


def test_a_coordinator_that_takes_over_waits_for_the_advisor_for_a_while(advised, wanted):
    advised.taken_over("advisor", "", ROUNDS, 0.0)
    advised.tick(TAKEN_OVER_S - 1)
    assert wanted == []
    advised.tick(TAKEN_OVER_S + 1)
    assert wanted[0][0] == NATIVE


def test_nothing_goes_wrong_in_random_schedules():
    for seed in range(60):
        play(random.Random(seed))
