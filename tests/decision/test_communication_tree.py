"""Who sends whose gradient to a parameter server that can't take all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.decision.resources import Amount, TreeCosts, TreeWorker, communication_tree

ONE = Amount(bytes_per_s=100.0)


def workers(*nodes: list[float]) -> list[TreeWorker]:
    return [
        TreeWorker(f"w{at}.{place}", f"n{at}", time)
        for at, times in enumerate(nodes)
        for place, time in enumerate(times)
    ]


def server(senders: int) -> Amount:
    """One that so many senders may load."""
    return Amount(bytes_per_s=senders * 100.0 / 0.9)


def test_where_all_may_send_there_is_no_tree():
    tree = communication_tree(workers([1.0, 1.0]), TreeCosts(ONE), server(2))
    assert (tree.parents, tree.senders, tree.lost_s, tree.refused) == ({}, 2, 0.0, "")


def test_those_who_lose_least_become_children_of_the_fastest_beside_them():
    tree = communication_tree(workers([1.0, 1.1], [1.0, 1.01]), TreeCosts(ONE), server(3))
    assert tree.parents == {"w1.1": "w1.0"}
    assert tree.lost_s == pytest.approx(0.01)
    assert tree.share == pytest.approx(0.9)


def test_a_straggler_is_nobodys_child_and_no_parent_becomes_one():
    tree = communication_tree(workers([1.0, 1.0, 1.5]), TreeCosts(ONE, add_s=0.1), server(2))
    assert tree.parents == {"w0.1": "w0.0"}
    refused = communication_tree(workers([1.0, 1.0, 1.5]), TreeCosts(ONE, add_s=0.1), server(1))
    assert refused.refused.startswith("2 workers would have to send through others, and on their 1 nodes 1 can")
    assert communication_tree(workers([1.0, 1.0]), TreeCosts(ONE, add_s=0.21), server(1)).refused


def test_a_node_without_spare_cores_has_no_parents():
    costs = TreeCosts(ONE, per_child=Amount(cores=0.5))
    spare = {"n0": Amount(cores=0.4), "n1": Amount(cores=0.5)}
    tree = communication_tree(workers([1.0, 1.0], [1.0, 1.1]), costs, server(3), spare=spare)
    assert tree.parents == {"w1.1": "w1.0"}


def test_a_server_that_others_fill_is_refused():
    tree = communication_tree(workers([1.0, 1.0]), TreeCosts(ONE), server(2), used=server(2))
    assert "no room for a single sender" in tree.refused


def test_processors_limit_senders_too():
    costs = TreeCosts(Amount(1.0, 1.0))
    tree = communication_tree(workers([1.0] * 4), costs, Amount(2.0 / 0.9, 1e9))
    assert tree.senders == 2


def test_a_node_of_many_workers_is_divided():
    rng = np.random.default_rng(0)
    many = workers(list(1.0 + 0.1 * rng.random(150)))
    tree = communication_tree(many, TreeCosts(ONE), server(30))
    assert (len(tree.parents), tree.refused) == (120, "")
    assert not set(tree.parents) & set(tree.parents.values())


def test_what_takes_nothing_is_an_error():
    with pytest.raises(ValueError, match="sending takes something"):
        TreeCosts(Amount())


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for at in range(len(rest)):
            yield [*rest[:at], [items[0], *rest[at]], *rest[at + 1 :]]


def best_of_all(nodes: list[list[float]], needed: int, add_s: float) -> float:
    """The least time lost by any grouping at all, infinite where there is none."""
    latest = 1.2 * min(min(times) for times in nodes)
    by_node = []
    for times in nodes:
        least: dict[int, float] = {}
        for groups in partitions(list(range(len(times)))):
            lost = 0.0
            for group in groups:
                done = max(times[i] for i in group) + (len(group) - 1) * add_s
                if len(group) > 1 and done > latest:
                    break
                lost += sum(done - times[i] for i in group)
            else:
                children = len(times) - len(groups)
                least[children] = min(lost, least.get(children, np.inf))
        by_node.append(least)
    return min(
        (
            sum(least[c] for least, c in zip(by_node, counts, strict=True))
            for counts in itertools.product(*by_node)
            if sum(counts) >= needed
        ),
        default=np.inf,
    )


times_ = st.lists(st.floats(1.0, 1.3), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(times_, min_size=1, max_size=3), st.integers(1, 8), st.floats(0.0, 0.1))
def test_no_grouping_at_all_loses_less(nodes, senders, add_s):
    tree = communication_tree(workers(*nodes), TreeCosts(ONE, add_s=add_s), server(senders))
    count = sum(map(len, nodes))
    best = best_of_all(nodes, count - senders, add_s)
    if tree.refused:
        assert best == np.inf
        return
    assert tree.lost_s == pytest.approx(best, abs=1e-9)
    node = {w.worker: w.node for w in workers(*nodes)}
    assert all(node[child] == node[parent] for child, parent in tree.parents.items())
    assert count - len(tree.parents) == tree.senders <= max(senders, 0)
    assert all(done <= 1.2 * min(map(min, nodes)) + 1e-9 for done in tree.done_s.values())
