"""Which node makes runs slow: fleets with known bad nodes, and what nobody can tell."""

from dataclasses import replace

import numpy as np
import pytest

from starprof.analysis.placement import RunOn, judge

NODES = [f"n{i:02d}" for i in range(16)]


def fleet(seed, *, bad=(), runs=60, size=4, noise=0.02, factor=1.4, places=None, group=lambda i: ""):
    """Runs on random nodes, at the pace of the slowest; `places` draws the nodes of a run otherwise."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(runs):
        nodes = places(rng) if places else rng.choice(NODES, size, replace=False)
        pace = factor if set(nodes) & set(bad) else 1.0
        found.append(RunOn(f"run{i}", pace * float(np.exp(noise * rng.standard_normal())), frozenset(nodes), group(i)))
    return found


def slow(found):
    return sorted(node.node for node in found.nodes if node.status == "slow")


def statuses(found):
    return {node.node: node.status for node in found.nodes}


def test_one_bad_node_is_named_with_an_interval_that_holds_its_factor():
    found = judge(fleet(1, bad=("n03",)))
    assert (found.answer, slow(found)) == ("slow-nodes", ["n03"])
    node = found.nodes[0]
    assert node.low < 1.4 < node.high
    assert node.low > 1.2
    assert node.p <= 0.002


def test_two_bad_nodes_are_both_named_also_where_they_meet():
    assert slow(judge(fleet(2, bad=("n03", "n11"), runs=90))) == ["n03", "n11"]


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_fleet_blames_nobody(seed):
    found = judge(fleet(seed))
    assert (slow(found), found.undecidable) == ([], ())
    assert found.answer in ("none", "inconclusive")


def test_many_runs_clear_every_node():
    found = judge(fleet(3, runs=200, noise=0.01))
    assert found.answer == "none"
    assert set(statuses(found).values()) == {"cleared"}


def test_nodes_that_always_ran_together_are_undecidable_and_the_next_placement_parts_them():
    def places(rng):
        pair = ["n03", "n04"] if rng.random() < 0.4 else []
        return [*pair, *rng.choice([n for n in NODES if n not in ("n03", "n04")], 4 - len(pair), replace=False)]

    found = judge(fleet(4, bad=("n03",), places=places))
    assert (found.answer, slow(found)) == ("undecidable", [])
    (pair,) = found.undecidable
    assert set(pair.nodes) == {"n03", "n04"}
    assert pair.always
    one, other = pair.next_placements
    assert ("n03" in one) != ("n04" in one)
    assert ("n03" in other) != ("n04" in other)
    assert len(one) == 4


def test_nodes_that_ran_apart_too_seldom_are_undecidable_too():
    rare = iter(range(1000))

    def places(rng):
        i = next(rare)
        pair = ["n03", "n04"] if i % 3 == 0 else ["n04"] if i == 1 else []
        return [*pair, *rng.choice([n for n in NODES if n not in ("n03", "n04")], 4 - len(pair), replace=False)]

    found = judge(fleet(5, bad=("n03",), runs=45, noise=0.1, places=places))
    assert slow(found) in ([], ["n03"])
    assert not found.undecidable or "n03" in found.undecidable[0].nodes


def test_few_runs_are_not_enough_and_that_is_said():
    found = judge(fleet(6, bad=("n03",), runs=5))
    assert found.answer == "inconclusive"
    assert "too few" in found.reason


def test_runs_on_the_same_nodes_tell_nothing():
    found = judge(fleet(7, places=lambda _: NODES[:4], runs=20))
    assert found.answer == "inconclusive"
    assert {node.status for node in found.nodes} == {"not-compared"}


def test_a_node_that_only_runs_the_slow_job_is_not_blamed_for_it():
    rng = np.random.default_rng(8)
    runs = []
    for i in range(80):
        job, nodes, seconds = ("s", NODES[:8], 1.0) if i % 2 else ("l", NODES[8:], 5.0)
        members = frozenset(rng.choice(nodes, 3, replace=False))
        runs.append(RunOn(f"{job}{i}", seconds * (1.0 + 0.02 * rng.random()), members, job))
    assert slow(judge(runs)) == []


def test_a_bad_node_is_found_over_jobs_of_different_length():
    runs = fleet(9, bad=("n05",), group=lambda i: str(i % 2))
    runs = [replace(run, seconds=run.seconds * (5.0 if run.group == "1" else 1.0)) for run in runs]
    assert slow(judge(runs)) == ["n05"]


def test_runs_of_more_nodes_are_compared_among_themselves():
    rng = np.random.default_rng(10)
    runs = []
    for i in range(80):
        size = 2 if i % 2 else 8
        runs.append(RunOn(f"r{i}", size * (1 + 0.02 * rng.random()), frozenset(rng.choice(NODES, size, replace=False))))
    assert slow(judge(runs)) == []


def test_single_slow_runs_blame_nobody():
    runs = fleet(11)
    runs[7] = RunOn("odd", 9.0, runs[7].nodes)
    assert slow(judge(runs)) == []


def test_runs_without_a_time_or_nodes_are_left_out():
    bad = [("a", float("nan"), {"n01"}), ("b", 1.0, set()), ("c", -1.0, {"n02"})]
    runs = [*fleet(12), *(RunOn(name, seconds, frozenset(nodes)) for name, seconds, nodes in bad)]
    assert judge(runs).runs == 60


def test_a_longer_time_that_does_not_matter_is_no_finding():
    assert slow(judge(fleet(13, bad=("n03",), factor=1.01, noise=0.002))) == []


def test_the_answer_is_the_same_every_time():
    assert judge(fleet(14, bad=("n03",))) == judge(fleet(14, bad=("n03",)))
