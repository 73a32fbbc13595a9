"""A manager sees what jobs use of their nodes, and what it orders is done while they run."""

import pytest

from starprof.simulation import (
    Change,
    Cluster,
    Delay,
    Group,
    Job,
    Mode,
    MoveShard,
    MoveWorker,
    Node,
    NoiseScale,
    Pace,
    ParameterServer,
    Steady,
    Until,
    Worker,
    simulate_jobs,
)

PLAIN = NoiseScale()
NODES = Cluster((Node("a", 1.0), Node("b", 1.0), Node("c", 1.0, nic_bytes_per_s=1e6)))


class Ordering:
    """Gives its orders at the first look, and keeps what it sees."""

    def __init__(self, *orders, every_s=1.0):
        self.orders, self.every_s, self.seen = list(orders), every_s, []

    def __call__(self, seen):
        self.seen.append(seen)
        orders, self.orders = self.orders, []
        return orders


def job(*nodes, name="ours", cpu_s=0.1, until=None, mode="ssgd", **options):
    workers = tuple(Worker(at, Steady(0.1), node, cpu_s=cpu_s) for at, node in enumerate(nodes))
    return Job(Mode(mode), workers, PLAIN, until or Until(progress=100), name=name, **options)


def test_it_sees_who_uses_what_and_how_fast_everybody_is():
    manager = Ordering()
    served = ParameterServer(("c",), 1e4, push_cpu_s=0.01, apply_cpu_s=0.02, pull_cpu_s=0.01)
    simulate_jobs([job("a", "b", exchange=served)], NODES, manager=manager)
    seen = manager.seen[5].jobs["ours"]
    rounds = seen.iterations[0] / manager.every_s
    assert seen.own_s[0] == pytest.approx(0.26, abs=0.03)
    assert seen.compute["a"].cpu_s == pytest.approx(0.1 * rounds, abs=0.11)
    assert seen.serve["c"].cpu_s == pytest.approx(0.06 * rounds, abs=0.07)
    assert seen.serve["c"].bytes == pytest.approx(4e4 * rounds, abs=5e4)
    assert (seen.mode, seen.shards, seen.nodes) == ("ssgd", ("c",), {0: "a", 1: "b"})
    assert seen.progress == pytest.approx(6 * rounds, rel=0.3)


def test_a_worker_that_moves_off_a_crowded_node_is_quick_again_after_its_pause():
    crowd = job("a", "a", "a", name="beside", until=Until())
    alone = simulate_jobs([job("a", "b"), crowd], NODES)[0]
    move = MoveWorker("ours", 0, "c", pause_s=2.0)
    moved = simulate_jobs([job("a", "b"), crowd], NODES, manager=Ordering(move))[0]
    assert alone.end_s > 35
    assert moved.end_s == pytest.approx(1.0 + 2.0 + 0.2 * 98, rel=0.05)
    own_s = moved.iterations.own_s
    assert own_s.max() == pytest.approx(2.2, abs=0.4)
    assert own_s[-20:].max() < 0.21


def test_a_job_that_is_delayed_frees_its_node_for_others():
    beside = job("a", "a", "a", name="beside", until=Until())
    _, free = simulate_jobs([job("a"), beside], NODES)
    ours, slowed = simulate_jobs([job("a"), beside], NODES, manager=Ordering(Delay("beside", "a", 1.0)))
    assert slowed.progress_per_s < 0.5 * free.progress_per_s
    assert ours.end_s < 28


def test_a_delay_within_slack_costs_nothing_and_frees_nothing_in_the_mean():
    """What harvesting (arXiv 2512.09685) lends: other times of use, not less of it."""
    workers = (Worker(0, Steady(0.1), "a", cpu_s=0.1), Worker(1, Steady(0.6), "b", cpu_s=0.1))
    lender = Job(Mode("ssgd"), workers, PLAIN, Until(progress=60), name="lender")
    manager = Ordering(Delay("lender", "a", 0.4), every_s=7.0)
    free = simulate_jobs([lender], NODES)[0]
    delayed = simulate_jobs([lender], NODES, manager=manager)[0]
    assert delayed.end_s == pytest.approx(free.end_s)
    used = [seen.jobs["lender"].compute["a"].cpu_s for seen in manager.seen]
    assert used[1:5] == pytest.approx([used[0]] * 4, abs=0.11)


def test_delays_end_when_it_is_said_so():
    class Lifting(Ordering):
        def __call__(self, seen):
            super().__call__(seen)
            return [Delay("ours", "a", 1.0 if len(self.seen) == 1 else 0.0)] if len(self.seen) in {1, 5} else []

    history = simulate_jobs([job("a")], NODES, manager=Lifting())[0]
    assert history.iterations.own_s.max() == pytest.approx(1.2)
    assert history.iterations.own_s[-1] == pytest.approx(0.2)


def test_a_shard_that_moves_is_served_by_the_old_node_until_it_is_there():
    served = ParameterServer(("a", "a"), 1e3, push_cpu_s=0.05, apply_cpu_s=0.05, pull_cpu_s=0.05)
    manager = Ordering(MoveShard("ours", 1, "c", size_bytes=3e6))  # three seconds over c's interface
    history = simulate_jobs([job("b", exchange=served)], NODES, manager=manager)[0]
    where = [seen.jobs["ours"].shards for seen in manager.seen]
    assert where[1] == where[2] == ("a", "a")
    assert where[5] == ("a", "c")
    assert history.steps[-1].progress == pytest.approx(100)
    assert {g.number for step in history.steps for g in step.gradients} == set(range(100))


def test_children_send_through_their_parent_and_the_server_is_spared_for_it():
    served = ParameterServer(("c",), 1e3, push_cpu_s=0.05)
    together = Ordering(Group("ours", {1: 0, 3: 2}))
    staff = job("a", "a", "b", "b", exchange=served, cpu_s=0.0)
    apart, grouped = (simulate_jobs([staff], NODES, manager=m)[0] for m in (Ordering(), together))
    assert apart.end_s == pytest.approx(100 * 0.3, rel=0.02)  # four pushes, one after the other
    assert grouped.end_s == pytest.approx(1.0 + 97 * 0.2, rel=0.03)
    assert grouped.shares == pytest.approx(dict.fromkeys(range(4), 0.25))


@pytest.mark.parametrize("look_s", [0.13, 0.15, 0.17, 0.31])
@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_a_group_that_begins_in_the_middle_of_a_round_waits_for_nobody_who_waits_for_it(mode, look_s):
    served = ParameterServer(("c",), 1e3, push_cpu_s=0.04)
    staff = job("a", "a", "b", "b", exchange=served, cpu_s=0.0, mode=mode)
    history = simulate_jobs([staff], NODES, manager=Ordering(Group("ours", {1: 0, 3: 2}), every_s=look_s))[0]
    assert history.stopped == "progress"


@pytest.mark.parametrize("leaves", [0, 1])
def test_nobody_waits_for_a_member_of_a_group_that_is_gone(leaves):
    served = ParameterServer(("c",), 1e3, push_cpu_s=0.01)
    gone = (Change(2.05, leaves, joins=False),)
    staff = job("a", "a", exchange=served, cpu_s=0.0, changes=gone)
    history = simulate_jobs([staff], NODES, manager=Ordering(Group("ours", {1: 0})))[0]
    assert history.stopped == "progress"


def test_who_paces_its_pushes_leaves_the_interface_to_others():
    served = ParameterServer(("c",), 1e5)  # a tenth of a second over c's interface
    crowd = job("b", name="beside", exchange=served, cpu_s=0.0, until=Until(), mode="asgd")
    ours = job("a", exchange=ParameterServer(("c",), 1e3), cpu_s=0.0)
    plain, _ = simulate_jobs([ours, crowd], NODES)
    paced, slowed = simulate_jobs([ours, crowd], NODES, manager=Ordering(Pace("beside", 0, 1e5)))
    assert paced.end_s < plain.end_s
    assert slowed.iterations.own_s[-1] == pytest.approx(0.1 + 0.1 + 7 / 8 + 1 / 80, abs=0.1)


def test_orders_that_can_not_be_carried_out_and_names_that_are_not_told_apart_are_refused():
    with pytest.raises(ValueError, match="no parameter server"):
        simulate_jobs([job("a")], NODES, manager=Ordering(MoveShard("ours", 0, "b", 1.0)))
    with pytest.raises(ValueError, match="a name for each"):
        simulate_jobs([job("a"), job("b")], NODES, manager=Ordering())
    with pytest.raises(ValueError, match="every so many seconds"):
        simulate_jobs([job("a")], NODES, manager=Ordering(every_s=0.0))


def test_who_manages_jobs_that_stand_still_does_not_look_for_ever():
    stuck = job("a", "b", until=Until(progress=100), mode="ssgd")
    gone = Job(stuck.mode, stuck.workers, PLAIN, stuck.until, changes=(Change(1.5, 0, False), Change(1.6, 1, False)))
    history = simulate_jobs([gone], NODES, manager=Ordering())[0]
    assert history.stopped == "stands still"
