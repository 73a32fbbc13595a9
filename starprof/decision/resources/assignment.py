"""Which worker goes to which node, so that none of them holds the others up by sharing a node with too many.

The fullest node decides (the larger of its shares of cores and of bandwidth): all workers wait for those on it. Workers
are placed one by one, those that need most first, each on the node with a free slot that is least full with it. Then
workers of the fullest node move, or change places with others, while that makes the fuller of the two nodes less full.

How good that is: every plan tells the least share that any assignment could reach, from the total of what is needed and
from the largest worker. On alike nodes with enough slots the first pass alone is within 4 times the best: when the last
worker came to the fullest node, each node would have been as full with it, by cores or by bandwidth; so the fullest is
below the means of both plus both needs of that worker, and none of these four is above the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.decision.resources.amounts import LIMIT, Amount, share_words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXCHANGES = 64
"""Moves after the first pass, at most."""
NONE_THERE = 1e-60
"""Capacity of what a node does not have: any use is far beyond it, and none is no share of it."""
BETTER = 1e-9
"""Smaller gains are rounding."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker and what it needs of its node."""

    worker: str
    needs: Amount


@dataclass(frozen=True, slots=True)
class Host:
    """A node: its name, what it has, what others use of it, and for how many workers it has a place (a GPU)."""

    node: str
    capacity: Amount
    used: Amount
    slots: int


@dataclass(frozen=True)
class Assignment:
    """Workers on nodes.

    Attributes:
        node: of each worker; empty when it is refused.
        shares: of each node's capacity.
        moved: workers that are elsewhere than before, when there was a before.
        least_share: no assignment has a less full fullest node than this.
        refused: why there is none; "" when there is.
        steps: how it was found.
    """

    node: Mapping[str, str]
    shares: Mapping[str, float]
    moved: tuple[str, ...]
    least_share: float
    refused: str
    steps: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the fullest node."""
        return max(self.shares.values(), default=math.inf)


def assign(workers: Sequence[Worker], hosts: Sequence[Host]) -> Assignment:
    """Place workers on nodes."""
    whole = sum(max(host.slots, 0) for host in hosts)
    if whole < len(workers):
        why = f"{len(workers)} workers need as many slots, and the {len(hosts)} nodes have {whole}"
        return Assignment({}, {}, (), math.inf, why, (f"refuse: {why}",))
    places = _Places(workers, hosts)
    places.largest_first()
    first = places.fullest_share
    exchanges = places.improve(EXCHANGES, below=0.0)
    least = places.least_share()
    steps = (
        f"first pass: {len(workers)} workers, the neediest first, on {len(hosts)} nodes: up to {share_words(first)}",
        f"{exchanges} moves: up to {share_words(places.fullest_share)}; no assignment is below {share_words(least)}",
    )
    return _told(places, (), least, steps)


def relieve(
    workers: Sequence[Worker], hosts: Sequence[Host], now: Mapping[str, str], limit: float = LIMIT
) -> Assignment:
    """Move as few workers as possible off nodes that are above the limit, since each move is a restart of a rank.

    Args:
        workers: all of the job.
        hosts: nodes; `used` is without the job.
        now: node of each worker.
        limit: share that no node should be above.
    """
    places = _Places(workers, hosts)
    places.put(now)
    before = places.fullest_share
    least = places.least_share()
    steps = [f"now: {places.fullest} is at {share_words(before)}"]
    if before <= limit + BETTER:
        return _told(places, (), least, (*steps, f"nothing to move: below {share_words(limit)}"))
    places.improve(EXCHANGES, below=limit)
    moved = places.moved(now)
    if places.fullest_share > limit + BETTER:
        why = (
            f"{places.fullest} would still be at {share_words(places.fullest_share)} after {len(moved)} moves; no "
            f"assignment could be below {share_words(least)}, the limit is {share_words(limit)}"
        )
        return Assignment({}, {}, (), least, why, (*steps, f"refuse: {why}"))
    steps.append(
        f"{len(moved)} workers move: the fullest node is {places.fullest} at {share_words(places.fullest_share)}"
    )
    return _told(places, moved, least, tuple(steps))


def _told(places: _Places, moved: tuple[str, ...], least: float, steps: tuple[str, ...]) -> Assignment:
    return Assignment(places.named(), places.named_shares(), moved, least, "", steps)


class _Places:
    """Workers and nodes as arrays: W workers, K nodes, two resources."""

    def __init__(self, workers: Sequence[Worker], hosts: Sequence[Host]) -> None:
        if not hosts:
            raise ValueError("no node is there to choose from")
        self._workers, self._hosts = workers, hosts
        self._needs = np.array([[w.needs.cores, w.needs.bytes_per_s] for w in workers]).reshape(len(workers), 2)
        self._capacity = np.array([[h.capacity.cores, h.capacity.bytes_per_s] for h in hosts])
        self._per_capacity = 1.0 / np.maximum(self._capacity, NONE_THERE)
        self._held = np.array([[h.used.cores, h.used.bytes_per_s] for h in hosts])
        self._used = self._held.copy()
        self._free = np.array([h.slots for h in hosts])
        self._at: Ints = np.full(len(workers), -1)

    def _shares(self, held: Floats, nodes: Ints | slice = slice(None)) -> Floats:
        """Share of nodes with so much on them, shape (..., K)."""
        shares = held * self._per_capacity[nodes]
        fullest: Floats = np.maximum(shares[..., 0], shares[..., 1])  # much quicker than max over an axis of two
        return fullest

    @property
    def fullest_share(self) -> float:
        """Of the fullest node."""
        return float(self._shares(self._held).max())

    @property
    def fullest(self) -> str:
        """Its name."""
        return self._hosts[int(self._shares(self._held).argmax())].node

    def put(self, now: Mapping[str, str]) -> None:
        """Every worker where it is."""
        number = {host.node: at for at, host in enumerate(self._hosts)}
        for at, worker in enumerate(self._workers):
            self._move(at, number[now[worker.worker]])

    def _move(self, worker: int, node: int) -> None:
        before = int(self._at[worker])
        if before >= 0:
            self._held[before] -= self._needs[worker]
            self._free[before] += 1
        self._held[node] += self._needs[worker]
        self._free[node] -= 1
        self._at[worker] = node

    def largest_first(self) -> None:
        """The first pass."""
        mean = np.maximum(self._capacity.mean(axis=0), 1e-300)
        for worker in np.argsort(-(self._needs / mean).max(axis=1), kind="stable"):
            shares = self._shares(self._held + self._needs[worker])
            self._move(int(worker), int(np.where(self._free > 0, shares, np.inf).argmin()))

    def improve(self, at_most: int, below: float) -> int:
        """Move or exchange workers of the fullest node until it is below a share, or nothing helps."""
        for count in range(at_most):
            shares = self._shares(self._held)
            node = int(shares.argmax())
            if shares[node] <= below + BETTER or not self._one_better(node, float(shares[node])):
                return count
        return at_most

    def _one_better(self, node: int, share: float) -> bool:
        """The one move or exchange after which the fuller of the two nodes is least full."""
        mine = np.flatnonzero(self._at == node)
        if not len(mine):
            return False
        others = np.flatnonzero(self._at != node)
        without = self._held[node] - self._needs[mine]
        moved = np.maximum(
            self._shares(without[:, None, :], np.array([node])),
            np.where(self._free > 0, self._shares(self._held + self._needs[mine][:, None, :]), np.inf),
        )
        moved[:, node] = np.inf
        worker, target = np.unravel_index(int(moved.argmin()), moved.shape)
        best, change = float(moved[worker, target]), [(int(mine[worker]), int(target))]
        if len(others):
            at = self._at[others]
            mine_there = self._held[at] - self._needs[others] + self._needs[mine][:, None, :]
            theirs_here = without[:, None, :] + self._needs[others]
            swapped = np.maximum(self._shares(mine_there, at), self._shares(theirs_here, np.array([node])))
            worker, other = np.unravel_index(int(swapped.argmin()), swapped.shape)
            if float(swapped[worker, other]) < best - BETTER:
                best = float(swapped[worker, other])
                change = [(int(mine[worker]), int(at[other])), (int(others[other]), node)]
        if best >= share - BETTER:
            return False
        for who, where in change:
            self._move(who, where)
        return True

    def least_share(self) -> float:
        """A share below which no assignment's fullest node can be."""
        background = float(self._shares(self._used).max())
        alone = self._shares(self._used + self._needs[:, None, :]).min(axis=1).max(initial=0.0)
        levels = [self._level(resource) for resource in range(2)]
        return max(background, float(alone), *levels)

    def _level(self, resource: int) -> float:
        """How full the nodes are of one resource if the total of what is needed could be divided at will."""
        capacity, used = self._capacity[:, resource], self._used[:, resource]
        wanted = float(self._needs[:, resource].sum())
        if wanted <= 0.0:
            return 0.0
        there = capacity > 0.0
        if not there.any():
            return math.inf
        capacity, used = capacity[there], used[there]
        order = np.argsort(used / capacity)
        capacities, uses = np.cumsum(capacity[order]), np.cumsum(used[order])
        # With the j emptiest nodes filled to a level, that level is right where the next node is fuller already.
        levels = (wanted + uses) / capacities
        following = np.append((used / capacity)[order][1:], np.inf)
        return float(levels[int(np.argmax(levels <= following))])

    def moved(self, now: Mapping[str, str]) -> tuple[str, ...]:
        """Workers that are elsewhere."""
        return tuple(worker for worker, node in self.named().items() if node != now[worker])

    def named(self) -> dict[str, str]:
        """Node of each worker."""
        return {w.worker: self._hosts[int(at)].node for w, at in zip(self._workers, self._at, strict=True)}

    def named_shares(self) -> dict[str, float]:
        """Share of each node."""
        shares = self._shares(self._held)
        return {host.node: float(share) for host, share in zip(self._hosts, shares, strict=True)}
