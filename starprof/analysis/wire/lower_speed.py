"""An interface runs at a lower speed (or with fewer lanes) than before and than the same one of the other nodes."""

from __future__ import annotations

from starprof.analysis.causes.contrast import Contrast
from starprof.analysis.wire.base import Port, WireCase, WireCause, among_nodes, behind, minority
from starprof.analysis.words import bit_rate
from starprof.model import causes

LOWER = 0.75
MIN_TRAFFIC_SHARE = 0.2
"""Of what the node's busiest interface moves: eight of them carry an eighth of the node's bytes each."""

MIN_SIBLINGS = 2
BYTES = ("tx_bytes", "rx_bytes")
ERRORS = ("rx_errors", "tx_errors")
MIN_ERRORS_PER_S = 1.0
OUTSTANDING = 5.0
MBIT_BYTES = 125_000.0


def explain(case: WireCase) -> WireCause | None:
    """Interfaces that carry traffic and are slower than usual; errors support it."""
    odd = [(port, speed) for port in case.ports if (speed := _lower(case, port)) is not None]
    nodes = sorted({port.node for port, _ in odd})
    if not minority(case, nodes):
        return None
    port, speed = max(odd, key=lambda each: each[1].usual_low / each[1].now)
    ratio = speed.now / speed.usual_low
    located = tuple(nodes) == case.place.places and not case.place.by_rank and case.place.slow is not None
    # A transfer bound by the link takes at least so much longer; latency and queues come on top.
    covered = case.before_us * (1.0 / ratio - 1.0) / case.rise_us if case.rise_us > 0 else _bound(case, port, speed.now)
    errors = case.rate(port, ERRORS)
    served = behind(case, [each for each, _ in odd])
    with_errors = f" and {errors:.1f} errors/s" if errors >= MIN_ERRORS_PER_S else ""
    return WireCause(
        cause=causes.NIC_DEGRADED,
        nodes=tuple(nodes),
        ranks=served.ranks,
        share=1.0 if located else min(1.0, covered),
        certainty=served.certainty,
        evidence=(
            f"{port.name} of {case.host(port.node)} runs at {speed.now:.0f} Mbit/s{with_errors} "
            f"({_references(speed)}); it carries {bit_rate(case.rate(port, ('tx_bytes',)))}.",
            *served.words,
        ),
        action=f"Check cable, connector, switch port and negotiated speed and lanes of {port.name} on "
        f"{case.hosts(nodes)} (ethtool, ibstat), or leave the node out.",
        verify="At its full speed the reduction must be as fast as before; if it is not, the speed was not the cause.",
        remaining=ratio,
    )


def _bound(case: WireCase, port: Port, speed_mbit: float) -> float:
    """Share of the reduction that its bytes alone take at the port's speed: without a past, whether it is the limit."""
    start, end = case.windows.slow_ns(case.row_of(port.node))
    steps = case.windows.slow[1] - case.windows.slow[0]
    sent = max(case.rate(port, (name,)) for name in BYTES) * (end - start) / 1e9
    at_line_rate_s, reduced_s = sent / (speed_mbit * MBIT_BYTES), steps * case.after_us / 1e6
    return min(1.0, at_line_rate_s / reduced_s) if reduced_s > 0 else 0.0


def _references(speed: Contrast) -> str:
    return speed.words(lambda value: f"{value:.0f} Mbit/s").replace("its peers", "others of its kind")


def _lower(case: WireCase, port: Port) -> Contrast | None:
    """Speed of an interface that carries a good part of its node's bytes and is lower than all references."""
    mine = case.rate(port, BYTES)
    most = max((b for p in case.ports if p.node == port.node and (b := case.rate(p, BYTES)) == b), default=0.0)
    if not mine >= MIN_TRAFFIC_SHARE * max(most, 1.0):
        return None
    others = [case.gauge(p, "speed_mbit") for p in case.ports if p.name == port.name and p.node != port.node]
    if not others:
        siblings = [p for p in case.ports if p.node == port.node and p.type == port.type and p.name != port.name]
        others = [case.gauge(p, "speed_mbit") for p in siblings] if len(siblings) >= MIN_SIBLINGS else []
    speed = among_nodes(case.gauge(port, "speed_mbit"), case.gauge(port, "speed_mbit", past=True), others)
    return speed if speed.known and 0 < speed.now < LOWER * speed.usual_low else None
