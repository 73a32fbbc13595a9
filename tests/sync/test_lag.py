"""A rank that is too far behind takes another rank's state, and nobody keeps for it what it misses."""

import pytest
from protocol_play import arrived, close_of, in_rounds_of, messages, rounds_member
from schedules import FAULTS, HARD, play

from starprof.sync.policies import Gradient, create
from starprof.sync.protocol.actions import Deliver, Fetch, PullState, Reduce
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import At
from starprof.sync.protocol.membership import Floor
from starprof.sync.protocol.messages import Arrive, Close, Hello, Prepared, Rejoin


@pytest.mark.parametrize("meeting", [False, True])
@pytest.mark.parametrize("faults", [(), ("cut",), ("cut", "crash"), FAULTS, HARD], ids=str)
def test_any_schedule_in_which_ranks_fall_behind_ends_with_one_history_everywhere(faults, meeting):
    pulled = 0
    for seed in range(25):
        world = play(seed, faults=faults, switching=seed % 2 == 0, meeting=meeting, lagging=True)
        pulled += len(world.has_pulled)
    assert pulled, "nobody was too far behind"


def bounded(name, ranks=3, limit=None, **options):
    """A coordinator whose ranks have all come to rounds at version 2."""
    coordinator = Coordinator(range(ranks), lag=limit or LagLimit(2, 0.0))
    coordinator.switch(lambda workers, version: create(name, workers, options, version))
    for rank in range(ranks):
        coordinator.told(Hello(rank, 0, 0))
    for rank in range(ranks):
        coordinator.told(Prepared(rank, 1, 2))
    return coordinator


def rounds_of(coordinator, rank, first, count):
    """One rank makes so many rounds of its own; what was said."""
    said = []
    for version in range(first, first + count):
        said += coordinator.told(Arrive(rank, Gradient(rank, version, version), version))
    return said


def test_who_is_too_far_behind_is_told_so_counts_no_more_and_is_none_of_the_lost():
    coordinator = bounded("asgd")
    coordinator.told(Arrive(1, Gradient(1, 0, 2), 2))
    said = rounds_of(coordinator, 0, 3, 6)
    assert {rank for rank, _ in messages(said, Rejoin)} == {1, 2}
    assert coordinator.ranks[2].behind
    assert coordinator.live == [0]
    assert coordinator._membership.floor == 8
    assert messages(said, Close)[-1][1].lost == (1, 2)
    assert all(rank == 0 for rank, close in messages(said, Close) if close.lost == (1, 2))


def test_the_last_one_that_trains_is_never_too_far_behind():
    coordinator = bounded("asgd", ranks=2)
    rounds_of(coordinator, 0, 2, 9)
    assert coordinator.live == [0]


def test_iterations_count_where_updates_are_parts_of_one():
    coordinator = bounded("asgd", ranks=4, limit=LagLimit(2, 2.0))
    for version in range(2, 9):
        rank = version % 2
        coordinator.told(Arrive(rank, Gradient(rank, version, version), version))
    assert coordinator.live == [0, 1, 2, 3], "seven updates of a quarter are no two iterations"
    for version in range(9, 13):
        rank = version % 2
        coordinator.told(Arrive(rank, Gradient(rank, version, version), version))
    assert coordinator.live == [0, 1]


def test_what_follows_on_the_state_that_a_rank_gets_is_kept_until_it_has_it():
    coordinator = bounded("asgd", ranks=2, limit=LagLimit(4, 0.0))
    rounds_of(coordinator, 0, 2, 8)
    known = coordinator.ranks[1]
    assert known.behind
    asks = {"held": 2, "native": False, "number": 1, "void": True}
    ((_, rejoin),) = messages(coordinator.told(Hello(1, 1, loss=known.loss, **asks)), Rejoin)
    rounds_of(coordinator, 0, 10, 3)
    assert coordinator._membership.floor == rejoin.version
    back = {"held": rejoin.version, "native": False, "number": 1, "pulled": True, "loss": rejoin.loss}
    said = coordinator.told(Hello(1, 1, **back))
    assert [close.round for _, close in messages(said, Close)] == list(range(rejoin.version, 13))
    assert coordinator.live == [0, 1]


def test_a_rank_that_takes_too_long_to_get_a_state_is_told_to_get_another():
    coordinator = bounded("asgd", ranks=2)
    rounds_of(coordinator, 0, 2, 6)
    asks = {"held": 2, "native": False, "number": 1, "void": True, "loss": coordinator.ranks[1].loss}
    ((_, rejoin),) = messages(coordinator.told(Hello(1, 1, **asks)), Rejoin)
    rounds_of(coordinator, 0, 8, 6)
    assert coordinator._membership.floor > rejoin.version
    back = {"held": rejoin.version, "native": False, "number": 1, "pulled": True, "loss": rejoin.loss}
    ((_, again),) = messages(coordinator.told(Hello(1, 1, **back)), Rejoin)
    assert again.version > rejoin.version


def test_a_void_rank_keeps_nothing_and_asks_for_a_state_when_it_has_done_computing():
    member = rounds_member()
    other = rounds_member(1)
    result = close_of(arrived(other), release=(1,))
    assert member.told(Rejoin(1, 5, 1, 1)) == []
    assert member.at is At.VOID
    assert member.received(result) == []
    assert member.told(result) == []
    assert (member._log.entries, member._log.early) == ({}, {})
    (asks,) = member.gradient()
    assert (asks.message.void, asks.message.loss) == (True, 1)
    assert member.told(Rejoin(1, 6, 1, 2)) == [PullState(1, 6)]


def test_what_was_closed_while_a_rank_was_away_it_fetches_and_nobody_sends_it_unasked():
    leader, away = rounds_member(0), rounds_member(2)
    close = Close(1, 2, 0, (arrived(leader),), (1.0,), (0,), lost=(2,))
    assert Reduce(close) in leader.told(close)
    assert Fetch(0, 2, 0) in away.told(close)
    assert leader.asked(2, 2) == [], "it is not there yet"
    delivered = [a for a in leader.reduced(close) if isinstance(a, Deliver)]
    assert sorted(action.to for action in delivered) == [1, 2]


def test_a_meeting_waits_for_a_rank_that_is_about_to_come_back():
    coordinator = in_rounds_of("asgd")
    coordinator.gone(2)
    coordinator.told(Hello(2, 1, 2, native=False))
    assert coordinator._membership.coming == [0, 1, 2]
    coordinator.disconnected(2)
    assert coordinator._membership.coming == [0, 1]


def test_the_lowest_number_is_known_without_looking_at_all():
    floor = Floor()
    for rank, number in enumerate([5, 3, 3]):
        floor.put(rank, number)
    assert (floor.value, floor.lowest()) == (3, [1, 2])
    floor.put(1, 4)
    floor.put(2, None)
    assert floor.value == 4
    floor.put(1, None)
    floor.put(0, None)
    assert (floor.value, floor.lowest()) == (5, [])
