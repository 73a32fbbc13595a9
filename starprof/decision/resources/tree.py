"""A communication tree: workers of one node add up their gradients, and one of them sends the sum (arXiv 2512.09685).

When all N workers sending for themselves would take a parameter server above its limit, some become children of a
parent on their own node. The workers of a group are all done when its slowest has computed and the parent has added
what the others hand in: `max t + (size - 1) * add_s`. What each loses is that minus its own time. No group may be
done later than 1.2 times the fastest worker's time, or its parent would be a straggler by the 20 % rule; so
stragglers keep to themselves.

Which groups cost least is found exactly. On one node the groups of a best plan are intervals of the sorted times: of
two groups that interleave, giving the smaller times to the one that is done first makes neither later. That leaves a
dynamic programme over the sorted times of each node, and one over nodes for how many children each contributes. Of a
node with more than 64 workers, 64 at a time are looked at, in the order of their times: the plan holds, and may not
be the cheapest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.decision.resources.amounts import LIMIT, NOTHING, Amount, share_words, time_words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STRAGGLES = 0.2
"""A worker straggles when it takes more than this longer than the fastest (arXiv 2512.09685)."""
AT_A_TIME = 64
"""Workers of one node that are grouped among themselves."""


@dataclass(frozen=True, slots=True)
class TreeWorker:
    """A worker, its node, and the time that it needs for itself."""

    worker: str
    node: str
    time_s: float

    def __post_init__(self) -> None:
        if not 0.0 < self.time_s < math.inf:
            raise ValueError(f"worker {self.worker}: {self.time_s} s is no time of an iteration")


@dataclass(frozen=True, slots=True)
class TreeCosts:
    """What sending and adding take.

    Attributes:
        per_sender: of the server, for each worker that sends to it.
        per_child: of the node, for each child that is added there.
        add_s: time in which a parent takes and adds one child's gradient.
    """

    per_sender: Amount
    per_child: Amount = NOTHING
    add_s: float = 0.0

    def __post_init__(self) -> None:
        amounts = (*_both(self.per_sender), *_both(self.per_child), self.add_s)
        if any(amount < 0.0 for amount in amounts) or self.per_sender.nothing:
            raise ValueError("what sending and adding take must not be below 0, and sending takes something")


@dataclass(frozen=True)
class Tree:
    """Who sends for whom.

    Attributes:
        parents: parent of each child; empty when all send for themselves, or it is refused.
        senders: workers that send to the server.
        lost_s: by which all workers together are done later, in an iteration.
        done_s: when each group is done, by its parent.
        share: of the server's capacity that is used.
        refused: why there is no such tree; "" when there is.
        steps: how it was found.
    """

    parents: Mapping[str, str]
    senders: int
    lost_s: float
    done_s: Mapping[str, float]
    share: float
    refused: str
    steps: tuple[str, ...]


def communication_tree(
    workers: Sequence[TreeWorker],
    costs: TreeCosts,
    server: Amount,
    *,
    used: Amount = NOTHING,
    spare: Mapping[str, Amount] | None = None,
    limit: float = LIMIT,
) -> Tree:
    """Find the cheapest groups with which a server stays below its limit.

    Args:
        workers: that send.
        costs: what sending and adding take.
        server: capacity of the server's node.
        used: of it, by everything else.
        spare: of the workers' nodes, for adding; nodes that are not named have enough.
        limit: share of the server's node that may be used.
    """
    most = _most_senders(costs.per_sender, (server.times(limit) - used).positive(), len(workers))
    share = (used + costs.per_sender.times(len(workers))).share_of(server)
    steps = [f"server: {len(workers)} senders would take {share_words(share)}; {most} stay below {share_words(limit)}"]
    needed = len(workers) - most
    if needed <= 0:
        return Tree({}, len(workers), 0.0, {}, share, "", tuple(steps))
    pools = _pools(workers, costs, spare or {})
    possible = sum(pool.most for pool in pools)
    if most < 1 or possible < needed:
        why = _impossible(workers, costs, most, needed, possible)
        return Tree({}, len(workers), 0.0, {}, share, why, (*steps, f"refuse: {why}"))
    children, lost_s = _shared_out(pools, needed)
    parents: dict[str, str] = {}
    done_s: dict[str, float] = {}
    for pool, count in zip(pools, children, strict=True):
        pool.group(count, parents, done_s)
    share = (used + costs.per_sender.times(most)).share_of(server)
    latest = max(done_s.values())
    after = share_words(latest / min(worker.time_s for worker in workers) - 1.0)
    steps.append(
        f"tree: {needed} children of {len(done_s)} parents; {most} senders take {share_words(share)}; all together "
        f"are done {time_words(lost_s)} later an iteration, the latest group {after} after the fastest "
        f"worker ({share_words(STRAGGLES)} is allowed)"
    )
    return Tree(parents, most, lost_s, done_s, share, "", tuple(steps))


def _most_senders(each: Amount, spare: Amount, workers: int) -> int:
    return min(_count(e, s, workers) for e, s in zip(_both(each), _both(spare), strict=True))


def _both(amount: Amount) -> tuple[float, float]:
    return amount.cores, amount.bytes_per_s


def _count(each: float, spare: float, at_most: int) -> int:
    """How often an amount fits, rounding forgiven."""
    return at_most if each * at_most <= spare else int(spare / each + 1e-9)


def _impossible(workers: Sequence[TreeWorker], costs: TreeCosts, most: int, needed: int, possible: int) -> str:
    if most < 1:
        return "the server's node has no room for a single sender: shard the server, or place it elsewhere"
    nodes = len({worker.node for worker in workers})
    latest = (1.0 + STRAGGLES) * min(worker.time_s for worker in workers)
    return (
        f"{needed} workers would have to send through others, and on their {nodes} nodes {possible} can, with every "
        f"group done within {time_words(latest)} and {time_words(costs.add_s)} to add a child: shard the server"
    )


class _Pool:
    """Workers of one node that are grouped among themselves, sorted by their times.

    Attributes:
        workers: sorted.
        most: children that there can be.
        costs: lost time with 0, 1, ... children, shape (most + 1,).
    """

    def __init__(self, workers: Sequence[TreeWorker], add_s: float) -> None:
        self.workers = workers
        self.add_s = add_s
        self.most = 0
        self.costs = np.zeros(1)
        self._from: Ints = np.zeros((1, 1), np.int64)

    def solved(self, best: Floats, begins: Ints, most: int) -> None:
        """Take over what was found: of g groups (row g - 1) the lost time, and where the last group of each begins."""
        k = len(self.workers)
        by_children = best[::-1, k]
        self.most = min(int(np.isfinite(by_children).sum()) - 1, most)
        self.costs = by_children[: self.most + 1]
        self._from = begins

    def group(self, children: int, parents: dict[str, str], done_s: dict[str, float]) -> None:
        """Name the parent of each child, the fastest of its group, which waits anyway."""
        end = len(self.workers)
        for groups in range(end - children, 0, -1):
            begin = int(self._from[groups - 1, end])
            members = self.workers[begin:end]
            if len(members) > 1:
                done_s[members[0].worker] = members[-1].time_s + (len(members) - 1) * self.add_s
                parents.update({child.worker: members[0].worker for child in members[1:]})
            end = begin


def _pools(workers: Sequence[TreeWorker], costs: TreeCosts, spare: Mapping[str, Amount]) -> list[_Pool]:
    """All pools, solved; those of equal size together, as arrays."""
    by_node: dict[str, list[TreeWorker]] = defaultdict(list)
    for worker in workers:
        by_node[worker.node].append(worker)
    latest_s = (1.0 + STRAGGLES) * min(worker.time_s for worker in workers)
    by_size: dict[int, list[tuple[_Pool, int]]] = defaultdict(list)
    for node, members in by_node.items():
        members.sort(key=lambda worker: worker.time_s)
        most = len(members)
        if node in spare:
            most = min(most, _most_senders(costs.per_child, spare[node].positive(), most))
        for first in range(0, len(members), AT_A_TIME):
            part = members[first : first + AT_A_TIME]
            by_size[len(part)].append((_Pool(part, costs.add_s), most))
            most = max(most - len(part), 0)
    for alike in by_size.values():
        times = np.array([[worker.time_s for worker in pool.workers] for pool, _ in alike])
        best, begins = _solve(times, costs.add_s, latest_s)
        for at, (pool, most) in enumerate(alike):
            pool.solved(best[at], begins[at], most)
    return [pool for alike in by_size.values() for pool, _ in alike]


def _solve(times: Floats, add_s: float, latest_s: float) -> tuple[Floats, Ints]:
    """Cheapest division of sorted times into intervals, of every pool and every number of groups.

    Args:
        times: sorted, shape (P, K).
        add_s: to add one child.
        latest_s: no group of several is done later.

    Returns:
        Lost time of the first j workers in g groups (row g - 1), shape (P, K, K + 1), and where the last group begins.
    """
    pools, k = times.shape
    sums = np.concatenate([np.zeros((pools, 1)), np.cumsum(times, axis=1)], axis=1)
    begin, end = np.arange(k)[:, None], np.arange(k + 1)[None, :]
    size = end - begin
    done = times[:, np.maximum(end - 1, 0)] + np.maximum(size - 1, 0) * add_s
    lost = size * done - (sums[:, None, :] - sums[:, :k, None])
    lost = np.where((size == 1) | ((size > 1) & (done <= latest_s)), np.maximum(lost, 0.0), np.inf)
    lost[:, size == 1] = 0.0
    best = np.full((pools, k, k + 1), np.inf)
    begins = np.zeros((pools, k, k + 1), np.int64)
    best[:, 0, 1:] = lost[:, 0, 1:]
    for groups in range(1, k):
        through = best[:, groups - 1, :k, None] + lost
        begins[:, groups] = through.argmin(axis=1)
        best[:, groups] = np.take_along_axis(through, begins[:, groups][:, None, :], axis=1)[:, 0]
    return best, begins


def _shared_out(pools: Sequence[_Pool], needed: int) -> tuple[list[int], float]:
    """How many children each pool contributes so that the time lost is least, and that time."""
    best = np.full(needed + 1, np.inf)
    best[0] = 0.0
    chosen = np.zeros((len(pools), needed + 1), np.int64)
    for at, pool in enumerate(pools):
        after = best.copy()
        for children in range(1, min(pool.most, needed) + 1):
            candidate = best[: needed + 1 - children] + float(pool.costs[children])
            better = candidate < after[children:]
            after[children:][better] = candidate[better]
            chosen[at, children:][better] = children
        best = after
    counts, left = [0] * len(pools), needed
    for at in range(len(pools) - 1, -1, -1):
        counts[at] = int(chosen[at, left])
        left -= counts[at]
    return counts, float(best[needed])
