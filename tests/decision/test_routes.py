"""Orders to workers: a tree and paced pushes together."""

from starprof.decision.resources import Amount, TreeCosts, WorkerUse, routes

COSTS = TreeCosts(per_sender=Amount(0.1, 10e6), add_s=0.001)
NODES = {"a": Amount(8.0, 125e6), "b": Amount(8.0, 125e6)}
WORKERS = [WorkerUse(rank, "a" if rank < 4 else "b", 0.1 + 0.001 * rank, 1e6) for rank in range(8)]


def test_a_server_with_room_gets_all_gradients_and_pushes_are_just_in_time():
    plan = routes(WORKERS, COSTS, Amount(8.0, 125e6), NODES)
    assert not plan.refused
    assert all(route.parent is None and not route.children for route in plan.orders.values())
    for node in NODES:
        rates = [plan.orders[w.rank].bytes_per_s for w in WORKERS if w.node == node]
        assert all(rate is not None and rate > 0.0 for rate in rates)
        assert sum(rates) <= 0.9 * NODES[node].bytes_per_s * (1.0 + 1e-6)
    # Nobody is done later than the slowest, sending as fast as its interface can, would be.
    last_s = WORKERS[-1].compute_s + WORKERS[-1].push_bytes / NODES["b"].bytes_per_s
    at = plan.orders[0].bytes_per_s
    assert WORKERS[0].compute_s + WORKERS[0].push_bytes / at <= last_s + 1e-9 or "late" in " ".join(plan.steps)


def test_a_full_server_gets_sums_and_children_are_not_paced():
    plan = routes(WORKERS, COSTS, Amount(8.0, 60e6), NODES)
    assert not plan.refused
    parents = {rank: route.parent for rank, route in plan.orders.items() if route.parent is not None}
    assert sum(route.parent is None for route in plan.orders.values()) <= 5
    node = {worker.rank: worker.node for worker in WORKERS}
    for child, parent in parents.items():
        assert node[child] == node[parent]
        assert child in plan.orders[parent].children
        assert plan.orders[child].bytes_per_s is None
        assert plan.orders[parent].parent is None


def test_without_pacing_nobody_is_held_back_and_what_is_refused_is_said():
    plan = routes(WORKERS, COSTS, Amount(0.05, 125e6), NODES, paced=False)
    assert "no room for a single sender" in plan.refused
    assert all(route.parent is None and route.bytes_per_s is None for route in plan.orders.values())
