"""Simulated jobs do what their modes decide, and tell it."""

from dataclasses import replace

import numpy as np
import pytest

from starprof.simulation import (
    AllReduce,
    Change,
    Cluster,
    Episodes,
    Exponential,
    Job,
    Link,
    Mode,
    Node,
    NoiseScale,
    ParameterServer,
    Rotating,
    Steady,
    Until,
    Worker,
    simulate,
    simulate_jobs,
)
from starprof.sync.policies import MODES, create

OPTIONS = {
    "static-x": {"x": 6},
    "ring-x": {"x": 6},
    "m-sync": {"m": 6},
    "m-sync-fold": {"m": 6},
    "deadline": {"after_s": 0.5},
    "local-sgd": {"period": 4},
    "hierarchical": {"groups": [[0, 1, 2, 3], [4, 5, 6, 7]], "period": 4},
    "backup": {"b": 2},
    "ssp": {"s": 2},
    "lgc": {"k": 6},
    "lb-bsp": {"batch_size": 32},
    "sync-switch": {"switch_at": 20},
    "drop-compute": {"tau_s": 1.0},
    "rennala": {"batch": 8},
    "ringmaster": {"r": 16},
}
STAFF = [
    Worker(index, Exponential(1.0, fixed_s=0.2), node=f"n{index}", batch=32, micro_batches=4) for index in range(8)
]
NODES = Cluster(tuple(Node(f"n{index}", cores=4, nic_bytes_per_s=1e9) for index in range(8)))
PLAIN = NoiseScale(phi=320)
EXCHANGES = {
    "servers": ParameterServer(("n0", "n1"), 1e7, 0.002, 0.002, 0.001, latency_s=0.001),
    "rings": AllReduce(1e7, latency_s=0.001),
}


def play(mode, **given):
    given = {"until": Until(progress=60), "cluster": NODES, **given}
    return simulate(Mode(mode, OPTIONS.get(mode, {})), STAFF, PLAIN, **given)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_goes_on_and_its_record_adds_up(mode, exchange):
    history = play(mode, exchange=EXCHANGES[exchange])
    assert history.stopped == "progress"
    used = [(g.worker, g.number) for step in history.steps for g in step.gradients]
    assert len(used) == len(set(used)), "a gradient counts twice"
    assert min(history.staleness, default=0) >= 0
    bound = create(mode, range(8), OPTIONS.get(mode, {})).max_staleness
    assert mode == "dynamic-x" or bound is None or max(history.staleness, default=0) <= bound
    if not MODES[mode].drops and mode != "lgc" and mode != "m-sync-fold":
        assert history.dropped == 0
    at_s = [step.decided_s for step in history.steps]
    assert at_s == sorted(at_s)
    assert all(step.at_s >= step.decided_s for step in history.steps)


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "static-x", "m-sync", "rennala", "deadline", "dynamic-x"])
def test_another_driver_of_the_same_policy_would_have_decided_the_same(mode):
    """The arrivals of the history, fed to a fresh policy, give the updates of the history."""
    history = play(mode, predictor=lambda view: {})
    policy = create(mode, range(8), OPTIONS.get(mode, {}))
    from starprof.sync.policies import Arrived, Gradient, Woken

    version, woken, again = dict.fromkeys(range(8), 0), None, []
    its = history.iterations
    arrivals = sorted(zip(its.begun_s + its.own_s, range(len(its.worker)), strict=True))
    by_number = {(g.worker, g.number): g for step in history.steps for g in step.gradients}

    def carry_out(decision):
        nonlocal woken
        again.extend((u.onto, u.gradients, u.weights) for u in decision.updates)
        version.update(dict.fromkeys(decision.release, policy.version))
        woken = decision.wake_at_s if decision.wake_at_s is not None else woken

    for at_s, place in arrivals:
        while woken is not None and woken <= at_s:
            due, woken = woken, None
            carry_out(policy.decide(Woken(due)))
        worker, number = int(its.worker[place]), int(its.number[place])
        gradient = Gradient(worker, number, version[worker], 32)
        assert by_number.get((worker, number), gradient) == gradient
        carry_out(policy.decide(Arrived(gradient, at_s)))
    if woken is not None and woken <= history.end_s:
        carry_out(policy.decide(Woken(woken)))
    assert [(s.onto, s.gradients, s.weights) for s in history.steps] == again[: len(history.steps)]


def test_workers_leave_and_come_in_the_middle():
    history = play("ssgd", changes=[Change(10.0, 3, False), Change(60.0, 3, True)], until=Until(at_s=150.0))
    with_it = [step.decided_s for step in history.steps if 3 in step.contributors]
    without = [step.decided_s for step in history.steps if 3 not in step.contributors]
    assert without
    assert all(at_s >= 10.0 for at_s in without)
    assert min(at_s for at_s in with_it if at_s > 60.0) < 80.0
    assert not [at_s for at_s in with_it if 10.0 < at_s < 60.0]


def test_who_joins_later_is_not_waited_for_before():
    late = [*STAFF[:4], replace(STAFF[4], joins_s=30.0)]
    history = simulate(Mode("ssgd"), late, PLAIN, until=Until(at_s=60.0))
    first = next(step for step in history.steps if 4 in step.contributors)
    assert first.decided_s > 30.0
    assert history.steps[0].contributors == (0, 1, 2, 3)


def test_a_straggler_is_slow_while_its_episode_lasts():
    slow = [*STAFF[:3], Worker(3, Episodes(Steady(1.0), 5.0, ((20.0, 40.0),)))]
    steady = [replace(worker, source=Steady(1.0)) for worker in slow[:3]]
    history = simulate(Mode("ssgd"), [*steady, slow[3]], PLAIN, until=Until(at_s=60.0))
    gaps = np.diff([0.0, *(step.decided_s for step in history.steps)])
    assert sorted(set(np.round(gaps, 9))) == [1.0, 5.0]
    assert history.straggler_share == pytest.approx(np.sum(gaps == 5.0) / len(gaps) / 4)


def test_rotating_stragglers_take_turns():
    staff = [Worker(i, Rotating(Steady(1.0), 3.0, 10.0, i, 4)) for i in range(4)]
    its = simulate(Mode("asgd"), staff, PLAIN, until=Until(at_s=400.0)).iterations
    slow = its.own_s > 2.0
    assert {int(w) for w in its.worker[slow]} == {0, 1, 2, 3}
    turns = (its.begun_s[slow] // 10).astype(int) % 4
    assert (turns == its.worker[slow]).all()


def test_a_smaller_batch_is_computed_in_less_time_and_the_slow_one_gets_it():
    staff = [Worker(0, Steady(4.0), batch=32), *(Worker(i, Steady(1.0), batch=32) for i in (1, 2, 3))]
    history = simulate(Mode("lb-bsp", {"batch_size": 32}), staff, PLAIN, until=Until(updates=10))
    last = {g.worker: g.samples for g in history.steps[-1].gradients}
    assert sum(last.values()) == 128
    assert last[0] == pytest.approx(128 / 13, abs=1.5)
    assert history.steps[-1].decided_s - history.steps[-2].decided_s == pytest.approx(16 / 13, rel=0.15)


def test_drop_compute_stops_between_two_micro_batches():
    staff = [Worker(0, Steady(4.0), batch=32, micro_batches=8), *(Worker(i, Steady(1.0), batch=32) for i in (1, 2))]
    history = simulate(Mode("drop-compute", {"tau_s": 1.2}), staff, PLAIN, until=Until(updates=5))
    assert {g.samples for step in history.steps for g in step.gradients if g.worker == 0} == {12}
    assert history.end_s == pytest.approx(5 * 1.5)


def test_a_controller_changes_the_mode_with_what_still_waits():
    def controller(view):
        return Mode("m-sync", {"m": 6}) if 20 <= view.progress < 21 else None

    history = play("ssgd", controller=controller)
    assert [step.mode for step in history.steps[:5]] == ["ssgd"] * 5
    assert history.steps[-1].mode == "m-sync"
    assert {mode for _, mode in history.switches} == {"m-sync m=6"}


@pytest.mark.parametrize(("first", "then"), [("asgd", "local-sgd"), ("local-sgd", "m-sync"), ("hierarchical", "ssgd")])
def test_steps_of_their_own_begin_and_end_where_all_are_equal(first, then):
    asked = []

    def controller(view):
        if view.progress < 12 or asked:
            return None
        asked.append(view.at_s)
        return Mode(then, OPTIONS.get(then, {}))

    history = play(first, controller=controller)
    modes = list(dict.fromkeys(step.mode for step in history.steps))
    assert modes[0] == first
    assert modes[-1] == then
    change = next(place for place, step in enumerate(history.steps) if step.mode == then)
    before = history.steps[change - 1]
    assert len(before.contributors) == 8, "states were not equal when the mode changed"


def test_asgd_loads_a_server_more_and_makes_stragglers_of_the_job_beside_it():
    """The other job's worker on the server's node needs its processor too."""
    nodes = Cluster((Node("ps", cores=1.0),))
    servers = ParameterServer(("ps",), push_cpu_s=0.03, apply_cpu_s=0.05, pull_cpu_s=0.02)
    staff = tuple(Worker(i, Steady(1.0, cv=0.05), node=f"w{i}") for i in range(7))
    slow = Worker(7, Steady(2.0, cv=0.05), node="w7")
    other = tuple(Worker(i, Steady(0.5, cv=0.02), node="ps" if i == 0 else "x", cpu_s=0.05) for i in range(4))
    beside = Job(Mode("ssgd"), other, PLAIN, Until(), name="beside")
    told = {}
    for mode in ("ssgd", "asgd"):
        job = Job(Mode(mode), (*staff, slow), PLAIN, Until(at_s=200.0), exchange=servers)
        told[mode] = simulate_jobs([job, beside], nodes, seed=2)
    (ssgd, quiet), (asgd, loud) = told["ssgd"], told["asgd"]
    assert asgd.busy["ps cpu"] > 1.3 * ssgd.busy["ps cpu"]
    assert loud.stopped == "others"
    assert loud.straggler_share > quiet.straggler_share
    assert loud.progress_per_s < quiet.progress_per_s


def test_a_server_that_is_fully_loaded_sets_the_pace():
    servers = ParameterServer(("ps",), push_cpu_s=0.1, threads=1.0)
    staff = [Worker(i, Steady(0.4), node=f"w{i}") for i in range(8)]
    history = simulate(Mode("asgd"), staff, PLAIN, until=Until(updates=500), exchange=servers)
    assert history.updates_per_s == pytest.approx(10.0, rel=0.02)
    two = replace(servers, nodes=("ps", "ps2"))
    assert simulate(Mode("asgd"), staff, PLAIN, until=Until(updates=500), exchange=two).updates_per_s == pytest.approx(
        8 / 0.45, rel=0.05
    )


def test_a_ring_moves_two_thirds_more_than_once_over_the_narrowest_interface():
    nodes = Cluster((Node("a", nic_bytes_per_s=1e8), Node("b", nic_bytes_per_s=2e7), Node("c", nic_bytes_per_s=1e8)))
    staff = [Worker(i, Steady(1.0), node=name) for i, name in enumerate("abc")]
    ring = AllReduce(3e7, latency_s=0.01)
    history = simulate(Mode("ssgd"), staff, PLAIN, until=Until(updates=10), exchange=ring, cluster=nodes)
    step_s = 1.0 + 2 * 2 / 3 * 3e7 / 2e7 + 4 * 0.01
    assert history.end_s == pytest.approx(10 * step_s)


def test_a_shared_link_carries_what_both_jobs_send_over_it():
    link = Cluster(links=(Link("uplink", frozenset({"a", "c"}), 1e7),))
    job = Job(
        Mode("ssgd"),
        (Worker(0, Steady(0.5), node="a"), Worker(1, Steady(0.5), node="b")),
        PLAIN,
        Until(updates=20),
        exchange=AllReduce(1e7),
    )
    other = replace(job, workers=tuple(replace(w, node={"a": "c", "b": "d"}[w.node]) for w in job.workers))
    alone = simulate_jobs([job], link)[0]
    both = simulate_jobs([job, other], link)
    assert alone.end_s == pytest.approx(20 * 1.5)
    assert both[0].end_s == pytest.approx(20 * 2.0, rel=0.05)  # the link is never idle


def test_a_job_that_nothing_would_end_is_refused():
    with pytest.raises(ValueError, match="until when"):
        simulate(Mode("ssgd"), STAFF, PLAIN, until=Until())


def test_a_job_without_anybody_left_stands_still():
    history = simulate(Mode("ssgd"), STAFF[:1], PLAIN, until=Until(updates=100), changes=[Change(5.0, 0, False)])
    assert history.stopped == "stands still"
