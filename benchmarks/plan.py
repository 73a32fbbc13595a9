"""What resource plans cost: processor time of one plan for 1,024 workers on 128 nodes, and of other shapes.

    python benchmarks/plan.py [--repeat 20]

Processor time, because that is what a plan takes from the node it is made on, and because it can be measured on a
machine that others use. Prints a line per plan, and leaves with 1 when one of 1,024 workers takes more than 50 ms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from starprof.decision.resources import (
    Amount,
    Host,
    Need,
    Neighbour,
    NodeUse,
    Room,
    Sender,
    ServerLoad,
    TreeCosts,
    TreeWorker,
    Worker,
    assign,
    communication_tree,
    pace,
    place_server,
    reallocate,
    relieve,
    relocate,
)

LIMIT_MS = 50.0
NODE = Amount(64.0, 12.5e9)

Plan = Callable[[np.random.Generator], str]
"""Makes a plan; "" when there is one, else why it was refused."""


def reallocated(rng: np.random.Generator) -> str:
    """A node with 1,024 jobs beside the one that asks."""
    jobs = tuple(
        Neighbour(f"j{at}", 1, 0.5, Amount(1.0, 1e8), float(slack), 0.02, 1000)
        for at, slack in enumerate(rng.uniform(0.0, 0.0005, 1024))
    )
    return reallocate(NodeUse("n", NODE, NODE, jobs), Need("mine", Amount(1.0, 1e7), 0.9)).refused


def rooms(rng: np.random.Generator, count: int) -> list[Room]:
    """Nodes that others use to a third on average."""
    return [Room(f"n{at}", NODE, NODE.times(float(share))) for at, share in enumerate(rng.uniform(0.1, 0.6, count))]


def load(rng: np.random.Generator) -> ServerLoad:
    """A model of 300 parameters and 1.2 GB that 1,024 workers train: too much for one node."""
    sizes = rng.lognormal(0.0, 0.5, 300)
    return ServerLoad({f"p{at}": float(s) for at, s in enumerate(1.2e9 * sizes / sizes.sum())}, 1024, 5.0, 200.0)


def placed(rng: np.random.Generator) -> str:
    """A server among 1,024 nodes."""
    return place_server(rooms(rng, 1024), load(rng)).refused


def relocated(rng: np.random.Generator) -> str:
    """A server whose busiest node gets more to do."""
    there, asked = rooms(rng, 1024), load(rng)
    plan = place_server(there, asked)
    hosts = {parameter: node for node, held in plan.shards.items() for parameter in held}
    full = max(plan.shares, key=lambda node: plan.shares[node])
    there = [Room(r.node, r.capacity, r.used + NODE.times(0.1)) if r.node == full else r for r in there]
    return relocate(there, asked, hosts).refused


def tree(per_node: int) -> Plan:
    """A server that takes two thirds of 1,024 workers."""

    def plan(rng: np.random.Generator) -> str:
        times = rng.lognormal(0.0, 0.03, 1024)
        workers = [TreeWorker(f"w{at}", f"n{at // per_node}", float(t)) for at, t in enumerate(times)]
        return communication_tree(workers, TreeCosts(Amount(0.01, 1e7), add_s=0.005), Amount(64.0, 7.6e9)).refused

    return plan


def paced(rng: np.random.Generator) -> str:
    """1,024 senders on one interface that is too slow for all."""
    senders = [Sender(f"w{at}", 1e8, float(t), 1.0) for at, t in enumerate(rng.uniform(0.2, 0.9, 1024))]
    return pace(senders, NODE).refused


def fleet(rng: np.random.Generator) -> tuple[list[Worker], list[Host]]:
    """1,024 workers of different needs, 128 nodes with eight places each."""
    needs = rng.lognormal(0.0, 0.5, (1024, 2))
    workers = [Worker(f"w{at}", Amount(3.0 * c, 5e8 * b)) for at, (c, b) in enumerate(needs)]
    used = rng.uniform(0.0, 0.3, 128)
    return workers, [Host(f"n{at}", NODE, NODE.times(float(share)), 8) for at, share in enumerate(used)]


def assigned(rng: np.random.Generator) -> str:
    """All of them from nothing."""
    return assign(*fleet(rng)).refused


def relieved(rng: np.random.Generator) -> str:
    """Dealt out in order, then the fullest nodes are relieved."""
    workers, hosts = fleet(rng)
    return relieve(workers, hosts, {w.worker: f"n{at // 8}" for at, w in enumerate(workers)}, limit=0.95).refused


PLANS: dict[str, Plan] = {
    "reallocation, 1,024 jobs on a node": reallocated,
    "server over 1,024 nodes": placed,
    "server relocated, 1,024 nodes": relocated,
    "tree, 128 nodes of 8 workers": tree(8),
    "tree, 512 nodes of 2 workers": tree(2),
    "tree, 16 nodes of 64 workers": tree(64),
    "pacing, 1,024 senders": paced,
    "assignment, 1,024 workers on 128 nodes": assigned,
    "relief, 1,024 workers on 128 nodes": relieved,
}


def main() -> int:
    """Measure, print, judge."""
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=20)
    asked = options.parse_args()
    too_slow = False
    for name, plan in PLANS.items():
        spent, refused = [], 0
        for seed in range(asked.repeat + 1):
            rng = np.random.default_rng(seed)
            begin = time.process_time()
            refused += bool(plan(rng))
            spent.append((time.process_time() - begin) * 1000.0)
        median = float(np.median(spent[1:]))
        print(f"{name:40} median {median:6.1f} ms, worst {max(spent[1:]):6.1f} ms, {refused} refused")
        too_slow |= median > LIMIT_MS
    return int(too_slow)


if __name__ == "__main__":
    sys.exit(main())
