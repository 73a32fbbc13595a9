"""Meetings of the round protocol: nobody waits for who has paused, and all go on from one version."""

import pytest
from protocol_play import arrived, close_of, in_rounds_of, messages, paused, rounds_member

from starprof.sync.policies import MODES as ALL_MODES
from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Apply, Member, Resume, Send, SkipLimit
from starprof.sync.protocol.messages import (
    Abort,
    Arrive,
    Close,
    Commit,
    Gathered,
    Go,
    Hello,
    Leave,
    Meet,
    Pause,
    Prepare,
)


def test_a_pause_between_native_steps_needs_no_meeting():
    member = Member(0, (0, 1))
    member.boundary()
    member.native_done()
    assert member.pause(1) == [Resume(1, native=True)]


def test_a_pause_while_a_switch_is_prepared_waits_for_its_outcome():
    for outcome, follows in (
        (Abort(1, 1), [Resume(1, native=True)]),
        (Commit(1, 1, 3), [Resume(1, native=True)]),
        (Commit(1, 1, 1), [Send(Pause(0, 1, 1, 1))]),
    ):
        member = Member(0, (0, 1))
        member.boundary()
        member.told(Prepare(1, 1))
        member.native_done()
        assert member.pause(1) == []
        assert member.told(outcome) == follows


def test_a_paused_rank_applies_where_it_stands_and_goes_on_with_exactly_the_version_of_the_meeting():
    member, other = rounds_member(2), rounds_member(0)
    assert paused(member) == Pause(2, 1, 5, 2)
    before, after = close_of(arrived(other)), Close(1, 3, 0, (Gradient(0, 1, 3),), (1.0,), (0,), meeting=1, met_at=3)
    member.told(before)
    assert member.received(before) == [Apply(before), Send(Pause(2, 1, 5, 3))]
    member.received(after)
    assert member.told(Gathered(1, 1, 3, native=False)) == [Resume(3, native=False)]
    assert (member.version, member.meetings) == (3, 1)


def test_the_word_on_a_later_round_says_that_the_meeting_is_over():
    member = rounds_member(2)
    paused(member)
    assert Resume(2, native=False) in member.told(Close(1, 2, 0, (Gradient(0, 0, 2),), (1.0,), meeting=1, met_at=2))


def test_others_hear_how_far_they_may_skip_until_the_meeting_is_over():
    member = rounds_member(2)
    assert member.told(Meet(1, 1, 40)) == [SkipLimit(40)]
    assert member.told(Meet(1, 1, 40)) == []
    paused(member)
    assert member.told(Gathered(1, 1, 2, native=False)) == [SkipLimit(None), Resume(2, native=False)]
    assert member.told(Meet(1, 1, 40)) == []


@pytest.mark.parametrize(("name", "options"), [("ssgd", {}), ("static-x", {"x": 3}), ("m-sync", {"m": 3})])
def test_nobody_waits_for_a_rank_that_has_paused(name, options):
    coordinator = in_rounds_of(name, options=options)
    drops = ALL_MODES[name].drops
    assert coordinator.told(Arrive(1, Gradient(1, 0, 2), 2)) == []
    first = coordinator.told(Pause(0, 1, 10, 2))
    assert messages(first, Meet) == [(rank, Meet(1, 1, 10)) for rank in range(3)]
    for sent, worker in ((first, 1), (coordinator.told(Arrive(2, Gradient(2, 0, 2), 2)), 2)):
        if drops:
            assert messages(sent, Go) == [(worker, Go(1, 0, 2, kept=False))]
        else:
            close = messages(sent, Close)[0][1]
            assert (close.members, close.weights, close.release) == ((worker,), (1 / 3,), (worker,))


def test_once_all_have_paused_all_go_on_from_one_version_under_a_new_policy():
    coordinator = in_rounds_of("asgd")
    for rank in range(3):
        coordinator.told(Arrive(rank, Gradient(rank, 0, 2), 2))
    for rank in (0, 2):
        assert messages(coordinator.told(Pause(rank, 1, 10, 3)), Gathered) == []
    before = coordinator.policy
    sent = coordinator.told(Pause(1, 1, 10, 3))
    assert messages(sent, Gathered) == [(rank, Gathered(1, 1, 5, native=False, serial=4)) for rank in range(3)]
    assert coordinator.policy is not before
    assert (coordinator.policy.version, coordinator.policy.members) == (5, [0, 1, 2])


def test_a_meeting_is_a_way_back_to_native_steps_unless_a_rank_is_lost():
    for lost in (False, True):
        coordinator = in_rounds_of("asgd")
        if lost:
            coordinator.gone(2)
        coordinator.told(Pause(0, 1, 10, 2))
        assert coordinator.switch(None) == []
        sent = coordinator.told(Pause(1, 1, 10, 2))
        if not lost:
            sent = coordinator.told(Pause(2, 1, 10, 2))
        gone = (2,) if lost else ()
        assert messages(sent, Gathered)[0] == (0, Gathered(1, 1, 2, native=not lost, serial=1, lost=gone))
        assert (coordinator.policy is None) is not lost


def test_a_switch_during_a_meeting_holds_from_its_end_on():
    coordinator = in_rounds_of("asgd")
    coordinator.told(Pause(0, 1, 10, 2))
    coordinator.switch(lambda workers, version: create("ssgd", workers, {}, version))
    assert coordinator.policy.name == "asgd"
    for rank in (1, 2):
        coordinator.told(Pause(rank, 1, 10, 2))
    assert coordinator.policy.name == "ssgd"


def test_a_meeting_does_not_wait_for_a_rank_that_is_lost_or_has_finished():
    coordinator = in_rounds_of("asgd", ranks=4)
    for rank in (0, 1):
        coordinator.told(Pause(rank, 1, 10, 2))
    assert messages(coordinator.gone(2), Gathered) == []
    assert len(messages(coordinator.told(Leave(3)), Gathered)) == 3


def test_whoever_has_not_heard_of_the_end_of_a_meeting_hears_it_again():
    coordinator = in_rounds_of("asgd", ranks=2)
    coordinator.told(Pause(0, 1, 10, 2))
    coordinator.disconnected(0)
    coordinator.told(Pause(1, 1, 10, 2))
    member = Member(0, (0, 1), version=2)
    member.told(Commit(1, 1, 2))
    member.boundary()
    member.pause(10)
    assert (0, Gathered(1, 1, 2, native=False, serial=1)) in coordinator.told(member.hello())


@pytest.mark.parametrize("native", [False, True])
def test_a_new_coordinator_ends_a_meeting_as_the_one_before_did(native):
    end = Gathered(1, 1, 7, native)
    coordinator = Coordinator(range(2), epoch=2)
    coordinator.switch(None)
    commit = Commit(1, 1, 2)
    coordinator.told(Hello(0, 1, 7, native=native, commit=None if native else commit, meetings=1, gathered=end))
    sent = coordinator.told(Hello(1, 1, 7, native=False, commit=commit, paused=Pause(1, 1, 10, 7)))
    assert messages(sent, Gathered) == [(1, Gathered(2, 1, 7, native))]
    assert (coordinator.policy is None) is native


def test_a_rank_that_is_even_in_gradients_but_not_in_iterations_keeps_rounds_going():
    coordinator = in_rounds_of("asgd", ranks=2)
    coordinator.switch(None)
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2, iterations=4))
    (close, _) = (m for _, m in messages(coordinator.told(Arrive(1, Gradient(1, 0, 2), 2, iterations=3)), Close))
    assert not close.native
    coordinator.told(Arrive(0, Gradient(0, 1, 3), 3, iterations=5))
    (close, _) = (m for _, m in messages(coordinator.told(Arrive(1, Gradient(1, 1, 3), 3, iterations=5)), Close))
    assert close.native
