"""Ranks that step on their own between averagings: when that begins and ends, and who is in the mean."""

from itertools import pairwise

import pytest
from protocol_play import close_of, first_choice, in_rounds_of, messages, rounds_member, until
from schedules import FAULTS, play
from world import World

from starprof.sync.policies import NO_STEPS, Gradient, LocalSteps, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Apply, At, Begin, Member
from starprof.sync.protocol.messages import Arrive, Close, Commit, Gathered, Go, Hello, Pause, Prepared, Query, Rejoin
from starprof.sync.protocol.rounds import among

PERIOD = LocalSteps(4)


def maker(name, **options):
    return lambda ranks, version: create(name, ranks, options, version)


def state(rank, number, version, steps=4):
    return Arrive(rank, Gradient(rank, number, version, steps=steps), version)


def gradient(rank, number, version):
    return Arrive(rank, Gradient(rank, number, version), version)


def closes(sent):
    return list(dict.fromkeys(close for _, close in messages(sent, Close)))


def test_ranks_that_come_from_native_steps_are_told_with_the_commit_what_they_do_on_their_own():
    coordinator = Coordinator(range(2))
    coordinator.switch(maker("local-sgd", period=4))
    for rank in range(2):
        coordinator.told(Member(rank, (0, 1)).hello())
    coordinator.told(Prepared(0, 1, 2))
    assert messages(coordinator.told(Prepared(1, 1, 2)), Commit)[0] == (0, Commit(1, 1, 2, PERIOD))
    member = Member(0, (0, 1), version=2)
    member.told(Commit(1, 1, 2, PERIOD))
    assert member.boundary() == [Begin(2, native=False)]
    assert member.local == PERIOD


def test_states_are_averaged_once_all_have_come_and_the_steps_go_on():
    coordinator = in_rounds_of("local-sgd", options={"period": 4})
    assert coordinator.told(state(0, 0, 2)) == coordinator.told(state(2, 0, 2)) == []
    (close,) = closes(coordinator.told(state(1, 0, 2, steps=3)))
    assert (close.members, close.weights, close.release) == ((0, 1, 2), (1 / 3,) * 3, (0, 1, 2))
    assert (close.steps, close.local) == (4, PERIOD)


def test_steps_of_their_own_begin_with_a_round_of_everybody_and_end_with_one():
    coordinator = in_rounds_of("m-sync", options={"m": 2})
    coordinator.told(gradient(0, 0, 2))
    coordinator.told(gradient(1, 0, 2))
    coordinator.switch(maker("local-sgd", period=4))
    coordinator.told(gradient(0, 1, 3))
    assert closes(coordinator.told(gradient(1, 1, 3))) == [], "rank 2 would hand in a gradient among states"
    (close,) = closes(coordinator.told(gradient(2, 0, 2)))
    assert (close.steps, close.local) == (0, PERIOD)
    coordinator.switch(maker("m-sync", m=2))
    coordinator.told(state(0, 2, 4))
    assert closes(coordinator.told(state(1, 2, 4))) == [], "rank 2 would hand in a state among gradients"
    (close,) = closes(coordinator.told(state(2, 1, 4)))
    assert (close.steps, close.local) == (4, NO_STEPS)
    coordinator.told(gradient(0, 3, 5))
    (close,) = closes(coordinator.told(gradient(1, 3, 5)))
    assert close.members == (0, 1)


def test_native_steps_follow_on_a_mean_of_all_states():
    coordinator = in_rounds_of("local-sgd", options={"period": 4})
    coordinator.switch(None)
    for rank in range(2):
        coordinator.told(state(rank, 0, 2))
    (close,) = closes(coordinator.told(state(2, 0, 2)))
    assert (close.native, close.local, coordinator.policy) == (True, NO_STEPS, None)


def test_the_mean_waits_for_nobody_who_has_paused_or_is_lost():
    coordinator = in_rounds_of("local-sgd", ranks=4, options={"period": 4})
    coordinator.told(Pause(0, 1, 10, 2))
    coordinator.told(state(1, 0, 2, steps=2))
    assert closes(coordinator.gone(3)) == []
    (close,) = closes(coordinator.told(state(2, 0, 2, steps=3)))
    assert (close.members, close.steps) == ((1, 2), 3)
    for rank in (0, 1):
        assert messages(coordinator.told(Pause(rank, 1, 10, 3)), Gathered) == []
    sent = coordinator.told(Pause(2, 1, 10, 3))
    assert messages(sent, Gathered)[0] == (0, Gathered(1, 1, 3, native=False, local=PERIOD, serial=2, lost=(3,)))


def test_a_meeting_is_where_steps_of_their_own_may_begin():
    coordinator = in_rounds_of("asgd", ranks=2)
    coordinator.switch(maker("hierarchical", groups=[[0, 1]], period=4))
    coordinator.told(Pause(0, 1, 10, 2))
    sent = coordinator.told(Pause(1, 1, 10, 2))
    assert messages(sent, Gathered)[0][1].local == LocalSteps(4, ((0, 1),))


def test_groups_are_of_those_who_are_there():
    coordinator = in_rounds_of("hierarchical", ranks=4, options={"groups": [[0, 1], [2, 3]], "period": 4})
    coordinator.told(state(0, 0, 2))
    coordinator.told(state(1, 0, 2))
    coordinator.told(state(2, 0, 2))
    (close,) = closes(coordinator.gone(3))
    assert close.local == LocalSteps(4, ((0, 1),))


def test_a_member_takes_from_each_round_what_follows_it():
    member = rounds_member()
    close = Close(1, 2, 0, (member.gradient()[0].message.gradient,), (1.0,), (0,), local=PERIOD)
    member.told(close)
    assert Apply(close) in member.reduced(close)
    assert (member.local, member.hello().local) == (PERIOD, PERIOD)


def test_a_state_that_is_pulled_says_what_follows_it():
    member = rounds_member()
    member.gradient()
    member.told(Rejoin(2, 2, 1))
    member.pulled(7, [], 0, PERIOD)
    assert member.local == PERIOD


def test_a_rank_that_comes_late_to_a_meeting_keeps_to_what_its_rounds_say():
    member = rounds_member()
    late = Close(1, 2, 0, (Gradient(1, 0, 2, steps=4),), (1.0,), (0,), meeting=1, met_at=2, local=PERIOD)
    member.gradient(steps=4)
    member.told(late)
    member.received(late)
    member.told(Go(1, 0, 3, kept=True))
    member.pause(5)
    assert member.at is At.COMPUTING, "it must not wait for a meeting that is over"
    assert (member.version, member.local) == (3, PERIOD)


@pytest.mark.parametrize("known_by", ["close", "commit", "meeting", "word"])
def test_a_new_coordinator_goes_on_with_what_ranks_do_on_their_own(known_by):
    version = 5
    both = {"epoch": 1, "held": version, "native": False}
    if known_by == "close":
        both["closes"] = (Close(1, 4, 0, (Gradient(0, 0, 4),), (1.0,), local=PERIOD),)
    elif known_by == "commit":
        both["commit"] = Commit(1, 1, version, PERIOD)
    elif known_by == "meeting":
        both |= {"meetings": 1, "gathered": Gathered(1, 1, version, native=False, local=PERIOD)}
    else:
        both["local"] = PERIOD
    coordinator = Coordinator(range(2), epoch=2)
    coordinator.switch(maker("asgd"))
    for rank in range(2):
        coordinator.told(Hello(rank, **both))
    assert closes(coordinator.told(state(0, 0, version))) == []
    (close,) = closes(coordinator.told(state(1, 0, version)))
    assert (close.members, close.local) == ((0, 1), NO_STEPS)


def test_what_does_not_belong_there_is_healed_by_a_whole_state():
    coordinator = in_rounds_of("local-sgd", options={"period": 4})
    assert messages(coordinator.told(gradient(2, 0, 2)), Rejoin)[0][0] == 2


def test_a_killed_rank_s_share_is_lost_and_the_rest_average():
    world = World(3, 8, "local-sgd", {"period": 3}, faults=[("crash", 2)])
    until(world, lambda w: any(g.steps for entry in w.applied[0] if entry[1] != "native" for g in entry[1]))
    until(world, lambda w: 0 < w.own[2] < 3)
    world.happen(next(event for event in world.enabled() if event[0] == "fault"))
    first_choice(world)
    world.check_end()
    assert [g.worker for g in world.applied[0][-1][1]] == [0, 1]


def test_schedules_move_between_gradients_states_and_native_steps():
    """Else those of `test_any_schedule_ends_with_one_history_everywhere` would prove nothing of states."""
    met = set()
    for seed in range(300):
        world = play(seed, faults=FAULTS if seed % 2 else (), switching=True, meeting=seed % 3 == 0)
        for rank in world.alive:
            kinds = [
                "native" if entry[1] == "native" else "states" if any(g.steps for g in entry[1]) else "gradients"
                for entry in world.applied[rank]
            ]
            met.update(pairwise(kinds))
    assert met >= {(a, b) for a in ("native", "states", "gradients") for b in ("native", "states", "gradients")}


def test_a_mean_of_states_stays_one_when_one_of_them_is_lost():
    close = close_of(*(Gradient(rank, 0, 2, steps=3) for rank in range(3)))
    assert among(close, {0, 2}).weights == pytest.approx((0.5, 0.5))


def test_a_round_that_is_closed_because_a_rank_is_lost_is_not_asked_for_at_once():
    coordinator = in_rounds_of("local-sgd", options={"period": 4})
    coordinator.told(state(0, 0, 2))
    coordinator.told(state(1, 0, 2))
    sent = coordinator.gone(2)
    assert [close.members for close in closes(sent)] == [(0, 1)]
    assert messages(sent, Query) == []
