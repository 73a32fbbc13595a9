"""Packets are lost: segments are sent again, or interfaces drop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starprof.analysis.causes.base import pct
from starprof.analysis.network.links import Pair, interface, sockets
from starprof.analysis.network.location import MIN_OVERLIMITS_PER_S, explaining_pairs
from starprof.analysis.network.served import Users
from starprof.analysis.wire.base import Port, WireCase, WireCause, among_nodes, behind, minority, ranks_on
from starprof.model import causes

if TYPE_CHECKING:
    import pandas as pd

SEGMENT_BYTES = 1448.0
MIN_SENT_AGAIN = 0.005
MIN_SENT_AGAIN_PER_S = 1.0
OUTSTANDING = 4.0
MIN_DROPS_PER_S = 1.0
MIN_DROPPED = 1e-4
"""Dropped share of the packets: hosts count a few unknown protocols as drops all the time."""

ON_ONE = 0.8
"""Share of a node's drops that one interface must have to be the one that drops."""

DROPS = ("rx_dropped", "tx_dropped", "qdisc_backlog_drops")


def explain(case: WireCase) -> WireCause | None:
    """Links that send much again, and not before; the interfaces' drop counters say where, when they count any."""
    if any(_held_back(case, node) for node in case.nodes):
        return None  # on purpose: what is dropped then follows from the shaping
    seen = _sent_again(case)
    lossy = {pair for pair, (now, past) in seen.items() if now >= max(MIN_SENT_AGAIN, OUTSTANDING * past)}
    dropping = _dropping(case)
    if not lossy and not dropping:
        return None
    places = explaining_pairs(set(seen), lossy) if lossy else []
    nodes = dropping if len(dropping) == 1 else places if len(places) == 1 else []
    ends = sorted({node for pair in lossy for node in pair}) if len(places) == 2 else []
    apart = minority(case, nodes)
    where = tuple(nodes) if apart else tuple(ends)
    port = _dropping_port(case, nodes[0]) if apart and len(dropping) == 1 else None
    served = behind(case, [port]) if port is not None else Users(ranks_on(case, nodes))
    return WireCause(
        cause=causes.PACKET_LOSS,
        nodes=where,
        ranks=served.ranks if apart else (),
        share=1.0,
        certainty=0.8 * served.certainty,
        evidence=(*_lossy_words(case, seen, lossy), _drop_words(case, dropping), *served.words),
        action=f"Check {_named(port) + case.hosts(where) if where else 'the network between the nodes'}: ring "
        "buffers, cable and optics, switch port counters, flow control, MTU.",
        verify="Without retransmissions and drops the reduction must be as fast as before; if it is not, loss was not "
        "the cause.",
        next=f"Test {case.hosts(ends[:1])} and {case.hosts(ends[1:])} each with a third node: the bad end stays bad."
        if len(ends) == 2 and not apart
        else "",
    )


def _named(port: Port | None) -> str:
    return "the interfaces of " if port is None else f"{port.name} of "


def _dropping_port(case: WireCase, node: int) -> Port | None:
    """The interface that drops nearly all that its node does; None when they are several."""
    drops = {port.name: _port_drops(case, port) for port in case.ports if port.node == node}
    whole = sum(value for value in drops.values() if value == value)
    return next((p for p in case.ports if p.node == node and drops[p.name] >= ON_ONE * whole > 0), None)


def _port_drops(case: WireCase, port: Port) -> float:
    """What a port drops per second more than before; NaN when it does not count drops."""
    now, past = case.rate(port, DROPS), case.rate(port, DROPS, past=True)
    return max(0.0, now - past) if past == past else now


def _held_back(case: WireCase, node: int) -> bool:
    """Whether any interface of a node is shaped, virtual ones of containers included."""
    face = interface(case.windows, case.counters, node)
    return face is not None and face.overlimits_per_s >= MIN_OVERLIMITS_PER_S


def _sent_again(case: WireCase) -> Mapping[Pair, tuple[float, float]]:
    """Share of the segments sent again per pair of nodes: in the slow window, and before (0 without a past)."""
    if not (case.counters.has("tcp_sample") and case.counters.has("tcp")):
        return {}
    result: dict[Pair, tuple[float, float]] = {}
    for pair, node, rows in sockets(case.counters, by_rank=False):
        if node not in case.nodes:
            continue
        now, past = (_share(case, rows, case.span(node, before)) for before in (False, True))
        known = result.get(pair, (0.0, 0.0))
        result[pair] = (max(known[0], now), max(known[1], past))
    return result


def _share(case: WireCase, rows: pd.DataFrame, span: tuple[float, float] | None) -> float:
    if span is None:
        return 0.0
    again = case.counters.grew(rows, "retransmits", *span).per_second
    sent = case.counters.grew(rows, "acked_bytes", *span).per_second / SEGMENT_BYTES
    return again / sent if again >= MIN_SENT_AGAIN_PER_S and sent > 0 else 0.0


def _dropping(case: WireCase) -> list[int]:
    """Nodes whose interfaces drop more than before and than the other nodes'."""
    rates = {node: _drops(case, node, False) for node in case.nodes}
    found = []
    for node, now in rates.items():
        others = [value for other, value in rates.items() if other != node]
        drops = among_nodes(now, _drops(case, node, True), others)
        enough = max(MIN_DROPS_PER_S, MIN_DROPPED * _packets(case, node), OUTSTANDING * drops.usual_high)
        # Without a past a node that always drops some is no news unless its sockets are the slow ones.
        if drops.known and now >= enough and (drops.past == drops.past or case.place.places == (node,)):
            found.append(node)
    return found


def _packets(case: WireCase, node: int) -> float:
    """Packets per second through a node's interfaces; 0 when they are not counted."""
    rates = [case.rate(port, ("rx_packets", "tx_packets")) for port in case.ports if port.node == node]
    return float(sum(value for value in rates if value == value))


def _drops(case: WireCase, node: int, past: bool) -> float:
    rates = [case.rate(port, DROPS, past) for port in case.ports if port.node == node]
    known = [value for value in rates if value == value]
    return float(sum(known)) if known else float("nan")


def _lossy_words(case: WireCase, seen: Mapping[Pair, tuple[float, float]], lossy: set[Pair]) -> tuple[str, ...]:
    if not lossy:
        return ()
    worst = max(lossy, key=lambda pair: seen[pair][0])
    return (
        f"Between {case.host(worst[0])} and {case.host(worst[1])} {pct(seen[worst][0])} of the segments were sent "
        f"again (before: {pct(seen[worst][1])}); {len(lossy)} of {len(seen)} links lose so much.",
    )


def _drop_words(case: WireCase, dropping: list[int]) -> str:
    if dropping:
        rates = ", ".join(f"{case.host(node)} {_drops(case, node, False):.0f}/s" for node in dropping)
        return f"Interfaces drop packets: {rates}."
    counted = [value for node in case.nodes if (value := _drops(case, node, False)) == value]
    if counted:
        return "The nodes' own interfaces count no more drops than usual: what is lost is lost between them."
    return "The interfaces' drop counters were not collected."
