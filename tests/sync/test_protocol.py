"""The round protocol: one history whatever happens, and nobody stands still."""

from collections import Counter
from itertools import pairwise

import pytest
from schedules import FAULTS, MODES, play
from world import World

from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Apply, Begin, Fetch, Member, PullState, Reduce, Send
from starprof.sync.protocol.messages import Abort, Answer, Arrive, Close, Commit, Hello, Prepare, Query, Rejoin, Take
from starprof.sync.protocol.rounds import among


def first_choice(world, prefer=()):
    """Play on, always taking the first event of the preferred kinds, else the first of all but faults."""
    for _ in range(5_000):
        events = [e for e in world.enabled() if e[0] not in {"fault", "lease", "switch"}]
        if not events:
            return
        world.happen(min(events, key=lambda e: prefer.index(e[0]) if e[0] in prefer else len(prefer)))
        world.check()
    raise AssertionError("it goes on for ever")


def until(world, met):
    """Play on, without faults, until something holds."""
    for _ in range(5_000):
        if met(world):
            return
        events = [e for e in world.enabled() if e[0] not in {"fault", "lease", "switch"}]
        assert events, "nothing happens any more"
        world.happen(events[0])
        world.check()
    raise AssertionError("it goes on for ever")


def in_rounds(world):
    return all(not member.native for member in world.members.values())


# Every schedule


@pytest.mark.parametrize("faults", [(), ("cut",), ("cut", "crash"), FAULTS], ids=lambda f: "+".join(f) or "no fault")
@pytest.mark.parametrize("switching", [False, True], ids=["one mode", "switching"])
def test_any_schedule_ends_with_one_history_everywhere(faults, switching):
    for seed in range(80):
        play(seed, faults=faults, switching=switching)


def test_the_schedules_do_meet_what_they_are_for():
    """Else they would prove nothing."""
    met = Counter()

    def watch(world, event):
        met[event[0]] += 1
        if event[0] == "to rank":
            met[type(world.to_rank[event[1]][0]).__name__] += 1

    for seed in range(150):
        world = play(seed, faults=FAULTS, switching=True, watch=watch)
        met["another attempt"] += any(attempt for _, attempt in world.groups)
        entries = [entry for rank in world.alive for entry in world.applied[rank]]
        met["void round"] += any(entry[1] == () for entry in entries)
    for seed in range(150):
        world = play(seed, switching=True)
        kinds = [[entry[1] == "native" for entry in world.applied[rank]] for rank in world.names]
        met["back to native steps"] += any(a < b for native in kinds for a, b in pairwise(native))
    wanted = {"failed", "gone", "lease", "pull", "heal", "switch", "Query", "Take", "Rejoin", "Abort", "Commit", "Go"}
    wanted |= {"another attempt", "void round", "back to native steps"}
    assert {name for name in wanted if not met[name]} == set()


@pytest.mark.parametrize("name", [name for name, _ in MODES if not create(name, range(3), dict(MODES)[name](3)).drops])
def test_without_faults_no_gradient_is_lost_where_the_mode_promises_it(name):
    world = World(4, 12, name, dict(MODES)[name](4))
    first_choice(world, prefer=("to coordinator", "to rank"))
    world.check_end()
    used = {(g.worker, g.number) for entry in world.applied[0] if entry[1] != "native" for g in entry[1]}
    for rank in world.names:
        numbers = sorted(number for worker, number in used if worker == rank)
        assert numbers == list(range(len(numbers))), "a gradient in the middle is missing"


# Rule by rule


def test_native_steps_go_on_until_all_have_promised_and_rounds_begin_at_one_version():
    world = World(3, 9, "m-sync", {"m": 2})
    until(world, in_rounds)
    begun = {len([entry for entry in world.applied[rank] if entry[1] == "native"]) for rank in world.names}
    assert len(begun) == 1
    assert begun.pop() >= 2


def test_a_member_that_has_promised_begins_no_native_step_before_it_hears_the_outcome():
    member = Member(0, (0, 1))
    assert member.boundary() == [Begin(0, native=True)]
    member.told(Prepare(1, 1))
    assert member.native_done() == []
    assert member.told(Abort(1, 1)) == [Begin(1, native=True)]


def test_a_commit_lets_a_member_catch_up_with_native_steps_first():
    member = Member(0, (0, 1))
    member.boundary()
    member.told(Prepare(1, 1))
    member.native_done()
    assert member.told(Commit(1, 1, 3)) == [Begin(1, native=True)]
    assert member.native_done() == [Begin(2, native=True)]
    assert member.native_done() == [Begin(3, native=False)]


def rounds_member(rank=0, version=2):
    member = Member(rank, (0, 1, 2), version=version)
    member.told(Commit(1, 1, version))
    member.boundary()
    return member


def close_of(*gradients, attempt=0, release=(0, 1), number=2):
    weights = tuple(1.0 / len(gradients) for _ in gradients)
    return Close(1, number, attempt, gradients, weights, release)


def arrived(member):
    (sent,) = member.gradient()
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Arrive)
    return sent.message.gradient


def test_a_round_is_applied_once_it_is_reduced_and_whoever_is_released_goes_on():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    assert member.told(close) == [Reduce(close)]
    actions = member.reduced(2, 0)
    assert Apply(close) in actions
    assert actions[-1] == Begin(3, native=False)


def test_the_leader_hands_the_result_to_everybody_who_had_no_part_in_it():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    member.told(close)
    assert [a.to for a in member.reduced(2, 0) if hasattr(a, "to")] == [2]


def test_a_result_that_comes_before_the_word_on_its_round_is_kept():
    third, other = rounds_member(2), rounds_member(1)
    arrived(third)
    close = close_of(arrived(other), release=(1, 2))
    third.received(close)
    assert third.version == 2 or third.version == 3
    third.told(close)
    assert third._log.held == 3


def test_who_has_said_no_never_takes_that_attempt_but_takes_what_is_decided():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    member.told(close)
    assert member.told(Query(1, 2, 0)) == [Send(Answer(0, 2, 0, holds=False, gives=False))]
    assert member.reduced(2, 0) == []
    assert member.version == 2
    assert member.told(Take(1, 2, 0, holder=1)) == [Fetch(1, 2, 0)]
    assert Apply(close) in member.received(close)


def test_survivors_reduce_again_without_the_gradient_that_is_lost():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    again = among(close, {0, 2})
    assert (again.attempt, again.members, again.weights) == (1, (0,), (1.0,))
    member.told(close)
    member.told(Query(1, 2, 0))
    assert member.told(again) == [Reduce(again)]


def test_a_sum_over_all_workers_is_not_scaled_up_when_one_is_lost():
    member, other = rounds_member(0), rounds_member(1)
    close = Close(1, 2, 0, (arrived(member), arrived(other)), (0.25, 0.25))
    assert among(close, {0}).weights == (0.25,)


def test_words_of_a_former_epoch_are_not_heard():
    member = rounds_member()
    gradient = arrived(member)
    member.told(Abort(4, 0))
    assert member.told(close_of(gradient)) == []


def test_a_rank_that_was_taken_for_lost_gets_another_one_s_state_when_it_comes_back():
    world = World(3, 14, "m-sync", {"m": 2}, faults=[("cut", 2)])
    until(world, in_rounds)
    until(world, lambda w: all(known.in_rounds for known in w.coordinator.ranks.values()))
    world.happen(("fault", 0))
    world.happen(("lease", 2))
    until(world, lambda w: len(w.applied[0]) > len(w.applied[2]) + 2)
    world.happen(("heal", 2))
    until(world, lambda w: 2 in w.pulls)
    first_choice(world)
    world.check_end()


def test_a_rank_that_comes_back_in_time_loses_nothing():
    world = World(3, 10, "ssgd", faults=[("cut", 1)])
    until(world, in_rounds)
    world.happen(("fault", 0))
    world.happen(("heal", 1))
    first_choice(world)
    world.check_end()
    assert all(len(entry[1]) == 3 for entry in world.applied[0] if entry[1] != "native")


def test_a_minority_loses_nobody():
    coordinator = Coordinator(range(4))
    for rank in range(4):
        coordinator.told(Member(rank, (0, 1, 2, 3)).hello())
    coordinator.ranks[0].in_rounds = True
    for rank in (1, 2, 3):
        coordinator.disconnected(rank)
    assert not coordinator.can_spare(1)


def test_half_of_the_ranks_go_on_only_with_the_lowest_of_them():
    for silent, allowed in (((2, 3), True), ((0, 1), False)):
        coordinator = Coordinator(range(4))
        for rank in range(4):
            coordinator.told(Member(rank, (0, 1, 2, 3)).hello())
        coordinator.ranks[0].in_rounds = True
        for rank in silent:
            coordinator.disconnected(rank)
        assert coordinator.can_spare(silent[0]) is allowed


def test_nobody_is_lost_while_native_steps_need_everybody():
    coordinator = Coordinator(range(3))
    for rank in range(3):
        coordinator.told(Member(rank, (0, 1, 2)).hello())
    coordinator.disconnected(2)
    assert not coordinator.can_spare(2)


def test_a_switch_does_not_wait_for_a_silent_rank():
    coordinator = Coordinator(range(2))
    coordinator.switch(lambda ranks, version: create("ssgd", ranks, {}, version))
    for rank in range(2):
        coordinator.told(Member(rank, (0, 1)).hello())
    assert coordinator.preparing
    coordinator.disconnected(1)
    sent = coordinator.lease_over(1)
    assert [(rank, type(message)) for rank, message in sent] == [(0, Abort)]
    assert not coordinator.preparing


def test_a_new_coordinator_closes_again_what_any_rank_knows_to_be_closed():
    world = World(3, 8, "m-sync", {"m": 2}, faults=[("coordinator", 0)])
    until(world, in_rounds)
    until(world, lambda w: any(w.groups.values()))
    world.happen(("fault", 0))
    first_choice(world)
    world.check_end()


def test_what_everybody_holds_is_forgotten_on_both_sides():
    world = World(3, 60, "ssgd")
    most = 0
    for _ in range(50_000):
        events = world.enabled()
        if not events:
            break
        world.happen(events[0])
        sizes = [len(member._log.entries) for member in world.members.values()]
        most = max(most, len(world.coordinator._rounds), *sizes)
    world.check_end()
    assert most <= 6


def test_pulling_replaces_everything_that_was_handed_in():
    member = rounds_member()
    arrived(member)
    assert PullState(1, 2) in member.told(Rejoin(2, 2, 1))
    member.pulled(7, [])
    assert (member.version, member.hello().handed_in) == (7, ())


def test_a_new_coordinator_uses_what_was_folded_before_and_keeps_waiting_with_the_rest():
    coordinator = Coordinator(range(2), epoch=2)
    coordinator.switch(lambda ranks, version: create("ssgd", ranks, {}, version))
    folded, waiting = Gradient(0, 2, 5), Gradient(0, 3, 6)
    both = {"epoch": 1, "held": 6, "native": False}
    coordinator.told(Hello(0, handed_in=(folded, waiting), waits=True, number=4, **both))
    sent = coordinator.told(Hello(1, number=3, **both))
    (close,) = {message for _, message in sent if isinstance(message, Close)}
    assert (close.round, close.gradients, close.weights) == (6, (folded,), (0.5,))
    assert coordinator.policy.waiting == {0: waiting}
