"""The traffic takes another interface than it should: sockets instead of InfiniBand, or the slower of two ports."""

from __future__ import annotations

from starprof.analysis.wire.base import Port, WireCase, WireCause, minority, ranks_on
from starprof.analysis.words import bit_rate
from starprof.model import causes

BYTES = ("tx_bytes", "rx_bytes")
IDLE_SHARE = 0.01
MIN_BYTES_PER_S = 1e6
FULL = 0.85
MOST = 0.8
MUCH_SLOWER = 0.5
MBIT_BYTES = 125_000.0


def explain(case: WireCase) -> WireCause | None:
    """InfiniBand ports that are up and idle while Ethernet carries, or a slow port that is full beside a fast one."""
    return _fallback(case) or _slow_port(case)


def _fallback(case: WireCase) -> WireCause | None:
    idle = [node for node in case.nodes if _infiniband_idle(case, node)]
    having = [node for node in case.nodes if _ports(case, node, "infiniband")]
    if not idle or not (len(idle) == len(having) or minority(case, idle)):
        return None
    everybody = len(idle) == len(having)
    carried_before = any(_bytes(case, p, past=True) >= MIN_BYTES_PER_S for n in idle for p in _infiniband(case, n))
    node = idle[0]
    port = _infiniband(case, node)[0]
    used = max(_ethernet(case, node), key=lambda p: _bytes(case, p))
    speeds = case.gauge(used, "speed_mbit") / case.gauge(port, "speed_mbit")
    before = " It carried the traffic before." if carried_before else ""
    return WireCause(
        cause=causes.WRONG_INTERFACE,
        nodes=() if everybody else tuple(idle),
        ranks=() if everybody else ranks_on(case, idle),
        share=1.0,
        certainty=1.0 if carried_before else 0.8,
        evidence=(
            f"The InfiniBand ports of {'all nodes' if everybody else case.hosts(idle)} are up but moved no bytes, "
            f"while {used.name} of {case.host(node)} carried {bit_rate(_bytes(case, used))}: the transport fell back "
            f"to TCP sockets.{before}",
        ),
        action="Run with NCCL_DEBUG=INFO and look for NET/Socket; check that the RDMA libraries and devices are "
        "visible inside the container, that memlock is unlimited, and NCCL_IB_DISABLE, NCCL_IB_HCA and "
        "NCCL_SOCKET_IFNAME.",
        verify="The InfiniBand ports must carry the bytes and the reduction become faster; if it stays as slow with "
        "InfiniBand in use, the fallback was not the cause.",
        remaining=speeds if 0 < speeds < 1 else float("nan"),
    )


def _infiniband_idle(case: WireCase, node: int) -> bool:
    """The node's InfiniBand ports are up and idle, and its Ethernet carries a lot."""
    ports = [p for p in _infiniband(case, node) if case.gauge(p, "up") != 0.0]
    rates = [case.settled_rate(p, BYTES) for p in ports]
    ethernet = [b for p in _ethernet(case, node) if (b := _bytes(case, p)) == b]
    known = [r for r in rates if r == r]
    carried = sum(ethernet)
    return bool(known) and len(known) == len(rates) and carried >= MIN_BYTES_PER_S and sum(known) < IDLE_SHARE * carried


def _slow_port(case: WireCase) -> WireCause | None:
    found = [(node, pair) for node in case.nodes if (pair := _full_slow_port(case, node)) is not None]
    nodes = [node for node, _ in found]
    if not minority(case, nodes):
        return None
    node, (slow, fast) = found[0]
    speed = case.gauge(slow, "speed_mbit")
    sent = case.rate(slow, ("tx_bytes",))
    return WireCause(
        cause=causes.WRONG_INTERFACE,
        nodes=tuple(nodes),
        ranks=ranks_on(case, nodes),
        share=1.0,
        certainty=0.9,
        evidence=(
            f"{case.host(node)} sends through {slow.name} at {bit_rate(sent)}, the line rate of that port "
            f"({speed:.0f} Mbit/s), while {fast.name} ({case.gauge(fast, 'speed_mbit'):.0f} Mbit/s) sends "
            f"{bit_rate(case.rate(fast, ('tx_bytes',)))} and receives {bit_rate(case.rate(fast, ('rx_bytes',)))}.",
            "The other end of each connection looks slow as well; it only waits.",
        ),
        action=f"Name the fast port (NCCL_SOCKET_IFNAME={fast.name}, GLOO_SOCKET_IFNAME={fast.name}), and put the two "
        f"ports of {case.host(node)} on different subnets: on one subnet the route decides which of them sends.",
        verify=f"{fast.name} must send what it receives and the reduction become faster; if not, the port was not the "
        "cause.",
        remaining=speed / case.gauge(fast, "speed_mbit"),
    )


def _full_slow_port(case: WireCase, node: int) -> tuple[Port, Port] | None:
    """(full slow port, faster idle one) of a node that sends through the wrong one."""
    ports = [p for p in _ethernet(case, node) if case.gauge(p, "speed_mbit") > 0 and case.gauge(p, "up") != 0.0]
    sent = {p.name: case.rate(p, ("tx_bytes",)) for p in ports}
    known = [b for b in sent.values() if b == b]
    for slow in ports:
        speed = case.gauge(slow, "speed_mbit")
        faster = [p for p in ports if speed < MUCH_SLOWER * case.gauge(p, "speed_mbit")]
        full = sent[slow.name] >= FULL * speed * MBIT_BYTES
        if faster and full and sent[slow.name] >= MOST * sum(known):
            return slow, max(faster, key=lambda p: case.gauge(p, "speed_mbit"))
    return None


def _ports(case: WireCase, node: int, kind: str) -> list[Port]:
    return [p for p in case.ports if p.node == node and (p.type == "infiniband") == (kind == "infiniband")]


def _infiniband(case: WireCase, node: int) -> list[Port]:
    return _ports(case, node, "infiniband")


def _ethernet(case: WireCase, node: int) -> list[Port]:
    return _ports(case, node, "ethernet")


def _bytes(case: WireCase, port: Port, past: bool = False) -> float:
    return case.rate(port, BYTES, past)
