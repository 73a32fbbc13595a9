"""Moving a running parameter server, or parts of it, away from a node that has gone above its limit.

As few bytes as possible leave the node: the smallest parameter that is large enough alone, or several smaller ones, the
largest first, whichever is less. That is at most twice the least possible: if the best choice has a parameter that is
large enough alone, the smallest such is no larger; else all of its parameters are smaller than what must go, and adding
such ones until it is enough never takes more than twice of that. What is larger than any other node has room for stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starprof.decision.resources.amounts import LIMIT, Amount, bytes_words, share_words, time_words
from starprof.decision.resources.servers import ALMOST, Room, ServerLoad


@dataclass(frozen=True, slots=True)
class Move:
    """A parameter changes its node, between two updates, so that no update is lost.

    Attributes:
        parameter: which.
        source: node that has it.
        target: node that gets it.
        size_bytes: of the parameter and what belongs to it.
        seconds: that sending it takes at what both nodes have free; the server answers from the source meanwhile.
    """

    parameter: str
    source: str
    target: str
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class Relocation:
    """What is moved.

    Attributes:
        moves: in this order, each at the next boundary of an update; empty when nothing is moved.
        shares: of each node that is touched, afterwards.
        refused: why an overloaded node can't be relieved; "" when it can, or none is overloaded.
        steps: how the moves were found.
    """

    moves: tuple[Move, ...]
    shares: Mapping[str, float]
    refused: str
    steps: tuple[str, ...]


def relocate(
    rooms: Sequence[Room], load: ServerLoad, hosts: Mapping[str, str], limit: float = LIMIT, state_factor: float = 1.0
) -> Relocation:
    """Relieve the nodes that host a server and are above their limit.

    Args:
        rooms: all nodes, with what is used WITHOUT the server.
        load: what the server asks for.
        hosts: node of each parameter.
        limit: share of a node above which it is overloaded.
        state_factor: bytes to be sent per byte of a parameter, more than 1 with an optimizer's moments.
    """
    known = {room.node: room for room in rooms}
    stray = {node for node in hosts.values() if node not in known}
    if stray or set(hosts) != set(load.parameters):
        raise ValueError("every parameter must be on one of the nodes")
    held = dict.fromkeys(known, 0.0)
    for parameter, node in hosts.items():
        held[node] += load.parameters[parameter]
    state = _State(known, load, held, limit)
    moves: list[Move] = []
    steps: list[str] = []
    # A node that no shard is on may be as full as it likes: it is not the server that overloads it.
    for node in [n for n in known if held[n] > 0.0 and state.share(n) > limit / ALMOST]:
        before, excess, most = state.share(node), state.excess(node), state.most_room(node)
        mine = {p: load.parameters[p] for p, at in hosts.items() if at == node}
        chosen = _least(mine, excess, most)
        found = [] if chosen is None else state.moved(node, chosen, state_factor)
        if chosen is None or len(found) < len(chosen):
            why = (
                f"{node} is at {share_words(before)}, and no other node takes the {bytes_words(excess)} that would "
                f"have to leave it: the most room is {bytes_words(most)}"
            )
            return Relocation((), {}, why, (*steps, f"refuse: {why}"))
        moves += found
        told = ", ".join(f"{m.parameter} to {m.target} ({time_words(m.seconds)})" for m in found)
        steps.append(f"{node}: from {share_words(before)} to {share_words(state.share(node))}: {told}")
    touched = dict.fromkeys(node for move in moves for node in (move.source, move.target))
    return Relocation(tuple(moves), {node: state.share(node) for node in touched}, "", tuple(steps))


class _State:
    """What each node holds while moves are chosen."""

    def __init__(self, known: Mapping[str, Room], load: ServerLoad, held: Mapping[str, float], limit: float) -> None:
        self._known, self._load, self._limit = known, load, limit
        self._held = dict(held)

    def share(self, node: str, more_bytes: float = 0.0) -> float:
        """Of a node, with so many bytes more of the server."""
        return self._total(node, more_bytes).share_of(self._known[node].capacity)

    def _total(self, node: str, more_bytes: float) -> Amount:
        return self._known[node].used + self._load.of(self._held[node] + more_bytes)

    def excess(self, node: str) -> float:
        """Bytes that must leave a node: all of them, where even that is not enough."""
        return max(self._held[node] - self.room(node, empty=True), 0.0)

    def room(self, node: str, *, empty: bool = False) -> float:
        """Bytes that a node can take before it is at its limit."""
        one, known = self._load.of(1.0), self._known[node]
        spare = known.capacity.times(self._limit) - (known.used if empty else self._total(node, 0.0))
        sizes = [
            free / slope
            for free, slope in ((spare.cores, one.cores), (spare.bytes_per_s, one.bytes_per_s))
            if slope > 0.0 or free < 0.0
        ]
        return max(min(sizes, default=0.0), 0.0)

    def most_room(self, but: str) -> float:
        """Of any other node."""
        return max((self.room(node) for node in self._known if node != but), default=0.0)

    def moved(self, source: str, parameters: Sequence[str], state_factor: float) -> list[Move]:
        """Move parameters, the largest first, each to the node that is least full with it; as many as find a place."""
        moves = []
        for parameter in sorted(parameters, key=lambda p: -self._load.parameters[p]):
            size = self._load.parameters[parameter]
            target = min((n for n in self._known if n != source), key=lambda n: self.share(n, size), default=None)
            if target is None or self.share(target, size) > self._limit / ALMOST:
                break
            seconds = size * state_factor / self._spare_bytes_per_s(source, target)
            self._held[source] -= size
            self._held[target] += size
            moves.append(Move(parameter, source, target, size * state_factor, seconds))
        return moves

    def _spare_bytes_per_s(self, source: str, target: str) -> float:
        """What both have free; an overloaded source still sends at a tenth of its interface."""
        return min(
            max(
                self._known[node].capacity.bytes_per_s - self._total(node, 0.0).bytes_per_s,
                (1.0 - LIMIT) * self._known[node].capacity.bytes_per_s,
            )
            for node in (source, target)
        )


def _least(sizes: Mapping[str, float], excess: float, most_room: float) -> list[str] | None:
    """Parameters of at least `excess` bytes together, none larger than a room; None if there are not enough."""
    fits = sorted((p for p, size in sizes.items() if size <= most_room / ALMOST), key=lambda p: -sizes[p])
    alone = [p for p in fits if sizes[p] >= excess * ALMOST]
    several: list[str] = []
    for parameter in (p for p in fits if sizes[p] < excess * ALMOST):
        if sum(sizes[p] for p in several) >= excess * ALMOST:
            break
        several.append(parameter)
    for parameter in list(several):
        if sum(sizes[p] for p in several) - sizes[parameter] >= excess * ALMOST:
            several.remove(parameter)
    enough = sum(sizes[p] for p in several) >= excess * ALMOST
    if alone and (not enough or sizes[alone[-1]] <= sum(sizes[p] for p in several)):
        return [alone[-1]]
    return several if enough else None
