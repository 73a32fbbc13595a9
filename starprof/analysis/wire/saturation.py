"""An interface at its line rate: by the job itself, or by somebody else's traffic that shares it."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.analysis.causes.base import pct
from starprof.analysis.wire.base import Port, WireCase, WireCause, minority
from starprof.analysis.words import bit_rate
from starprof.model import causes

FULL = 0.85
FOREIGN = 0.5
MBIT_BYTES = 125_000.0
OWN_COUNTERS = {"tx_bytes": "acked_bytes", "rx_bytes": "received_bytes"}


@dataclass(frozen=True)
class _Full:
    """A full interface: its direction, its rate, and what the job's own sockets moved on that node."""

    port: Port
    direction: str
    bytes_per_s: float
    own_per_s: float
    usual_per_s: float

    @property
    def foreign(self) -> float:
        """Share of the traffic that is not the job's; NaN when its sockets were not sampled."""
        return 1.0 - self.own_per_s / self.bytes_per_s


def explain(case: WireCase) -> WireCause | None:
    """Full interfaces: shared with others when the job's sockets moved the smaller part of the bytes."""
    full = [found for port in case.ports if (found := _full(case, port)) is not None]
    shared = [f for f in full if f.foreign >= FOREIGN and not f.usual_per_s >= FULL * f.bytes_per_s]
    if shared:
        return _shared(case, shared)
    return _own(case, full)


def _shared(case: WireCase, shared: list[_Full]) -> WireCause:
    nodes = sorted({f.port.node for f in shared})
    worst = max(shared, key=lambda f: f.foreign)
    word = "sends" if worst.direction == "tx_bytes" else "receives"
    return WireCause(
        cause=causes.SHARED_NIC,
        nodes=tuple(nodes),
        ranks=(),
        share=1.0,
        certainty=0.9,
        evidence=(
            f"{worst.port.name} of {case.host(worst.port.node)} {word} {bit_rate(worst.bytes_per_s)}, its line rate; "
            f"the job's own sockets there account for {bit_rate(worst.own_per_s)}: {pct(worst.foreign)} is somebody "
            "else's.",
        ),
        action=f"Find what else uses {worst.port.name} on {case.hosts(nodes)} (backup, data staging, another job; "
        "ss -ti, nethogs), and move it to another interface or time.",
        verify="Without that traffic the reduction must be as fast as before; if it is not, sharing was not the cause.",
    )


def _own(case: WireCase, full: list[_Full]) -> WireCause | None:
    """Every node's interface is full of the job's own traffic: it communicates more than the network carries."""
    nodes = {f.port.node for f in full}
    if nodes != set(case.nodes) or minority(case, sorted(nodes)):
        return None
    one = full[0]
    grown = one.usual_per_s == one.usual_per_s and one.bytes_per_s > 1.5 * one.usual_per_s
    more = f", before it was {bit_rate(one.usual_per_s)}" if grown else ""
    return WireCause(
        cause=causes.NIC_BANDWIDTH,
        nodes=(),
        ranks=(),
        share=1.0,
        certainty=0.9,
        evidence=(
            f"The interfaces of all {len(nodes)} nodes are at their line rate ({one.port.name} of "
            f"{case.host(one.port.node)}: {bit_rate(one.bytes_per_s)} of {case.gauge(one.port, 'speed_mbit'):.0f} "
            f"Mbit/s{more}): the job communicates as much as they carry; no node stands out.",
        ),
        action="Communicate less (gradient accumulation, compression, fewer extra collectives, larger buckets) or over "
        "a faster network.",
        verify="With fewer bytes per step the reduction must become shorter in proportion.",
    )


def _full(case: WireCase, port: Port) -> _Full | None:
    speed = case.gauge(port, "speed_mbit")
    best: _Full | None = None
    for direction, own in OWN_COUNTERS.items():
        moved = case.rate(port, (direction,))
        if moved >= FULL * speed * MBIT_BYTES and (best is None or moved > best.bytes_per_s):
            mine = float("nan") if port.type == "infiniband" else _of_the_job(case, port.node, own)
            best = _Full(port, direction, moved, mine, case.rate(port, (direction,), past=True))
    return best


def _of_the_job(case: WireCase, node: int, column: str) -> float:
    """Bytes per second that the ranks' sockets on a node moved; NaN when they were not sampled."""
    span = case.span(node)
    series = case.counters.series("tcp_sample", ("node", "socket"))
    rows = [samples for (of_node, _), samples in series.items() if int(of_node) == node]
    if span is None or not rows:
        return float("nan")
    rates = [case.counters.grew(samples, column, *span).per_second for samples in rows]
    known = [value for value in rates if value == value]
    return float(sum(known)) if known else float("nan")
