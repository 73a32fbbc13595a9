"""The round protocol: one history whatever happens, and nobody stands still."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from protocol_play import (
    arrived,
    close_of,
    first_choice,
    first_fault,
    in_rounds,
    in_rounds_of,
    messages,
    rounds_member,
    until,
)
from schedules import FAULTS, MODES, play
from world import World

from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import Apply, Begin, Fetch, Member, PullState, Reduce, Send
from starprof.sync.protocol.messages import (
    Abort,
    Answer,
    Arrive,
    Close,
    Commit,
    Failed,
    Gathered,
    Go,
    Hello,
    Pause,
    Prepare,
    Query,
    Rejoin,
    Take,
)
from starprof.sync.protocol.rounds import among

# Every schedule


@pytest.mark.parametrize("faults", [(), ("cut",), ("cut", "crash"), FAULTS], ids=lambda f: "+".join(f) or "no fault")
@pytest.mark.parametrize("switching", [False, True], ids=["one mode", "switching"])
@pytest.mark.parametrize("meeting", [False, True], ids=["no meetings", "meetings"])
def test_any_schedule_ends_with_one_history_everywhere(faults, switching, meeting):
    for seed in range(80):
        play(seed, faults=faults, switching=switching, meeting=meeting)


def test_schedules_with_predictions_end_with_one_history_everywhere():
    for seed in range(120):
        play(seed, faults=FAULTS, switching=True, meeting=seed % 2 == 0, predicting=True)


def test_the_schedules_do_meet_what_they_are_for():
    """Else they would prove nothing."""
    met = Counter()

    def watch(world, event):
        met[event[0]] += 1
        if event[0] == "to rank":
            met[type(world.to_rank[event[1]][0]).__name__] += 1

    for seed in range(150):
        world = play(seed, faults=FAULTS, switching=True, watch=watch)
        met["another attempt"] += any(attempt for _, attempt, _ in world.groups)
        entries = [entry for rank in world.alive for entry in world.applied[rank]]
        met["void round"] += any(entry[1] == () for entry in entries)
    for seed in range(150):
        world = play(seed, switching=True)
        kinds = [[entry[1] == "native" for entry in world.applied[rank]] for rank in world.names]
        met["back to native steps"] += any(a < b for native in kinds for a, b in pairwise(native))
    for seed in range(150):
        world = play(seed, faults=FAULTS, switching=True, meeting=True, watch=watch)
        met["meeting"] += world.coordinator._meetings.number
        met["meeting that ends rounds"] += play(seed, switching=True, meeting=True).ended_rounds
        met["joined a meeting"] += any(world.met[rank] for rank in world.has_pulled)
    wanted = {"Meet", "Gathered", "meeting", "meeting that ends rounds", "joined a meeting"}
    wanted |= {"failed", "gone", "lease", "pull", "heal", "switch", "Query", "Take", "Rejoin", "Abort", "Commit", "Go"}
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


def test_a_round_is_applied_once_it_is_reduced_and_whoever_is_released_goes_on():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    assert member.told(close) == [Reduce(close)]
    actions = member.reduced(close)
    assert Apply(close) in actions
    assert actions[-1] == Begin(3, native=False)


def test_the_leader_hands_the_result_to_everybody_who_had_no_part_in_it():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    member.told(close)
    assert [a.to for a in member.reduced(close) if hasattr(a, "to")] == [2]


def test_a_result_that_comes_before_the_word_on_its_round_is_kept():
    third, other = rounds_member(2), rounds_member(1)
    arrived(third)
    close = close_of(arrived(other), release=(1, 2))
    third.received(close)
    assert third.version == 2 or third.version == 3
    third.told(close)
    assert third._log.held == 3


def test_a_sum_of_a_round_that_counts_no_more_is_not_taken_for_that_of_another_with_its_number():
    member, other = rounds_member(0), rounds_member(1)
    before = close_of(arrived(member), arrived(other))
    member.told(before)
    member.told(Rejoin(2, 2, 1, 5))
    member.pulled(2, [], 0)
    after = replace(before, epoch=2, gradients=(Gradient(1, 3, 2), Gradient(2, 0, 2)))
    member.told(after)
    assert member.reduced(before) == []
    assert member.version == 2
    assert Apply(after) in member.received(after)


def test_who_has_said_no_never_takes_that_attempt_but_takes_what_is_decided():
    member, other = rounds_member(0), rounds_member(1)
    close = close_of(arrived(member), arrived(other))
    member.told(close)
    assert member.told(Query(1, 2, 0)) == [Send(Answer(0, 2, 0, holds=False, gives=False))]
    assert member.reduced(close) == []
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
    world.happen(first_fault(world))
    world.happen(("lease", 2))
    until(world, lambda w: len(w.applied[0]) > len(w.applied[2]) + 2)
    world.happen(("heal", 2))
    until(world, lambda w: 2 in w.pulls)
    first_choice(world)
    world.check_end()


def test_a_rank_that_comes_back_in_time_loses_nothing():
    world = World(3, 10, "ssgd", faults=[("cut", 1)])
    until(world, in_rounds)
    world.happen(first_fault(world))
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
    world.happen(first_fault(world))
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


def test_a_new_coordinator_does_not_take_a_gradient_again_that_a_round_uses():
    coordinator = Coordinator(range(2), epoch=2)
    coordinator.switch(lambda ranks, version: create("asgd", ranks, {}, version))
    used = Gradient(0, 0, 5)
    both = {"epoch": 1, "held": 5, "native": False}
    unaware = Hello(0, handed_in=(used,), waits=True, number=1, **both)
    coordinator.told(unaware)
    coordinator.told(Hello(1, closes=(Close(1, 5, 0, (used,), (0.5,), (0,)),), **both))
    coordinator.disconnected(0)
    sent = coordinator.told(unaware)
    assert {message.round for _, message in sent if isinstance(message, Close)} == {5}


def test_a_result_of_a_round_that_nobody_else_has_heard_of_gives_way_to_what_the_coordinator_says():
    member, lost, other = rounds_member(2), rounds_member(0), rounds_member(1)
    arrived(member)
    member.received(close_of(arrived(lost), release=(2,)))
    decided = close_of(arrived(other), release=(2,))
    assert member.told(decided) == []
    assert member.told(Go(1, 0, 3, kept=True)) == []
    assert Apply(decided) in member.received(decided)


def test_options_that_fit_the_whole_job_only_still_fit_when_a_rank_is_lost():
    coordinator = in_rounds_of("backup", ranks=2, options={"b": 1})
    coordinator.gone(1)
    coordinator.told(Pause(0, 1, 10, 2))
    assert coordinator.policy.members == [0]


def test_a_gradient_that_comes_while_another_rank_s_state_is_on_its_way_goes_with_the_state_it_was_computed_on():
    member = rounds_member()
    assert member.told(Rejoin(2, 2, 1)) == []  # nothing is gained by a state that it can't take yet
    (asks,) = member.gradient()
    assert asks.message.void
    assert member.told(Rejoin(2, 5, 1, 2)) == [PullState(1, 5)]
    member.pulled(7, [], 3)
    assert (member.hello().number, member.hello().void_before, member.meetings) == (1, 1, 3)
    stale = Close(2, 7, 0, (Gradient(0, 0, 2), Gradient(1, 0, 2)), (0.5, 0.5))
    assert member.told(stale) == [Send(Failed(0, 7, 0))]


def test_a_result_of_other_gradients_than_the_coordinator_says_is_not_taken():
    member, lost, other = rounds_member(2), rounds_member(0), rounds_member(1)
    arrived(member)
    member.told(close_of(arrived(other), release=(2,)))
    member.told(Go(1, 0, 3, kept=True))
    assert member.received(close_of(arrived(lost), release=(2,))) == []
    assert member.version == 2


def test_a_state_heals_the_loss_that_it_was_got_for_and_no_later_one():
    coordinator = in_rounds_of("asgd")
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2))
    back = {"epoch": 1, "held": 3, "native": False, "number": 1}
    losses = []
    for _ in range(2):
        coordinator.gone(2)
        ((_, rejoin),) = messages(coordinator.told(Hello(2, **back)), Rejoin)
        losses.append(rejoin.loss)
    assert losses[0] != losses[1]
    coordinator.told(Hello(2, pulled=True, loss=losses[0], **back))
    assert 2 not in coordinator.policy.members
    coordinator.told(Hello(2, pulled=True, loss=losses[1], **back))
    assert 2 in coordinator.policy.members


def test_a_state_that_came_from_a_rank_that_is_lost_since_does_not_count():
    coordinator = in_rounds_of("asgd")
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2))
    back = {"epoch": 1, "held": 3, "native": False, "number": 1}
    coordinator.gone(2)
    ((_, rejoin),) = messages(coordinator.told(Hello(2, **back)), Rejoin)
    ((_, again),) = messages(coordinator.gone(rejoin.holder), Rejoin)
    assert again.holder != rejoin.holder
    coordinator.told(Hello(2, pulled=True, loss=rejoin.loss, **back))
    assert 2 not in coordinator.policy.members


def test_a_prediction_holds_for_the_mode_at_work_and_for_those_after_it():
    coordinator = in_rounds_of("dynamic-x")
    coordinator.predicted({0: 1.0, 1: 1.0, 2: 3.0})
    assert coordinator.policy.groups == [[0, 1], [2]]
    coordinator.switch(lambda workers, version: create("dynamic-x", workers, {}, version))
    assert coordinator.policy.groups == [[0, 1], [2]]


def test_a_rank_on_its_last_round_before_native_steps_is_not_lost_when_it_reconnects():
    coordinator = in_rounds_of("asgd")
    coordinator.switch(None)
    for rank in range(3):
        coordinator.told(Arrive(rank, Gradient(rank, 0, 2), 2))
    coordinator.disconnected(1)
    assert not coordinator.can_spare(1)
    coordinator.told(Hello(1, 1, 2, native=False, number=1))
    coordinator.disconnected(1)
    assert not coordinator.can_spare(1)


def test_a_new_coordinator_loses_nobody_when_what_it_has_heard_so_far_says_native_steps():
    coordinator = Coordinator(range(3), epoch=2)
    end = Gathered(1, 1, 7, native=True)
    coordinator.told(Hello(0, 1, 7, native=True, meetings=1, gathered=end))
    coordinator.told(Hello(1, 1, 7, native=False, paused=Pause(1, 1, 10, 7)))
    assert not coordinator.can_spare(2)


def test_a_rank_that_misses_what_nobody_can_hand_out_any_more_gets_a_whole_state_and_goes_on():
    coordinator = in_rounds_of("asgd")
    coordinator.told(Arrive(2, Gradient(2, 0, 2), 2))
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2))
    coordinator.gone(0)
    for round_ in (2, 3):
        coordinator.told(Answer(1, round_, 0, holds=True, gives=False))
    sent = coordinator.told(Answer(2, 2, 0, holds=True, gives=True))
    assert sent == []
    ((rank, rejoin),) = messages(coordinator.told(Answer(2, 3, 0, holds=False, gives=False)), Rejoin)
    assert (rank, rejoin.holder) == (2, 1)
    back = Hello(2, 1, 4, native=False, number=1, pulled=True, loss=rejoin.loss, void_before=1)
    assert messages(coordinator.told(back), Go) == [(2, Go(1, 0, 4, kept=True))]


def test_what_a_rank_answered_before_it_got_another_ones_state_does_not_count():
    coordinator = in_rounds_of("asgd", 5)
    coordinator.told(Arrive(0, Gradient(0, 0, 2), 2))
    coordinator.gone(0)
    coordinator.told(Answer(4, 2, 0, holds=False, gives=False))
    coordinator.gone(4)
    ((_, rejoin),) = messages(coordinator.told(Hello(4, 1, 2, native=False, number=1)), Rejoin)
    for rank in (1, 2):
        coordinator.told(Answer(rank, 2, 0, holds=False, gives=False))
    back = Hello(4, 1, 2, native=False, number=1, pulled=True, loss=rejoin.loss, void_before=1)
    assert messages(coordinator.told(back), Query) == [(4, Query(1, 2, 0))]
    assert coordinator.told(Answer(3, 2, 0, holds=False, gives=False)) == []
    told = coordinator.told(Answer(4, 2, 0, holds=True, gives=True))
    assert told == [(rank, Take(1, 2, 0, 4)) for rank in (1, 2, 3)]


def test_a_rank_that_reconnects_still_hands_out_what_it_has_applied_and_others_miss():
    mine, other = Gradient(0, 0, 2), Gradient(1, 0, 2)
    hello = Hello(0, 1, 4, closes=(close_of(mine), close_of(other, number=3)), also_held=(5,), native=False)
    assert hello.gives == {2, 3, 5}
