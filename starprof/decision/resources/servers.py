"""Where a parameter server goes: on the node that it loads least, and on several when none has room for it alone.

The share of a node that a server takes is the larger of two: `(cpu_used + cpu_server) / cpu_capacity` and
`(bandwidth_used + N * 2 * model_bytes / t_iter) / bandwidth_capacity` (arXiv 2512.09685): each of N workers pushes a
gradient and pulls parameters once an iteration. Above the limit the server is sharded, the largest parameter first,
each to the node that is left with the most room.

How good that is: with k nodes the fullest is no fuller than it would be if parameters could be divided at will and
the model were `(k - 1) * largest parameter` larger. For when the last parameter went to the fullest node, every other
one would have been as full with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.decision.resources.amounts import LIMIT, Amount, bytes_words, share_words

Floats = NDArray[np.float64]

ALMOST = 1.0 - 1e-12
"""Rounding."""

GROWTH = 8
"""Shards are tried in steps of an eighth of their number, of one while they are few."""


@dataclass(frozen=True, slots=True)
class Room:
    """A node that could host a server or a part of it: its name, what it has, and what is used without the server."""

    node: str
    capacity: Amount
    used: Amount


@dataclass(frozen=True)
class ServerLoad:
    """What a parameter server asks for, as a whole.

    Attributes:
        parameters: bytes of each parameter, by name; a parameter is never divided.
        workers: that push to it and pull from it.
        iteration_s: time of an iteration.
        cores: that it needs for sums and updates.
    """

    parameters: Mapping[str, float]
    workers: int
    iteration_s: float
    cores: float

    def __post_init__(self) -> None:
        if not self.parameters or self.workers < 1 or not 0.0 < self.iteration_s < math.inf or not self.cores >= 0.0:
            raise ValueError("a server needs parameters, workers, and an iteration time above 0")
        if not all(0.0 < size < math.inf for size in self.parameters.values()):
            raise ValueError("the size of a parameter must be above 0")

    @property
    def model_bytes(self) -> float:
        """All parameters together."""
        return float(sum(self.parameters.values()))

    def of(self, size_bytes: float) -> Amount:
        """What the server of so many bytes of the model asks for."""
        part = size_bytes / self.model_bytes
        return Amount(self.cores * part, 2.0 * self.workers * size_bytes / self.iteration_s)


@dataclass(frozen=True)
class ServerPlan:
    """Where a server goes.

    Attributes:
        shards: parameters of each chosen node; empty when it is refused.
        shares: of each chosen node's capacity, with its shard on it.
        runner_up: the second best node for the whole server, "" where there is none.
        bound: the fullest node can't be fuller than this.
        refused: why there is no place for it; "" when there is.
        steps: how it was found.
    """

    shards: Mapping[str, tuple[str, ...]]
    shares: Mapping[str, float]
    runner_up: str
    bound: float
    refused: str
    steps: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the fullest of the chosen nodes."""
        return max(self.shares.values(), default=math.inf)


def place_server(rooms: Sequence[Room], load: ServerLoad, limit: float = LIMIT) -> ServerPlan:
    """Choose the node, or the nodes, for a server.

    Args:
        rooms: nodes that could host it, at least one.
        load: what it asks for.
        limit: share of a node above which it is overloaded.
    """
    if not rooms:
        raise ValueError("no node is there to choose from")
    nodes = _Nodes(rooms, load)
    whole = nodes.shares(np.full(len(rooms), load.model_bytes))
    order = np.argsort(whole, kind="stable")
    best = int(order[0])
    runner_up = rooms[int(order[1])].node if len(rooms) > 1 else ""
    steps = [
        f"whole: {load.of(load.model_bytes).words} for {bytes_words(load.model_bytes)} and {load.workers} workers; "
        f"{rooms[best].node} would be at {share_words(float(whole[best]))}"
        + (f", {runner_up} at {share_words(float(whole[order[1]]))}" if runner_up else "")
    ]
    if whole[best] <= limit:
        share = float(whole[best])
        shards = {rooms[best].node: tuple(load.parameters)}
        return ServerPlan(shards, {rooms[best].node: share}, runner_up, share, "", tuple(steps))
    return _sharded(rooms, nodes, load, limit, runner_up, steps)


class _Nodes:
    """The nodes as arrays, shape (K,)."""

    def __init__(self, rooms: Sequence[Room], load: ServerLoad) -> None:
        one = load.of(1.0)
        self._used = np.array([[r.used.cores, r.used.bytes_per_s] for r in rooms])
        self._capacity = np.array([[r.capacity.cores, r.capacity.bytes_per_s] for r in rooms])
        self._slope = np.array([one.cores, one.bytes_per_s])

    @property
    def count(self) -> int:
        """How many."""
        return len(self._used)

    def shares(self, sizes: Floats) -> Floats:
        """Share of each node with so many bytes of the model on it."""
        wanted = self._used + sizes[:, None] * self._slope
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shares = np.where(self._capacity > 0.0, wanted / self._capacity, np.where(wanted > 0.0, np.inf, 0.0))
        largest: Floats = shares.max(axis=1)
        return largest

    def room(self, limit: float) -> Floats:
        """Bytes of the model that each node can take before it is at a limit."""
        spare = np.maximum(limit * self._capacity - self._used, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            sizes = np.where(self._slope > 0.0, spare / self._slope, np.inf)
        # A node that is too full already for something the server hardly needs has no room all the same.
        over = (self._used > limit * self._capacity).any(axis=1)
        least: Floats = np.where(over, 0.0, sizes.min(axis=1))
        return least

    def among(self, chosen: NDArray[np.int64]) -> _Nodes:
        """Some of them."""
        some = _Nodes.__new__(_Nodes)
        some._used, some._capacity, some._slope = self._used[chosen], self._capacity[chosen], self._slope
        return some


def _sharded(
    rooms: Sequence[Room], nodes: _Nodes, load: ServerLoad, limit: float, runner_up: str, steps: list[str]
) -> ServerPlan:
    """On as few nodes as possible: those with the most room."""
    names = sorted(load.parameters, key=lambda name: -load.parameters[name])
    sizes = np.array([load.parameters[name] for name in names])
    room = nodes.room(limit)
    order = np.argsort(-room, kind="stable")
    why = _hopeless(rooms[int(order[0])].node, room, names[0], load, limit)
    if why:
        return ServerPlan({}, {}, runner_up, math.inf, why, (*steps, f"refuse: {why}"))
    usable = int((room > 0.0).sum())
    count = int(np.argmax(np.cumsum(room[order]) >= load.model_bytes * ALMOST)) + 1
    while True:
        some = nodes.among(order[:count])
        taken = _largest_first(some, sizes)
        filled = some.shares(np.bincount(taken, weights=sizes, minlength=count).astype(np.float64))
        if float(filled.max()) <= limit / ALMOST:
            break
        steps.append(f"shard: {count} nodes would be at up to {share_words(float(filled.max()))}")
        if count >= usable:
            why = f"no division that was tried stays below {share_words(limit)} on the {usable} nodes with any room"
            return ServerPlan({}, {}, runner_up, math.inf, why, (*steps, f"refuse: {why}"))
        count = min(usable, count + max(1, count // GROWTH))
    held = {int(place): tuple(names[at] for at in np.flatnonzero(taken == place)) for place in np.unique(taken)}
    shards = {rooms[int(order[place])].node: parameters for place, parameters in held.items()}
    shares = {rooms[int(order[place])].node: float(filled[place]) for place in held}
    steps.append(
        f"shard: {len(names)} parameters, the largest first, over {len(shards)} nodes: up to "
        f"{share_words(max(shares.values()))}; divided at will it would be "
        f"{share_words(_level(some, load.model_bytes))}"
    )
    bound = _level(some, load.model_bytes + (count - 1) * float(sizes[0]))
    return ServerPlan(shards, shares, runner_up, bound, "", tuple(steps))


def _hopeless(roomiest: str, room: Floats, largest: str, load: ServerLoad, limit: float) -> str:
    """Why no division can be found, as far as that is plain; "" if it is not."""
    most, whole = float(room.max()), float(room.sum())
    if whole < load.model_bytes * ALMOST:
        return (
            f"at {share_words(limit)} all {len(room)} nodes together have room for {bytes_words(whole)} of the "
            f"{bytes_words(load.model_bytes)}: use larger or more nodes, or fewer workers"
        )
    if most < load.parameters[largest] * ALMOST:
        return (
            f"parameter {largest} has {bytes_words(load.parameters[largest])}, and the node with the most room, "
            f"{roomiest}, takes {bytes_words(most)} at {share_words(limit)}"
        )
    return ""


def _largest_first(nodes: _Nodes, sizes: Floats) -> NDArray[np.int64]:
    """Which node takes each parameter: the one that is least full with it."""
    held = np.zeros(nodes.count)
    taken = np.zeros(len(sizes), np.int64)
    for at, size in enumerate(sizes):
        place = int(np.argmin(nodes.shares(held + size)))
        held[place] += size
        taken[at] = place
    return taken


def _level(nodes: _Nodes, size_bytes: float) -> float:
    """How full the nodes are when so many bytes of the model are divided at will, by bisection."""
    low, high = 0.0, max(1.0, float(nodes.shares(np.full(nodes.count, size_bytes)).max()))
    if not math.isfinite(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if float(nodes.room(middle).sum()) >= size_bytes else (middle, high)
    return high
