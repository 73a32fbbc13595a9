"""Slow links between nodes put down to the switches above them, where these were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from starprof.analysis.machine import Machine
from starprof.analysis.network.links import Pair

TOUCHED_SHARE = 0.7
EXPLAINED_SHARE = 0.9

Explaining = Callable[[Set[Pair], Set[Pair]], list[int]]


def slow_switches(
    seen: Set[Pair], slow: Set[Pair], above: Mapping[int, Machine], explaining: Explaining
) -> tuple[str, ...]:
    """Names of the switches whose links upwards alone explain the slow links: one, or the two ends of one path.

    Args:
        seen: pairs of nodes whose links were seen.
        slow: those that are slow.
        above: what is known of each node.
        explaining: places that alone explain bad pairs, from pairs of places and the bad ones.
    """
    nodes = {node for pair in seen for node in pair}
    depths = [len(above[node].levels) if node in above else 0 for node in nodes]
    for depth in reversed(range(min(depths, default=0))):
        keys = sorted({above[node].levels[depth].key for node in nodes})
        number = {node: keys.index(above[node].levels[depth].key) for node in nodes}
        found = _at_one_level(seen, slow, number, explaining)
        if found:
            names = {number[node]: above[node].levels[depth] for node in nodes}
            return tuple(f"{names[place].kind} {names[place].name}" for place in found)
    return ()


def _at_one_level(
    seen: Set[Pair], slow: Set[Pair], number: Mapping[int, int], explaining: Explaining
) -> tuple[int, ...]:
    """Switches of one level, by number; empty when the slow links do not follow them."""
    between: dict[Pair, list[bool]] = {}
    for pair in seen:
        first, second = sorted((number[pair[0]], number[pair[1]]))
        between.setdefault((first, second), []).append(pair in slow)
    crossing = {pair: bad for pair, bad in between.items() if pair[0] != pair[1]}
    bad = {pair for pair, links in crossing.items() if sum(links) >= TOUCHED_SHARE * len(links)}
    covered = sum(sum(crossing[pair]) for pair in bad)
    if not bad or covered < EXPLAINED_SHARE * len(slow) or covered == len(seen):
        return ()
    places = explaining(set(crossing), bad)
    return tuple(places) if len(places) in (1, 2) else ()
