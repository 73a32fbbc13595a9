"""Faults of the network: of one node's interface, of one GPU's links, of a path, or of what all share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from draws.drawn import Draw, Drawn, Maker, Need
from starprof.analysis.synthetic import Fault, Gauge, SlowNic, SlowPath, Trouble
from starprof.analysis.synthetic.wires import FULL_MESH, GRADIENT_BYTES, NIC_SPEED_MBIT, REDUCED_BYTES
from starprof.model import causes

GBIT = 125e6
SEGMENT_BYTES = 1448.0
SOCKETS = ("tcp_sample", "tcp", "nic_sample", "nic")
INTERFACES = ("nic_sample", "nic")
NOBODY = frozenset({"inconclusive", "uniform", "shared", "none"})
STEADY = ("chronic", "onset", "transient")


def _node(draw: Draw) -> int:
    return int(draw.run.node_of[draw.hit[0]])


def _members(draw: Draw, node: int) -> tuple[int, ...]:
    return tuple(int(rank) for rank in np.flatnonzero(draw.run.node_of == node))


def _longer_us(draw: Draw) -> float:
    return (draw.slowdown - 1.0) * draw.step_s * 1e6


def _slow(draw: Draw, on: tuple[int, ...], us: float, **shown: object) -> Trouble:
    return Trouble(on, {"transfer": us}, start=draw.when.start, end=draw.when.end, **shown)  # type: ignore[arg-type]


def _of_node(draw: Draw, cause: str, fault: Fault, us: float, evidence: tuple[str, ...]) -> Drawn:
    """A fault of one node: of two nodes it may be that the end can't be told."""
    members = frozenset(_members(draw, _node(draw)))
    two = draw.run.nodes == 2
    return Drawn(
        (fault,),
        ranks=frozenset() if two else members,
        tolerated=members,
        causes=frozenset({cause, *({causes.UNKNOWN} if two else ())}),
        places=frozenset({causes.UNKNOWN, causes.NIC_BANDWIDTH, causes.NETWORK_PATH}),
        evidence=evidence,
        verdicts=frozenset({"straggler", *(("inconclusive", "shared") if two else ())}),
        blind=NOBODY | {"straggler"},
        slowdown=1.0 + us / (draw.step_s * 1e6),
        when=draw.when,
    )


def _of_all(draw: Draw, cause: str, fault: Fault | tuple[Fault, ...], kind: str, evidence: tuple[str, ...]) -> Drawn:
    return Drawn(
        fault if isinstance(fault, tuple) else (fault,),
        causes=frozenset({cause}),
        places=frozenset({causes.UNKNOWN, causes.NETWORK_PATH}),
        evidence=evidence,
        verdicts=frozenset({kind}),
        blind=NOBODY,
        slowdown=draw.slowdown,
        when=draw.when,
    )


def shaped(draw: Draw) -> Drawn:
    """One node's interface sends slowly; its sockets' packets queue."""
    us = _longer_us(draw)
    nic = SlowNic(_node(draw), us, draw.when.start, draw.when.end, caught=draw.between(0.65, 1.0))
    return _of_node(draw, causes.NIC_BANDWIDTH, nic, us, SOCKETS)


def degraded(draw: Draw) -> Drawn:
    """One node's interface negotiated a lower speed."""
    speed = int(draw.rng.choice([5_000, 2_500, 1_000]))
    us = draw.run.transfer_us * (NIC_SPEED_MBIT / speed - 1.0) * draw.between(0.9, 1.0)
    nic = SlowNic(_node(draw), us, draw.when.start, draw.when.end, speed_mbit=speed, caught=draw.between(0.65, 1.0))
    return _of_node(draw, causes.NIC_DEGRADED, nic, us, SOCKETS)


def lossy(draw: Draw) -> Drawn:
    """One node's packets are lost and sent again."""
    us = _longer_us(draw)
    members = _members(draw, _node(draw))
    per_second = draw.about(0.012, 0.08) * GRADIENT_BYTES / SEGMENT_BYTES / (draw.step_s * draw.slowdown)
    fault = _slow(draw, members, us, grows={"tcp_sample.retransmits": max(2.0, per_second)}, bursts=0.8)
    return _of_node(draw, causes.PACKET_LOSS, fault, us, SOCKETS)


def dropping(draw: Draw) -> Drawn:
    """One node's interface drops packets."""
    us = _longer_us(draw)
    fault = _slow(draw, draw.hit, us, grows={"nic_sample.rx_dropped": draw.about(20.0, 2_000.0)}, bursts=0.8)
    found = _of_node(draw, causes.PACKET_LOSS, fault, us, INTERFACES)
    return replace(found, ranks=found.ranks, tolerated=frozenset(_members(draw, _node(draw))))


def path(draw: Draw) -> Drawn:
    """The way between two nodes is slow; both are quick with all others."""
    first = _node(draw)
    second = (first + 1) % draw.run.nodes
    way = SlowPath(first, second, _longer_us(draw), draw.when.start, draw.when.end)
    return _of_all(draw, causes.NETWORK_PATH, way, "shared", SOCKETS)


def all_paths(draw: Draw) -> Drawn:
    """All links between the nodes are slow alike: a switch, or too much traffic on it."""
    us = _longer_us(draw) / draw.run.nodes
    caught = draw.between(0.65, 1.0)
    nics = tuple(SlowNic(node, us, draw.when.start, draw.when.end, caught=caught) for node in range(draw.run.nodes))
    return _of_all(draw, causes.NETWORK_PATH, nics, "uniform", SOCKETS)


def fallback(draw: Draw) -> Drawn:
    """The transport falls back from InfiniBand to sockets on all nodes."""
    per_second = REDUCED_BYTES / (draw.step_s * draw.slowdown)
    fault = _slow(
        draw,
        tuple(range(draw.run.ranks)),
        _longer_us(draw),
        stops=("nic_sample#2.tx_bytes", "nic_sample#2.rx_bytes"),
        grows={"nic_sample.tx_bytes": per_second, "nic_sample.rx_bytes": per_second},
    )
    return _of_all(draw, causes.WRONG_INTERFACE, fault, "uniform", INTERFACES)


def narrow_port(draw: Draw) -> Drawn:
    """One node's InfiniBand port lost lanes."""
    speed = float(draw.rng.choice([100_000, 50_000, 25_000]))
    us = draw.run.transfer_us * (200_000.0 / speed - 1.0) * draw.between(0.9, 1.0)
    fault = _slow(draw, draw.hit, us, shows={"nic_sample#2.speed_mbit": Gauge(speed)})
    return _of_node(draw, causes.NIC_DEGRADED, fault, us, INTERFACES)


def shared(draw: Draw) -> Drawn:
    """Somebody else's traffic fills one node's interface."""
    fault = _slow(
        draw, draw.hit, _longer_us(draw), grows={"nic_sample.tx_bytes": draw.between(8.9, 9.8) * GBIT}, bursts=0.05
    )
    return _of_all(draw, causes.SHARED_NIC, fault, "shared", SOCKETS)


def saturated(draw: Draw) -> Drawn:
    """The job sends so much that every interface is full."""
    everybody = tuple(range(draw.run.ranks))
    per_node = draw.run.ranks / draw.run.nodes
    sockets = per_node * (draw.run.ranks - 1 if draw.run.ranks <= FULL_MESH else 2)
    rate = draw.between(8.9, 9.8) * GBIT
    grows = {
        "nic_sample.tx_bytes": rate,
        "tcp_sample.acked_bytes": rate / sockets,
        "tcp_sample.received_bytes": rate / sockets,
    }
    found = _of_all(
        draw, causes.NIC_BANDWIDTH, _slow(draw, everybody, _longer_us(draw), grows=grows), "uniform", SOCKETS
    )
    # It does communicate more than it did before.
    return replace(found, causes=found.causes | {causes.COMMUNICATION_VOLUME})


def unprotected(draw: Draw) -> Drawn:
    """RDMA leaves the lossless class on all nodes."""
    fault = _slow(
        draw,
        tuple(range(draw.run.ranks)),
        _longer_us(draw),
        stops=("nic_sample.rx_other_prio_packets",),
        grows={"nic_sample.rx_prio0_packets": draw.about(4_000.0, 80_000.0)},
    )
    return _of_all(draw, causes.PFC, fault, "uniform", INTERFACES)


def nvlink(draw: Draw) -> Drawn:
    """One GPU lost links, or its links repeat what was damaged."""
    shows: Mapping[str, Gauge] = {}
    grows: Mapping[str, float] = {}
    if draw.often(0.5):
        shows = {"gpu_sample.nvlink_active": Gauge(float(draw.rng.choice([11, 10, 8, 6])))}
    else:
        grows = {"gpu_sample.nvlink_errors": draw.about(5.0, 500.0)}
    us = _longer_us(draw)
    fault = _slow(draw, draw.hit, us, shows=shows, grows=grows, bursts=0.5)
    return Drawn(
        (fault,),
        ranks=frozenset(draw.hit),
        causes=frozenset({causes.NVLINK}),
        places=frozenset({causes.UNKNOWN}),
        evidence=("gpu_sample",),
        blind=NOBODY,
        slowdown=draw.slowdown,
        when=draw.when,
    )


def unseen(draw: Draw) -> Drawn:
    """The reduction takes longer, and no counter shows why."""
    fault = _slow(draw, draw.hit, _longer_us(draw))
    found = _of_all(draw, causes.UNKNOWN, fault, "inconclusive", ())
    return replace(found, verdicts=NOBODY)


SOCKET = Need(nodes=3, infiniband=False, shapes=STEADY)
PORT = Need(gpus=True, nodes=3, infiniband=True, shapes=("onset", "transient"))
FAULTS: dict[str, tuple[Need, Maker]] = {
    "nic-bandwidth": (SOCKET, shaped),
    "nic-bandwidth, two nodes": (Need(nodes=2, infiniband=False, shapes=STEADY), shaped),
    "nic-bandwidth, saturated": (Need(nodes=3, infiniband=False, shapes=("onset", "transient")), saturated),
    "nic-degraded": (SOCKET, degraded),
    "nic-degraded, lanes": (PORT, narrow_port),
    "network-path": (Need(nodes=4, infiniband=False, shapes=("onset", "transient")), path),
    "network-path, all alike": (Need(nodes=3, infiniband=False, shapes=("onset", "transient")), all_paths),
    "wrong-interface": (PORT, fallback),
    "shared-nic": (Need(nodes=3, infiniband=False, shapes=("onset", "transient")), shared),
    "packet-loss": (Need(nodes=3, infiniband=False, shapes=("onset", "transient")), lossy),
    "packet-loss, drops": (Need(nodes=3, infiniband=False, shapes=("onset", "transient")), dropping),
    "pfc": (PORT, unprotected),
    "nvlink": (Need(gpus=True, shapes=("onset", "transient")), nvlink),
    "unseen network": (Need(nodes=2, shapes=("onset", "transient")), unseen),
}
