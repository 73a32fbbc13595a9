"""A rank whose part in the reductions takes long is left out as one that comes late, and never keeps others waiting."""

import pytest
from protocol_play import in_rounds_of, messages
from schedules import FAULTS, HARD, play

from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Close, Go, Pause
from starprof.sync.transfers import ENOUGH, Sent

EXTRA_S = 0.5


@pytest.mark.parametrize("kind", [{}, {"meeting": True}, {"early": True}, {"lagging": True}], ids=str)
def test_any_schedule_in_which_ranks_are_held_back_ends_with_one_history_everywhere(kind):
    held = set()
    for seed in range(40):
        faults = [(), ("cut",), ("cut", "crash"), FAULTS, HARD][seed % 5]

        def watch(world, _, seed=seed):
            return world.coordinator._held and held.add(seed)

        play(seed, faults=faults, switching=seed % 2 == 0, holding=True, watch=watch, **kind)
    assert len(held) > 5, "hardly anybody was held back"


def rounds_with_slow(name, slow, ranks=4, **options):
    """A coordinator in rounds that knows some ranks to be slow."""
    coordinator = in_rounds_of(name, ranks=ranks, options=options)
    for _ in range(ENOUGH):
        for rank in range(ranks):
            took_s = EXTRA_S if rank in slow else 0.0
            coordinator.transfers.told(rank, [Sent((rank - 1) % ranks, round(took_s * 1e6))], 0.0)
    assert set(coordinator.transfers.slow) == set(slow)
    return coordinator


def hand_in(coordinator, *ranks, number=0, version=2, now_s=0.0):
    """What is said when these ranks hand in, one after the other."""
    said = []
    for rank in ranks:
        said += coordinator.told(Arrive(rank, Gradient(rank, number, version), version), now_s)
    return said


def closed(said):
    """The contributors of each round that was closed."""
    return list(dict.fromkeys((close.round, close.members) for _, close in messages(said, Close)))


def test_m_sync_goes_on_without_it_though_it_came_first_and_it_goes_on_at_once():
    coordinator = rounds_with_slow("m-sync", {0}, m=3)
    said = hand_in(coordinator, 0, 1, 2)
    assert closed(said) == []
    said = hand_in(coordinator, 3)
    assert closed(said) == [(2, (1, 2, 3))]
    assert messages(said, Go) == [(0, Go(1, 0, 3, kept=False))]
    assert coordinator.wake_at_s is None


def test_static_x_takes_it_when_it_would_be_ready():
    coordinator = rounds_with_slow("static-x", {0}, x=2)
    assert closed(hand_in(coordinator, 0, 1)) == []
    assert coordinator.wake_at_s == pytest.approx(EXTRA_S)
    assert closed(hand_in(coordinator, 2)) == [(2, (1, 2))]
    assert closed(coordinator.woken(EXTRA_S)) == []
    assert closed(hand_in(coordinator, 3, now_s=EXTRA_S)) == [(3, (0, 3))]


@pytest.mark.parametrize(("name", "options"), [("ssgd", {}), ("static-x", {"x": 4}), ("m-sync", {"m": 4})])
def test_modes_that_need_all_ranks_wait_no_longer_for_it(name, options):
    coordinator = rounds_with_slow(name, {0}, **options)
    said = hand_in(coordinator, 0, 1, 2, 3)
    assert closed(said) == [(2, (0, 1, 2, 3))]
    assert coordinator.wake_at_s is None


@pytest.mark.parametrize(("name", "options"), [("asgd", {}), ("ringmaster", {"r": 8})])
def test_where_each_gradient_is_an_update_the_slow_one_s_come_seldom_and_nobody_waits_for_them(name, options):
    coordinator = rounds_with_slow(name, {0}, **options)
    assert closed(hand_in(coordinator, 0, 1, 2)) == [(2, (1,)), (3, (2,))]
    assert coordinator.wake_at_s == pytest.approx(4 * EXTRA_S)
    assert closed(hand_in(coordinator, 3, now_s=EXTRA_S)) == [(4, (3,))]
    assert closed(coordinator.woken(4 * EXTRA_S)) == [(5, (0,))]


def test_a_slow_gradient_that_has_become_too_old_to_be_used_is_not_held_back():
    coordinator = rounds_with_slow("ringmaster", {0}, r=2)
    said = hand_in(coordinator, 0, 1, 2)
    assert closed(said) == [(2, (1,)), (3, (2,))]
    assert messages(said, Go)[-1] == (0, Go(1, 0, 4, kept=False))


def test_where_too_few_others_are_there_the_first_of_them_take_part():
    coordinator = rounds_with_slow("m-sync", {0, 2}, m=3)
    assert closed(hand_in(coordinator, 2, now_s=0.0)) == []
    said = hand_in(coordinator, 0, 1, 3, now_s=0.1)
    assert closed(said) == [(2, (1, 2, 3))]
    assert messages(said, Go) == [(0, Go(1, 0, 3, kept=False))]


def test_a_deadline_leaves_it_out_and_is_not_put_off():
    coordinator = rounds_with_slow("deadline", {0}, after_s=0.2)
    assert closed(hand_in(coordinator, 0, 1, 2, 3)) == []
    assert coordinator.wake_at_s == pytest.approx(0.2)
    said = coordinator.woken(0.2)
    assert closed(said) == [(2, (1, 2, 3))]
    assert messages(said, Go) == [(0, Go(1, 0, 3, kept=False))]


def test_a_rank_that_is_lost_takes_what_was_held_back_with_it():
    coordinator = rounds_with_slow("m-sync", {0}, m=3)
    hand_in(coordinator, 0, 1)
    assert closed(coordinator.gone(0)) == []
    assert coordinator.wake_at_s is None
    assert closed(hand_in(coordinator, 2, 3)) == [(2, (1, 2, 3))]


def test_while_all_come_together_nothing_is_held_back():
    coordinator = rounds_with_slow("static-x", {0}, x=2)
    hand_in(coordinator, 0)
    said = coordinator.told(Pause(1, 1, 10, 2))
    assert closed(said) == [(2, (0,))]
    assert coordinator.wake_at_s is None


def test_a_mode_that_needs_all_ranks_gets_what_the_one_before_held_back():
    coordinator = rounds_with_slow("m-sync", {0}, m=3)
    hand_in(coordinator, 0, 1)
    coordinator.switch(None)
    assert coordinator.wake_at_s is None
    assert closed(hand_in(coordinator, 2, 3)) == [(2, (0, 1, 2, 3))]
