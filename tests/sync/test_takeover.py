"""Another coordinator: ranks that come, go and come back before it has heard all of them, in whatever is under way."""

from protocol_play import first_choice, in_rounds, messages, rounds_member, until
from schedules import EVERYTHING, play
from world import World
from world_loops import Epochs

from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.member import At
from starprof.sync.protocol.messages import Commit, Gathered, Go, Hello, Rejoin


def happens(world, *event):
    """This event of all that may happen, named by how it begins."""
    world.happen(next(choice for choice in world.enabled() if choice[: len(event)] == event))
    world.check()


def others_go_on(world, rank=None, kind="compute", met=lambda world: False):
    """All that can happen without faults, until something holds, but for what is named of this rank."""
    for _ in range(5_000):
        events = [e for e in world.enabled() if e[0] not in {"fault", "heal", "lease"} and e != (kind, rank)]
        if not events or met(world):
            return
        world.happen(events[0])
        world.check()
    raise AssertionError("it goes on for ever")


def told_to_begin(*ranks):
    return lambda world: all(any(isinstance(m, Commit) for m in world.to_rank[r]) for r in ranks)


def lost_while_rank_0_has_not_heard_that_rounds_begin(cuts):
    """Three ranks, of which the last is about to get a state."""
    world = World(3, 8, "local-sgd", {"period": 3}, faults=[("cut", 2), ("coordinator", None), ("cut", 2)][: cuts + 1])
    until(world, told_to_begin(*world.names))
    others_go_on(world, 0, "to rank")
    assert [member.at for member in world.members.values()] == [At.BOUNDARY, At.WAITING, At.WAITING]
    happens(world, "fault", 0)
    happens(world, "fault", 0)
    for rank in (0, 1):
        happens(world, "to coordinator", rank)
    happens(world, "lease", 2)
    happens(world, "heal", 2)
    return world


def test_a_rank_that_is_lost_and_comes_back_before_all_have_said_hello_gets_a_state():
    world = World(4, 8, "ssgd", faults=[("coordinator", None), ("cut", 3)])
    until(world, in_rounds)
    happens(world, "compute", 3)  # it waits, and says nothing of its own accord
    happens(world, "fault", 0)
    for rank in (3, 0, 1):
        happens(world, "to coordinator", rank)
    happens(world, "fault", 0)
    happens(world, "lease", 3)
    happens(world, "heal", 3)
    happens(world, "to coordinator", 3)
    first_choice(world)
    assert 3 in world.has_pulled
    assert all(member.at is At.DONE for member in world.members.values())
    world.check_end()


def test_a_void_rank_that_is_cut_off_before_all_have_said_hello_gets_a_state_when_it_is_back():
    world = World(4, 8, "ssgd", faults=[("cut", 3), ("coordinator", None), ("cut", 3)])
    until(world, in_rounds)
    happens(world, "fault", 0)
    happens(world, "lease", 3)
    happens(world, "heal", 3)
    until(world, lambda world: world.members[3].void)
    happens(world, "fault", 0)
    for rank in (3, 0, 1):
        happens(world, "to coordinator", rank)
    happens(world, "fault", 0)
    happens(world, "to coordinator", 2)
    happens(world, "heal", 3)
    first_choice(world)
    assert 3 in world.has_pulled
    assert all(member.at is At.DONE for member in world.members.values())
    world.check_end()


def test_a_rank_that_a_meeting_did_not_wait_for_is_lost_to_the_next_coordinator_too():
    world = World(3, None, "m-sync", {"m": 2}, faults=[("cut", 2), ("coordinator", None)], epochs=Epochs(1, 5))
    until(world, in_rounds)
    others_go_on(world, 2)
    assert [member.at for member in world.members.values()] == [At.MEETING, At.MEETING, At.COMPUTING]
    happens(world, "fault", 0)
    happens(world, "lease", 2)
    others_go_on(world, 2)
    assert [member.at for member in world.members.values()] == [At.DONE, At.DONE, At.COMPUTING]
    version = world.members[0].version
    happens(world, "fault", 0)
    happens(world, "heal", 2)
    first_choice(world)
    assert 2 in world.has_pulled
    assert world.members[2].at is At.DONE
    assert world.members[2].version == version
    world.check_end()


def test_the_end_of_a_meeting_tells_the_next_coordinator_who_was_lost():
    member = rounds_member()
    member.told(Gathered(1, 1, 2, native=False, serial=4, lost=(2,)))
    hello = member.hello()
    assert (hello.serial, hello.lost) == (4, (2,))
    coordinator = Coordinator(range(3), 2)
    for rank in range(3):
        known = (hello.serial, hello.lost) if rank < 2 else (0, ())
        coordinator.told(Hello(rank, 1, 2, native=False, commit=hello.commit, serial=known[0], lost=known[1]))
    assert coordinator.live == [0, 1]


def test_where_all_have_taken_states_and_nobody_knows_of_being_let_in_the_newest_of_them_counts():
    coordinator = Coordinator(range(3), 2)
    begun = Commit(1, 1, 2)
    sent = []
    for rank, held in enumerate((5, 6, 6)):
        hello = Hello(rank, 1, held, waits=True, native=False, commit=begun, pulled=True, number=1, void_before=1)
        sent = coordinator.told(hello)
    assert coordinator.live == [1]
    assert [(rank, told.holder) for rank, told in messages(sent, Rejoin)] == [(0, 1), (2, 1)]
    assert messages(sent, Go) == [(1, Go(2, 0, 6, kept=True))]


def test_whoever_takes_the_state_of_one_that_has_not_heard_that_rounds_begin_does_what_the_others_do():
    world = lost_while_rank_0_has_not_heard_that_rounds_begin(cuts=1)
    others_go_on(world, 0, "to rank")
    assert 2 in world.has_pulled
    assert world.members[2].local == world.members[1].local
    assert world.own == {0: 0, 1: 3, 2: 3}
    assert world.members[2].hello().void_before == 1  # it takes a state once
    first_choice(world)
    assert all(member.at is At.DONE for member in world.members.values())
    world.check_end()


def test_whoever_is_cut_off_before_it_hears_what_is_done_on_the_state_that_it_has_taken_hears_it_again():
    world = lost_while_rank_0_has_not_heard_that_rounds_begin(cuts=2)
    others_go_on(world, 0, "to rank", met=lambda world: 2 in world.has_pulled and told_to_begin(2)(world))
    assert told_to_begin(2)(world)
    happens(world, "fault", 0)
    happens(world, "heal", 2)
    others_go_on(world, 0, "to rank")
    assert world.own == {0: 0, 1: 3, 2: 3}
    assert world.members[2].hello().void_before == 1  # it takes a state once
    first_choice(world)
    assert all(member.at is At.DONE for member in world.members.values())
    world.check_end()


def test_the_state_of_a_rank_that_has_left_is_asked_of_one_that_has_applied_what_it_must_have():
    world = World(4, 6, "asgd", faults=[("cut", 3), ("cut", 2), ("coordinator", None)])
    until(world, in_rounds)
    for rank in (3, 2):
        happens(world, "fault", 0)
        happens(world, "lease", rank)
    others_go_on(world)
    assert [world.members[rank].at for rank in (0, 1)] == [At.DONE, At.DONE]
    assert [world.members[rank].version for rank in (0, 1)] == [6, 7]
    assert world.members[0].hello().held == 7  # but nothing is applied any more where the training is over
    happens(world, "fault", 0)
    happens(world, "heal", 2)
    others_go_on(world)
    happens(world, "lease", 3)
    others_go_on(world)
    assert (world.members[2].at, world.members[2].version) == (At.DONE, 7)
    happens(world, "heal", 3)
    first_choice(world)
    assert all(member.at is At.DONE for member in world.members.values())
    world.check_end()


def test_coordinators_lost_in_all_that_may_be_under_way_end_with_one_history_everywhere():
    met = set()

    def watch(world, event):
        if event[0] == "fault" and world.faults[event[1]][0] == "coordinator":
            coordinator = world.coordinator
            met.update({"rounds of states"} if coordinator._local.period else ())
            met.update({"a meeting"} if coordinator._meetings.under_way else ())
            met.update({"somebody behind"} if any(known.behind for known in coordinator.ranks.values()) else ())
            met.update({"somebody lost"} if any(known.lost for known in coordinator.ranks.values()) else ())

    for seed in range(120):
        kinds = {"early": True} if seed % 3 == 0 else {"meeting": seed % 3 == 1}
        play(
            seed,
            faults=EVERYTHING if seed % 4 == 0 else EVERYTHING[:-1],
            switching=True,
            states=seed % 2 == 0,
            lagging=True,
            hazard=0.02,
            watch=watch,
            **kinds,
        )
    assert met == {"rounds of states", "a meeting", "somebody behind", "somebody lost"}
