"""RDMA over Ethernet runs outside the lossless class: all of it in priority 0, which flow control does not protect."""

from __future__ import annotations

from starprof.analysis.wire.base import Port, WireCase, WireCause, minority, ranks_on
from starprof.model import causes

MIN_PACKETS_PER_S = 1000.0
RDMA_SHARE = 0.5
UNUSED = 1e-6
BYTES = ("tx_bytes", "rx_bytes")


def explain(case: WireCase) -> WireCause | None:
    """The class for RDMA stands at exactly 0 while RDMA is used; other nodes or the past tell what is usual."""
    unused = [node for node in case.nodes if _unused(case, node)]
    if not unused or not all(_uses_rdma(case, node) for node in unused):
        return None
    used_before = any(case.rate(p, ("rx_other_prio_packets",), past=True) > 1.0 for p in _counting(case, unused))
    others = [node for node in case.nodes if node not in unused]
    used_elsewhere = any(case.rate(p, ("rx_other_prio_packets",)) > 0 for p in _counting(case, others))
    apart = used_elsewhere and minority(case, unused)
    port = _counting(case, unused)[0]
    reference = (
        "It was used before."
        if used_before
        else "The other nodes use it."
        if used_elsewhere
        else "No past and no other node shows what is usual, so this is a conclusion from the configuration."
    )
    return WireCause(
        cause=causes.PFC,
        nodes=tuple(unused) if apart else (),
        ranks=ranks_on(case, unused) if apart else (),
        share=1.0,
        certainty=0.9 if used_before or used_elsewhere else 0.6,
        evidence=(
            f"RDMA runs over {port.name} of {case.hosts(unused)} with {case.rate(port, ('rx_prio0_packets',)):.0f} "
            f"packets/s in priority 0 and none in priorities 1 to 7: the lossless class is unused. {reference}",
        ),
        action="Set trust mode, traffic class and PFC for RDMA again (mlnx_qos, NCCL_IB_TC, NCCL_IB_SL) and make the "
        "setting survive reboots.",
        verify="Packets must count in the lossless priority and the reduction be as fast as before; if it is not, flow "
        "control was not the cause.",
    )


def _counting(case: WireCase, nodes: list[int]) -> list[Port]:
    """Ports that count packets by priority."""
    return [p for p in case.ports if p.node in nodes and case.rate(p, ("rx_prio0_packets",)) > 0]


def _unused(case: WireCase, node: int) -> bool:
    ports = _counting(case, [node])
    busy = any(case.rate(p, ("rx_prio0_packets",)) >= MIN_PACKETS_PER_S for p in ports)
    return busy and all(_other_share(case, p) < UNUSED for p in ports)


def _other_share(case: WireCase, port: Port) -> float:
    """Packets in priorities 1 to 7 for each one in priority 0; infinite when they are not counted."""
    other = case.settled_rate(port, ("rx_other_prio_packets",))
    return other / case.rate(port, ("rx_prio0_packets",)) if other == other else float("inf")


def _uses_rdma(case: WireCase, node: int) -> bool:
    """An RDMA port of the node carries at least as much as its sockets do."""
    rdma = sum(b for p in case.ports if p.node == node and p.type == "infiniband" and (b := case.rate(p, BYTES)) == b)
    other = sum(b for p in case.ports if p.node == node and p.type != "infiniband" and (b := case.rate(p, BYTES)) == b)
    return rdma > 0 and rdma >= RDMA_SHARE * (rdma + other)
