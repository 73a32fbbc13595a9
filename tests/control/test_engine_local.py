"""Engines whose ranks step on their own and average their states: all must have the same then, bit for bit."""

import threading
import time

import pytest
import torch
from engine_world import train
from test_engine import WORLD, _one_thread, ranks, same, slow_last, switching  # noqa: F401 - fixtures


def averagings(office):
    return [close for close in office.closes if close.steps]


def test_a_mean_after_every_step_is_what_rounds_of_everybody_are(ranks):  # noqa: F811
    made = ranks()
    for rank in made:
        for group in rank.optimizer.param_groups:
            group["momentum"] = 0.0
    train(made, 1, 30, after=switching(made[0].office, {3: ("local-sgd", {"period": 1})}))
    same(made)
    assert len(averagings(made[0].office)) > 20
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index in range(30):
        optimizer.zero_grad()
        for rank in made:
            x, y = rank.batch(index)
            (torch.nn.functional.cross_entropy(model(x), y) / WORLD).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), made[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_the_state_is_the_mean_of_those_that_were_handed_in(ranks):  # noqa: F811
    made = ranks(slow_last)
    before, after = {}, {}
    for rank in made:
        engine = rank.engine

        def average(rank=rank, original=engine._average):
            begun = rank.engine._own.made
            values = [*rank.parameters(), *rank.moments()]
            original()
            before.setdefault(rank.engine.version - 1, []).append((begun, values))
            after.setdefault(rank.engine.version - 1, []).append([*rank.parameters(), *rank.moments()])

        engine._average = average
    train(made, 1, 40, after=switching(made[0].office, {3: ("local-sgd", {"period": 5})}))
    assert len(after) > 5
    for version, states in before.items():
        assert {steps for steps, _ in states} <= {5} or version == max(before), "only an epoch's end is no whole period"
        for place in range(len(states[0][1])):
            mean = torch.stack([values[place] for _, values in states]).mean(0)
            for values in after[version]:
                torch.testing.assert_close(values[place], mean, rtol=1e-5, atol=1e-7)


def test_a_sequence_of_modes_with_steps_of_their_own(ranks):  # noqa: F811
    made = ranks(slow_last)
    plan = {
        3: ("local-sgd", {"period": 4}),
        17: ("asgd", {}),
        25: ("local-sgd", {"period": 3}),
        32: (None, {}),
        40: ("m-sync", {"m": 2}),
        50: ("local-sgd", {"period": 7}),
        70: ("local-sgd", {"period": 2}),
        80: (None, {}),
    }
    train(made, 3, 30, after=switching(made[0].office, plan))
    same(made)
    assert all(rank.engine.native for rank in made)


def test_nobody_passes_over_batches_and_nothing_is_allocated_once_it_runs(ranks):  # noqa: F811
    made = ranks(slow_last)
    train(made, 2, 32, after=switching(made[0].office, {3: ("local-sgd", {"period": 4})}))
    same(made)
    assert all(rank.engine.counts.skipped == 0 and rank.engine.counts.steps == 64 for rank in made)
    for rank in made:
        exchange = rank.engine._exchange
        assert len(exchange.states._free) + len(exchange._results) <= 4
        assert rank.engine.counts.progress == 64


def test_the_others_average_without_a_rank_that_died_inside_a_period(ranks):  # noqa: F811
    made = ranks()
    office = made[0].office
    victim = made[1]

    class Killed(BaseException):
        pass

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("local-sgd", period=6)
        if rank is victim and rank.engine._own.made == 3:
            victim.peers.close()
            victim.groups.close()
            office.gone(victim.rank)
            raise Killed

    with pytest.raises(AssertionError, match="Killed"):
        train(made, 2, 40, after=after)
    others = [rank for rank in made if rank is not victim]
    same(others)
    assert all(rank.engine.counts.iterations == 80 for rank in others)
    assert {close.members for close in averagings(office)} >= {(0, 2, 3)}


def test_a_rank_that_was_lost_takes_a_state_that_has_no_steps_of_its_owner_on_top(ranks):  # noqa: F811
    made = ranks(lambda _rank, _index: 0.002)
    office = made[0].office
    office.lease_s = 0.05
    last = made[-1]
    cut = threading.Event()

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("local-sgd", period=5)
        if rank is last and rank.engine._own.made == 2 and not cut.is_set():
            cut.set()
            office.disconnect(last.rank)
            deadline = time.monotonic() + 10
            while last.rank in office.coordinator.live and time.monotonic() < deadline:
                time.sleep(0.01)
            assert last.rank not in office.coordinator.live
            office.connect(last.rank, last.engine, last.member, last.lock)

    train(made, 2, 60, after=after)
    assert cut.is_set()
    same(made)
    assert averagings(office)[-1].members == (0, 1, 2, 3)


GROUPS = {"groups": [[0, 1], [2, 3]], "period": 5}


def test_ranks_of_a_group_make_the_same_steps_between_two_averagings(ranks):  # noqa: F811
    made = ranks(slow_last)
    inside = {}
    switch = switching(made[0].office, {3: ("hierarchical", GROUPS)})

    def after(rank, index):
        switch(rank, index)
        if rank.engine._own.made:
            assert not rank.engine._own.sharing.alone
            inside[rank.rank, index] = rank.parameters()

    train(made, 2, 30, after=after)
    same(made)
    assert len(inside) > 100
    apart = 0
    for (rank, index), values in inside.items():
        if rank in (0, 2):
            for mine, theirs in zip(values, inside[rank + 1, index], strict=True):
                assert torch.equal(mine, theirs)
        if rank == 0:
            apart += not torch.equal(values[0], inside[2, index][0])
    assert apart > 30, "groups would wait for each other in every step"


def test_a_group_goes_on_by_itself_until_the_next_averaging_when_one_of_it_dies(ranks):  # noqa: F811
    made = ranks(lambda _rank, _index: 0.002)
    office = made[0].office
    victim = made[1]

    class Killed(BaseException):
        pass

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("hierarchical", **GROUPS)
        if rank is victim and rank.engine._own.made == 2:
            victim.peers.close()
            victim.engine._own.sharing.close()
            office.gone(victim.rank)
            raise Killed

    with pytest.raises(AssertionError, match="Killed"):
        train(made, 2, 40, after=after)
    others = [rank for rank in made if rank is not victim]
    same(others)
    assert all(rank.engine.counts.iterations == 80 for rank in others)
    assert office.coordinator._local.groups == ((2, 3),)


def test_groups_are_whole_again_after_a_rank_was_lost_for_a_while(ranks):  # noqa: F811
    made = ranks(lambda _rank, _index: 0.002)
    office = made[0].office
    office.lease_s = 0.05
    last = made[-1]
    cut = threading.Event()
    shared = dict.fromkeys(range(WORLD), 0)

    def after(rank, index):
        if rank.rank == 0 and index == 4:
            office.switch("hierarchical", **GROUPS)
        if rank is last and rank.engine._own.made == 2 and not cut.is_set():
            cut.set()
            office.disconnect(last.rank)
            deadline = time.monotonic() + 10
            while last.rank in office.coordinator.live and time.monotonic() < deadline:
                time.sleep(0.01)
            office.connect(last.rank, last.engine, last.member, last.lock)
        if cut.is_set():
            shared[rank.rank] += bool(rank.engine._own.made) and not rank.engine._own.sharing.alone

    train(made, 2, 60, after=after)
    assert cut.is_set()
    same(made)
    assert min(shared.values()) > 20, "they would step alone for ever"
