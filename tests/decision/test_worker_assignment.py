"""Which worker goes to which node, and who moves when one is too full."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.decision.resources import Amount, Host, Worker, assign, relieve


def worker(name: str, cores: float, rate: float = 0.0) -> Worker:
    return Worker(name, Amount(cores, rate))


def host(name: str, slots: int = 4, cores: float = 0.0, rate: float = 0.0) -> Host:
    return Host(name, Amount(10.0, 10.0), Amount(cores, rate), slots)


def test_those_who_need_much_do_not_share_a_node():
    plan = assign([worker("a", 4), worker("b", 4), worker("c", 1), worker("d", 1)], [host("x"), host("y")])
    assert plan.node["a"] != plan.node["b"]
    assert plan.share == pytest.approx(0.5)
    assert plan.least_share == pytest.approx(0.5)


def test_a_node_that_others_use_gets_less():
    plan = assign([worker("a", 2), worker("b", 2)], [host("x", cores=5), host("y")])
    assert set(plan.node.values()) == {"y"}


def test_cores_and_bandwidth_both_count():
    plan = assign([worker("a", 5, 1), worker("b", 5, 1), worker("c", 1, 5), worker("d", 1, 5)], [host("x"), host("y")])
    assert plan.share == pytest.approx(0.6)


def test_too_few_slots_are_said():
    plan = assign([worker("a", 1), worker("b", 1)], [host("x", slots=1)])
    assert plan.node == {}
    assert plan.refused == "2 workers need as many slots, and the 1 nodes have 1"


def test_a_full_node_is_relieved_by_one_move():
    workers = [worker(name, 4) for name in "abc"]
    plan = relieve(workers, [host("x"), host("y")], dict.fromkeys("abc", "x"))
    assert len(plan.moved) == 1
    assert plan.share == pytest.approx(0.8)


def test_without_a_free_slot_workers_change_places():
    workers = [worker("a", 5), worker("b", 5), worker("c", 1), worker("d", 1)]
    hosts = [host("x", slots=2), host("y", slots=2)]
    plan = relieve(workers, hosts, {"a": "x", "b": "x", "c": "y", "d": "y"})
    assert len(plan.moved) == 2
    assert plan.share == pytest.approx(0.6)


def test_below_the_limit_nobody_moves():
    plan = relieve([worker("a", 4), worker("b", 4)], [host("x"), host("y")], {"a": "x", "b": "x"})
    assert (plan.moved, plan.refused) == ((), "")


def test_what_can_not_be_relieved_is_refused():
    plan = relieve([worker("a", 9.5)], [host("x"), host("y")], {"a": "x"})
    assert plan.refused.startswith("x would still be at 95 % after 0 moves; no assignment could be below 95 %")


needs = st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0)), min_size=1, max_size=5).map(
    lambda rows: [worker(f"w{at}", *row) for at, row in enumerate(rows)]
)


def shares(workers: list[Worker], hosts: list[Host], places: tuple[int, ...]) -> float:
    held = np.array([[h.used.cores, h.used.bytes_per_s] for h in hosts])
    for at, place in enumerate(places):
        held[place] += (workers[at].needs.cores, workers[at].needs.bytes_per_s)
    return float((held / 10.0).max())


def best(workers: list[Worker], hosts: list[Host]) -> float:
    every = itertools.product(range(len(hosts)), repeat=len(workers))
    fit = (p for p in every if all(p.count(at) <= h.slots for at, h in enumerate(hosts)))
    return min(shares(workers, hosts, places) for places in fit)


@settings(max_examples=60, deadline=None)
@given(needs, st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 9.0), st.integers(1, 5)), min_size=1, max_size=3))
def test_against_every_assignment(workers, rows):
    hosts = [host(f"n{at}", slots, cores, rate) for at, (cores, rate, slots) in enumerate(rows)]
    plan = assign(workers, hosts)
    if sum(h.slots for h in hosts) < len(workers):
        assert plan.refused
        return
    least = best(workers, hosts)
    number = {h.node: at for at, h in enumerate(hosts)}
    placed = tuple(number[plan.node[w.worker]] for w in workers)
    assert all(placed.count(at) <= h.slots for at, h in enumerate(hosts))
    assert plan.share == pytest.approx(shares(workers, hosts, placed))
    assert plan.least_share - 1e-9 <= least <= plan.share + 1e-9


@settings(max_examples=60, deadline=None)
@given(needs, st.integers(1, 3))
def test_on_alike_nodes_it_is_within_four_times_the_best(workers, count):
    hosts = [host(f"n{at}", slots=5) for at in range(count)]
    assert assign(workers, hosts).share <= 4.0 * best(workers, hosts) + 1e-9
