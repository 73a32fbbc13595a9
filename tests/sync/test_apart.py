"""Ranks that come to different places, and a loop that turns out to be one that can't be in rounds."""

import pytest
from protocol_play import close_of, in_rounds_of, messages, paused, rounds_member
from schedules import FAULTS, HARD, play

from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.meetings import PASSED_BY_S
from starprof.sync.protocol.member import GiveUp, Member, Resume, Send
from starprof.sync.protocol.messages import (
    Abort,
    Arrive,
    Close,
    Commit,
    Gathered,
    Hello,
    Over,
    Pause,
    Prepare,
    Prepared,
    Refuse,
)


@pytest.mark.parametrize("faults", [(), ("cut",), ("coordinator",), ("cut", "crash"), FAULTS, HARD])
@pytest.mark.parametrize("switching", [False, True])
def test_a_rank_that_leaves_its_loop_early_has_the_history_of_the_others(faults, switching):
    for seed in range(60):
        play(seed, faults=faults, switching=switching, early=True)


def apart(coordinator):
    """Rank 0 stands before a barrier, the others come to the end of their epoch."""
    coordinator.told(Pause(0, 1, 4, 2, "barrier"))
    for rank in (1, 2):
        sent = coordinator.told(Pause(rank, 1, 10, 2))
    return sent


def test_who_is_at_the_end_of_an_epoch_goes_on_and_who_stands_before_a_collective_pauses_again():
    sent = apart(in_rounds_of("asgd"))
    assert messages(sent, Gathered) == [
        (rank, Gathered(1, 1, 2, native=False, again=(0,), serial=1)) for rank in range(3)
    ]

    left, stays = rounds_member(rank=1), rounds_member(rank=0)
    paused(left)
    stays.pause(4, "barrier")
    end = Gathered(1, 1, 2, native=False, again=(0,))
    assert left.told(end) == [Resume(2, native=False)]
    assert stays.told(end) == [Send(Pause(0, 2, 4, 2, "barrier"))]


def test_rounds_go_on_without_a_rank_that_stands_aside():
    coordinator = in_rounds_of("m-sync", options={"m": 2})
    apart(coordinator)
    assert coordinator.told(Pause(0, 2, 4, 2, "barrier")) == []
    coordinator.told(Arrive(1, Gradient(1, 0, 2), 2, iterations=11))
    ((_, close), *_) = messages(coordinator.told(Arrive(2, Gradient(2, 0, 2), 2, iterations=11)), Close)
    assert close.members == (1, 2)


def test_whoever_stood_aside_meets_the_others_at_their_collective():
    coordinator = in_rounds_of("asgd")
    apart(coordinator)
    coordinator.told(Pause(0, 2, 4, 2, "barrier"))
    assert messages(coordinator.told(Pause(1, 2, 12, 2, "barrier")), Gathered) == []
    sent = coordinator.told(Pause(2, 2, 12, 2, "barrier"))
    assert messages(sent, Gathered)[0][1] == Gathered(1, 2, 2, native=False, serial=2)


def test_native_steps_do_not_follow_where_ranks_are_not_equally_far_in_their_loops():
    for index, native in ((9, False), (12, True)):
        coordinator = in_rounds_of("asgd")
        coordinator.told(Pause(0, 1, index, 2, "barrier"))
        coordinator.switch(None)
        coordinator.told(Pause(1, 1, 12, 2, "barrier"))
        sent = coordinator.told(Pause(2, 1, 12, 2, "barrier"))
        assert messages(sent, Gathered)[0][1].native is native


def test_ranks_that_count_by_themselves_are_made_even_at_their_first_collective():
    coordinator = in_rounds_of("m-sync", options={"m": 2})
    for rank, index in ((0, 29), (1, 29), (2, 42)):
        coordinator.told(Refuse(rank, "by a count of its own"))
        sent = coordinator.told(Pause(rank, 1, index, 2, "barrier"))
    end = Gathered(1, 1, 2, native=True, index=42, serial=1)
    assert messages(sent, Gathered) == [(rank, end) for rank in range(3)]
    member = rounds_member()
    member.pause(29, "barrier")
    assert member.told(end) == [Resume(2, native=True, skip=13)]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "rank 0 stands before barrier, and rank 2 at the end of its data"),
        ("all_reduce", "rank 2 before all_redu"),
    ],
)
def test_ranks_that_count_by_themselves_and_come_to_different_places_end_with_an_error(place, words):
    coordinator = in_rounds_of("m-sync", options={"m": 2})
    coordinator.told(Refuse(0, "by a count of its own"))
    for rank in (0, 1):
        coordinator.told(Pause(rank, 1, 29, 2, "barrier"))
    over = messages(coordinator.told(Pause(2, 1, 60, 2, place)), Over)
    assert [rank for rank, _ in over] == [0, 1, 2]
    assert words in over[0][1].reason


def test_before_a_collective_the_word_on_a_later_round_does_not_tell_that_the_meeting_is_over_for_this_rank():
    member = rounds_member()
    member.pause(4, "barrier")
    later = close_of(Gradient(1, 0, 2), Gradient(2, 0, 2), release=(1, 2))
    told = member.told(Close(**{**{f: getattr(later, f) for f in later.__slots__}, "meeting": 1, "met_at": 2}))
    assert not [a for a in told if isinstance(a, Resume)]
    assert [a for a in member.told(Gathered(1, 1, 2, native=False)) if isinstance(a, Resume)]


def test_a_new_coordinator_leaves_aside_who_stood_aside_before():
    end = Gathered(1, 1, 2, native=False, again=(0,))
    commit = Commit(1, 1, 2)
    coordinator = Coordinator(range(3), epoch=2)
    coordinator.switch(lambda workers, version: create("m-sync", workers, {"m": 2}, version))
    stands = Pause(0, 2, 4, 2, "barrier")
    coordinator.told(Hello(0, 1, 2, native=False, commit=commit, meetings=1, gathered=end, paused=stands))
    for rank in (1, 2):
        coordinator.told(Hello(rank, 1, 2, native=False, commit=commit, meetings=1, gathered=end))
    assert coordinator.policy.members == [1, 2]


@pytest.mark.parametrize(
    ("standing", "iterations", "ends"),
    [((0, 1), 40, True), ((0, 1), 5, False), ((0,), 40, False)],
    ids=["half have passed by", "one is only slow", "one has left its loop early"],
)
def test_ranks_before_a_collective_that_others_have_passed_by_do_not_wait_for_ever(standing, iterations, ends):
    coordinator = in_rounds_of("asgd", ranks=4)
    for rank in standing:
        coordinator.told(Pause(rank, 1, 4, 2, "barrier"), 100.0)
    for rank in set(range(4)) - set(standing):
        coordinator.told(Arrive(rank, Gradient(rank, 0, 2), 2, iterations=iterations), 101.0)
    assert messages(coordinator.tick(100.0 + PASSED_BY_S), Over) == []
    over = messages(coordinator.tick(101.0 + PASSED_BY_S), Over)
    assert len(over) == (4 if ends else 0)
    if ends:
        assert "rank 0 has stood before barrier for 60 s, and rank 2 has passed by" in over[0][1].reason
        assert GiveUp(over[0][1].reason) in rounds_member().told(over[0][1])


def test_a_refusal_ends_a_switch_that_is_being_prepared():
    coordinator = Coordinator(range(2))
    for rank in range(2):
        coordinator.told(Member(rank, (0, 1)).hello())
    make = lambda workers, version: create("asgd", workers, {}, version)  # noqa: E731
    assert len(messages(coordinator.switch(make), Prepare)) == 2
    coordinator.told(Prepared(0, 1, 5))
    assert len(messages(coordinator.told(Refuse(1, "a barrier")), Abort)) == 2
    assert coordinator.refused == "a barrier"
    assert coordinator.told(Prepared(1, 1, 5)) == []
    assert coordinator.switch(make) == []


def test_a_refusal_in_rounds_takes_the_job_back_to_native_steps():
    coordinator = in_rounds_of("m-sync", ranks=2, options={"m": 1})
    coordinator.told(Refuse(0, "a barrier"))
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2, iterations=3))
    ((_, close), *_) = messages(coordinator.told(Arrive(1, Gradient(1, 0, 2), 2, iterations=3)), Close)
    assert close.native
    assert close.members == (0, 1)


def test_a_new_coordinator_hears_of_a_refusal():
    member = Member(0, (0, 1))
    assert member.refuse("a barrier") == [Send(Refuse(0, "a barrier"))]
    coordinator = Coordinator(range(2), epoch=2)
    coordinator.switch(lambda workers, version: create("asgd", workers, {}, version))
    coordinator.told(member.hello())
    sent = coordinator.told(Member(1, (0, 1)).hello())
    assert coordinator.refused == "a barrier"
    assert messages(sent, Prepare) == []
