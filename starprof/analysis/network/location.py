"""Whose network is slow: intersect the end points of the slow sockets, then look at the interfaces.

When the reduction takes longer for everybody, no step record can tell whose link it is. The ranks' sockets can: a
slow interface makes all sockets that touch its node slow and leaves the others alone. With two nodes both ends look
alike; then only the interfaces' own counters (held-back packets, speed, errors) can decide, and if they do not, the
answer is which two nodes, and what to test next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from starprof.analysis.counters import Counters
from starprof.analysis.machine import machines
from starprof.analysis.network.links import (
    Interface,
    Link,
    Pair,
    Windows,
    interface,
    links,
    rail_links,
    rail_names,
)
from starprof.analysis.network.switches import slow_switches

SLOW_RTT_US = 1_000.0
SLOW_RTT_FACTOR = 5.0
QUEUED_FACTOR = 10.0
TOUCHED_SHARE = 0.7
EXPLAINED_SHARE = 0.9
MIN_OVERLIMITS_PER_S = 2.0
OUTSTANDING_FACTOR = 4.0
LOWER_SPEED = 0.75
MIN_ERRORS_PER_S = 1.0


@dataclass(frozen=True)
class Location:
    """Where the slow link is.

    Attributes:
        places: nodes (ranks in a one-node run) to blame: one when it is clear, two when they can't be told apart.
        by_rank: places are ranks.
        seen: sockets were seen.
        all_alike: every link is slow, so no place stands out.
        path: both places are fine with everybody else: the path between the two is slow.
        slow: typical figures of the slow links.
        fast: typical figures of the others.
        interface: counters of the blamed node's interface where they stand out.
        degraded: the interface runs at a lower speed or with errors.
        third: a place to test the two against.
        rail: the only interface of the blamed node whose sockets are slow, "" where that can't be told.
        switches: the recorded switch whose links upwards are slow, or the two ends of a slow path between switches.
        partly: what counters show that covers a part of the slowness only, in words.
    """

    places: tuple[int, ...] = ()
    by_rank: bool = False
    seen: bool = False
    all_alike: bool = False
    path: bool = False
    slow: Link | None = None
    fast: Link | None = None
    interface: Interface | None = None
    degraded: bool = False
    third: int | None = None
    rail: str = ""
    switches: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()


def locate(windows: Windows, counters: Counters) -> Location:
    """Find the place whose links are slow in the window."""
    nodes = sorted({info.node for info in windows.own.infos})
    by_rank = len(nodes) == 1
    seen = links(windows, counters, by_rank)
    faces = {} if by_rank else {n: f for n in nodes if (f := interface(windows, counters, n)) is not None}
    standing_out = _interfaces_standing_out(faces)
    slow = slow_pairs(seen)
    if not slow:
        # Sockets are sampled once a second: a burst may escape them, an interface's own counters do not.
        only = standing_out[0] if len(standing_out) == 1 else None
        return Location((), seen=bool(seen)) if only is None else _found((only,), by_rank, seen, slow, faces)
    touching = explaining(seen, slow)
    among = [n for n in standing_out if n in (touching or _ends(slow))]
    if len(touching) == 1 or len(among) == 1:
        only = touching[0] if len(touching) == 1 else among[0]
        found = _found((only,), by_rank, seen, slow, faces)
        return found if by_rank else replace(found, rail=_slow_rail(windows, counters, only))
    switches = () if by_rank else slow_switches(set(seen), slow, machines(counters.run), explaining_pairs)
    if switches:
        fast = [link for pair, link in seen.items() if pair not in slow]
        typical = _typical([seen[p] for p in slow])
        return Location(seen=True, switches=switches, slow=typical, fast=_typical(fast) if fast else None)
    if len(touching) == 2 or len(slow) == 1:
        return _found(tuple(touching) if len(touching) == 2 else next(iter(slow)), by_rank, seen, slow, faces)
    return Location(
        by_rank=by_rank,
        seen=True,
        all_alike=len(slow) >= EXPLAINED_SHARE * len(seen),
        slow=_typical([seen[p] for p in slow]),
    )


def _slow_rail(windows: Windows, counters: Counters, node: int) -> str:
    """The one interface of a node whose sockets are slow while those of its others are not."""
    by_rail = rail_links(windows, counters, node)
    slow = slow_pairs(by_rail)
    if len(slow) != 1 or len(by_rail) < 2:
        return ""
    return rail_names(counters, node)[next(iter(slow))[0]]


def slow_pairs(seen: Mapping[Pair, Link]) -> set[Pair]:
    """Links whose packets queue: the round trip is far above its own minimum AND its past (else the other links)."""
    if not seen:
        return set()
    quickest = float(np.min([link.rtt_us for link in seen.values()]))
    return {
        pair
        for pair, link in seen.items()
        if link.rtt_us >= max(SLOW_RTT_US, QUEUED_FACTOR * _or(link.min_rtt_us, 0.0))
        and link.rtt_us >= SLOW_RTT_FACTOR * _or(link.past_rtt_us, _others(quickest, link, seen))
    }


def _others(quickest: float, link: Link, seen: Mapping[Pair, Link]) -> float:
    """Round trip to compare with where there is no past: the quickest link's, or the own minimum of an only link."""
    return quickest if len(seen) > 1 and quickest < link.rtt_us else _or(link.min_rtt_us, np.inf)


def explaining(seen: Mapping[Pair, Link], slow: set[Pair]) -> list[int]:
    """Places that alone explain the slow links."""
    return explaining_pairs(set(seen), slow)


def explaining_pairs(seen: Set[Pair], slow: Set[Pair]) -> list[int]:
    """Places that alone explain the bad pairs: nearly all of their own are bad, nearly none is without them."""
    result = []
    for place in _ends(slow):
        own = [pair for pair in seen if place in pair]
        mine = [pair for pair in slow if place in pair]
        if len(mine) >= TOUCHED_SHARE * len(own) and len(mine) >= EXPLAINED_SHARE * len(slow):
            result.append(place)
    return result


def _ends(pairs: Set[Pair]) -> list[int]:
    return sorted({place for pair in pairs for place in pair})


def _interfaces_standing_out(faces: Mapping[int, Interface]) -> list[int]:
    """Nodes whose interface holds packets back, or is slower or worse than usual and than the others."""
    return [node for node, face in faces.items() if _holds_back(node, faces) or is_degraded(face, node, faces)]


def _holds_back(node: int, faces: Mapping[int, Interface]) -> bool:
    face = faces[node]
    others = [f.overlimits_per_s for n, f in faces.items() if n != node]
    usual = [face.usual_overlimits_per_s] if face.usual_overlimits_per_s == face.usual_overlimits_per_s else []
    reference = max([*others, *usual, 0.0])
    return face.overlimits_per_s >= max(MIN_OVERLIMITS_PER_S, OUTSTANDING_FACTOR * reference)


def is_degraded(face: Interface, node: int, faces: Mapping[int, Interface]) -> bool:
    """Lower link speed than before or than the other nodes, or errors that the others and the past do not have."""
    others = [f for n, f in faces.items() if n != node]
    speeds = [f.speed_mbit for f in others if f.speed_mbit == f.speed_mbit]
    usual = _or(face.usual_speed_mbit, float(np.median(speeds)) if speeds else float("nan"))
    slower = bool(face.speed_mbit < LOWER_SPEED * usual)
    reference = max([f.errors_per_s for f in others] + [_or(face.usual_errors_per_s, 0.0), 0.0])
    return slower or face.errors_per_s >= max(MIN_ERRORS_PER_S, OUTSTANDING_FACTOR * reference)


def _found(
    places: tuple[int, ...], by_rank: bool, seen: Mapping[Pair, Link], slow: set[Pair], faces: Mapping[int, Interface]
) -> Location:
    fast = [link for pair, link in seen.items() if pair not in slow]
    face = faces.get(places[0]) if len(places) == 1 else None
    third = next((p for p in _ends(set(seen)) if p not in places), None)
    both_fine = len(places) == 2 and all(any(p in q for q in seen if q not in slow) for p in places)
    return Location(
        places=places,
        by_rank=by_rank,
        seen=bool(seen),
        path=both_fine,
        slow=_typical([seen[p] for p in slow]) if slow else None,
        fast=_typical(fast) if fast else None,
        interface=face,
        degraded=face is not None and is_degraded(face, places[0], faces),
        third=third,
    )


def _typical(found: Sequence[Link]) -> Link:
    """Medians over links."""
    columns = np.array([(f.rtt_us, f.min_rtt_us, f.bytes_per_s, f.past_rtt_us) for f in found])
    medians = [float(np.median(c[~np.isnan(c)])) if (~np.isnan(c)).any() else float("nan") for c in columns.T]
    return Link(*medians)


def _or(value: float, default: float) -> float:
    return default if value != value else value
