"""Words for a slow reduction: whose interface it is, which two ends can't be told apart, or what to record."""

from __future__ import annotations

from dataclasses import replace

from starprof.analysis.causes import ms
from starprof.analysis.findings import Context
from starprof.analysis.network.location import Location
from starprof.analysis.network.served import Users, users
from starprof.analysis.slowness import Slowness
from starprof.analysis.wire.base import WireCause
from starprof.analysis.words import bit_rate, confidence, when
from starprof.model import causes
from starprof.model.verdict import Finding


def network_finding(context: Context, slowness: Slowness) -> Finding:
    """The reduction takes longer for everybody."""
    place = slowness.place or Location()
    first = (
        f"The reduction itself takes {ms(slowness.after_us)} {when(context.comparison, slowness)} instead of "
        f"{ms(slowness.before_us)}; all ranks wait alike in it, so no rank is late."
    )
    base = replace(
        context.base(slowness),
        confidence=confidence(slowness, 1.0, False),
        verify=f"The waiting in collectives should fall back to {ms(slowness.before_us)} per step on all ranks.",
    )
    if slowness.wire is not None:
        return _by_counters(context, base, slowness.wire, place, first)
    if len(place.places) == 1:
        return _blamed_link(context, base, place, first)
    if len(place.places) == 2:
        return _two_ends(context, base, place, first)
    if place.switches:
        return _slow_switches(base, place, first)
    if place.all_alike:
        return replace(
            base,
            cause=causes.NETWORK_PATH,
            cause_share=1.0,
            evidence=(first, "All links between the nodes are slow alike: " + _link_words(place) + "."),
            action="Look at what all nodes share: the switch, the chosen interface (NCCL_SOCKET_IFNAME, "
            "GLOO_SOCKET_IFNAME), the transport, or more data per step.",
        )
    seen = "The sockets that were sampled show no slow link." if place.seen else "No sockets were sampled."
    return replace(
        base,
        cause=causes.UNKNOWN,
        evidence=(first, seen, *place.partly),
        action="Check whether the program communicates more from that step on (bucket size, extra collectives).",
        next="Measure the bandwidth of every pair of nodes (iperf3, nccl-tests) while the job runs slowly."
        if place.seen
        else "Record TCP and interface counters on every node to see whose link it is.",
    )


def _by_counters(context: Context, base: Finding, wire: WireCause, place: Location, first: str) -> Finding:
    same = place.slow is not None and not place.by_rank and place.places == wire.nodes
    lines = (first, *wire.evidence)
    if same:
        lines += (
            f"Only the sockets that touch {', '.join(context.hosts(list(wire.nodes)))} are slow as well: "
            f"{_link_words(place)}.",
        )
    return replace(
        base,
        cause=wire.cause,
        ranks=wire.ranks,
        nodes=context.hosts(list(wire.nodes)),
        cause_share=round(wire.share, 3),
        confidence=round(wire.certainty * base.confidence, 3),
        evidence=lines,
        action=wire.action,
        verify=f"{wire.verify} {base.verify}",
        next=wire.next,
    )


def _blamed_link(context: Context, base: Finding, place: Location, first: str) -> Finding:
    infos = context.own.infos
    where = place.places[0]
    hits = [i for i in infos if (i.rank if place.by_rank else i.node) == where]
    name = f"rank {where}" if place.by_rank else context.hosts([where])[0]
    lines = [first]
    if place.slow is not None:
        lines.append(f"Only the sockets that touch {name} are slow: {_link_words(place)}.")
    face = place.interface
    if face is not None and face.overlimits_per_s > 0:
        lines.append(
            f"{face.name} of {name} held packets back {face.overlimits_per_s:.0f} times a second with "
            f"{face.backlog_bytes / 1e3:.0f} kB waiting."
        )
    if face is not None and place.degraded:
        lines.append(
            f"{face.name} of {name} runs at {face.speed_mbit:.0f} Mbit/s with {face.errors_per_s:.1f} errors/s."
        )
    cause = causes.NIC_DEGRADED if place.degraded else causes.NIC_BANDWIDTH
    served = Users(tuple(sorted(i.rank for i in hits)))
    nic = _only_interface(place)
    if nic and not place.by_rank:
        served = users(infos, context.counters.rails, [(where, nic)], context.counters.host)
        lines += [f"Only its sockets on {nic} are slow, those on its other interfaces are not."] if place.rail else []
        lines += served.words
    return replace(
        base,
        cause=cause,
        ranks=served.ranks,
        nodes=context.hosts(sorted({i.node for i in hits})),
        cause_share=1.0 if place.slow is not None else 0.8,
        confidence=round((1.0 if place.slow is not None else 0.7) * served.certainty * base.confidence, 3),
        evidence=tuple(lines),
        action=f"Check {nic or 'the interface'} of {name}: traffic shaping, other transfers on it, cable, port and "
        "negotiated speed.",
    )


def _only_interface(place: Location) -> str:
    """The interface that is slow, by its sockets or by its own counters; "" where neither tells."""
    face = place.interface
    if place.rail or face is None:
        return place.rail
    return face.rail if face.overlimits_per_s > 0 or place.degraded else ""


def _slow_switches(base: Finding, place: Location, first: str) -> Finding:
    """The links that leave a switch, or those between two."""
    one = place.switches[0]
    if len(place.switches) == 1:
        where = f"Only links that leave {one} are slow, those below it and those between the others are not"
        action = f"Check {one} and its uplinks: errors, speed, congestion."
        more = ""
    else:
        both = " and ".join(place.switches)
        where = f"Only links between {both} are slow, those below each of them are not"
        action = f"Check the path between {both}: uplinks, routes, congestion."
        more = f"Test nodes below {both} with nodes below a third switch: the slow end stays slow."
    return replace(
        base,
        cause=causes.NETWORK_PATH,
        cause_share=1.0,
        evidence=(first, f"{where}: {_link_words(place)}."),
        action=action,
        next=more,
    )


def _two_ends(context: Context, base: Finding, place: Location, first: str) -> Finding:
    names = [f"rank {p}" for p in place.places] if place.by_rank else list(context.hosts(list(place.places)))
    third = (
        "a third node"
        if place.third is None
        else f"rank {place.third}"
        if place.by_rank
        else context.hosts([place.third])[0]
    )
    evidence = (first, f"The link between {names[0]} and {names[1]} is slow: {_link_words(place)}.")
    if place.path:
        return replace(
            base,
            cause=causes.NETWORK_PATH,
            cause_share=1.0,
            nodes=() if place.by_rank else tuple(names),
            evidence=(*evidence, "Both are quick with everybody else, so neither interface but the path is at fault."),
            action=f"Check the path between {names[0]} and {names[1]} (switch ports, routes), or place them elsewhere.",
        )
    return replace(
        base,
        cause=causes.UNKNOWN,
        nodes=() if place.by_rank else tuple(names),
        evidence=(*evidence, f"Whether {names[0]} or {names[1]} is at fault can't be told from this."),
        action=f"Check the interfaces of both {names[0]} and {names[1]}.",
        next=f"Test {names[0]} with {third}, and {names[1]} with {third}: the slow end stays slow.",
    )


def _link_words(place: Location) -> str:
    if place.slow is None:
        return ""
    words = f"round trip {ms(place.slow.rtt_us)} at a minimum of {ms(place.slow.min_rtt_us)}"
    if place.slow.bytes_per_s == place.slow.bytes_per_s:
        words += f", delivering {bit_rate(place.slow.bytes_per_s)}"
    if place.fast is not None:
        words += f"; the others' {ms(place.fast.rtt_us)}"
        if place.fast.bytes_per_s == place.fast.bytes_per_s:
            words += f" and {bit_rate(place.fast.bytes_per_s)}"
    elif place.slow.past_rtt_us == place.slow.past_rtt_us:
        words += f"; before it was {ms(place.slow.past_rtt_us)}"
    return words
