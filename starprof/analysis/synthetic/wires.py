"""Interfaces and TCP sockets of a synthetic run: cumulative counters, and gauges that show which links are slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic import devices
from starprof.analysis.synthetic.faults import SlowNic, SlowPath
from starprof.analysis.synthetic.frames import frame_of
from starprof.model.tables import network

if TYPE_CHECKING:
    import pandas as pd

    from starprof.analysis.arrays import Bools
    from starprof.analysis.synthetic.sampling import Sampling

GRADIENT_BYTES = 2_000_000
REDUCED_BYTES = 2.0 * GRADIENT_BYTES
CONTROL_BYTES = 10_000.0
NIC_SPEED_MBIT = 10_000
HEALTHY_RTT_US = 150.0
SLOW_RTT_US = 20_000.0
FULL_MESH = 16
"""Up to so many ranks connect all to all, as gloo does; more form a ring."""


class Wires:
    """The network tables of one run."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling, self.run = sampling, sampling.run

    def frames(self) -> dict[str, pd.DataFrame]:
        """All of them, with their dictionaries."""
        return {
            "nic_sample": frame_of(network.NIC_SAMPLE, self.nics()),
            "nic": self.nic_names(),
            "tcp_sample": frame_of(network.TCP_SAMPLE, self.sockets()),
            "tcp": self.socket_names(),
        }

    def slow_ticks(self, node: int) -> Bools:
        """Ticks at which the node's interface is slow and shows it."""
        slow = np.zeros(len(self.sampling.ticks_ns), bool)
        for fault in self.run.faults:
            if isinstance(fault, SlowNic) and fault.node == node and fault.seen:
                slow |= self.sampling.active(fault.start, fault.end)
        return slow

    def slow_path(self, a: int, b: int) -> Bools:
        """Ticks at which the way between two nodes is slow."""
        slow = np.zeros(len(self.sampling.ticks_ns), bool)
        for fault in self.run.faults:
            if isinstance(fault, SlowPath) and {a, b} == {fault.first, fault.second}:
                slow |= self.sampling.active(fault.start, fault.end)
        return slow

    def nics(self) -> Iterable[Mapping[str, object]]:
        """Samples of the interfaces."""
        sampling, steps = self.sampling, self.run.steps
        sent = sampling.cumulative(np.full(steps, CONTROL_BYTES if self.run.infiniband else REDUCED_BYTES))
        plain = sampling.cumulative(np.full(steps, 20.0))
        lossless = sampling.cumulative(np.full(steps, 4_000.0 * self.run.infiniband))
        for node in range(self.run.nodes):
            slow = self.slow_ticks(node)
            speed = np.full(len(sampling.ticks_ns), float(NIC_SPEED_MBIT))
            for fault in self.run.faults:
                if isinstance(fault, SlowNic) and fault.node == node and fault.speed_mbit is not None:
                    speed[slow] = fault.speed_mbit
            yield {
                "node": node,
                "mono_ns": sampling.mono_ns,
                "nic": 1,
                "rx_bytes": sent,
                "tx_bytes": sent,
                "rx_dropped": 0.0,
                "tx_dropped": 0.0,
                "rx_errors": 0.0,
                "tx_errors": 0.0,
                "speed_mbit": speed,
                "up": 1.0,
                "qdisc_backlog_bytes": np.where(slow, 300_000.0, 0.0),
                "qdisc_overlimits": np.cumsum(slow * 40.0),
                "qdisc_backlog_drops": 0.0,
                "rx_prio0_packets": plain,
                "rx_other_prio_packets": lossless,
            }
        if self.run.infiniband:
            reduced = sampling.cumulative(np.full(steps, REDUCED_BYTES))
            yield from devices.ports(self.run, sampling.ticks_ns, reduced)

    def nic_names(self) -> pd.DataFrame:
        """The dictionary of interfaces."""
        ethernet = [
            {
                "node": [n],
                "nic": [1],
                "name": ["eth0"],
                "type": ["ethernet"],
                "qdisc": ["fq_codel"],
                "addresses": [_host_address(n)],
            }
            for n in range(self.run.nodes)
        ]
        return frame_of(network.NIC, [*ethernet, *(devices.port_names(self.run) if self.run.infiniband else [])])

    def pairs(self) -> list[tuple[int, int]]:
        """Connected ranks: full mesh as gloo does for few ranks, else a ring; both directions are listed."""
        ranks = range(self.run.ranks)
        if self.run.ranks <= FULL_MESH:
            return [(a, b) for a in ranks for b in ranks if a != b]
        ring = [(r, (r + 1) % self.run.ranks) for r in ranks]
        return ring + [(b, a) for a, b in ring]

    def address(self, rank: int, other: int) -> str:
        """End point of a rank's socket to another."""
        onward = other == (rank + 1) % self.run.ranks
        number = rank * self.run.ranks + other if self.run.ranks <= FULL_MESH else 2 * rank + onward
        return f"{_host_address(int(self.run.node_of[rank]))}:{20_000 + number}"

    def socket_names(self) -> pd.DataFrame:
        """The dictionary of sockets."""
        return frame_of(
            network.TCP,
            [
                {
                    "node": [int(self.run.node_of[a])],
                    "socket": [i],
                    "rank": [a],
                    "local": [self.address(a, b)],
                    "remote": [self.address(b, a)],
                }
                for i, (a, b) in enumerate(self.pairs())
            ],
        )

    def sockets(self) -> Iterable[Mapping[str, object]]:
        """Samples of the sockets, once a second."""
        every = max(1, int(self.run.rate_hz))
        ticks = slice(None, None, every)
        rng = np.random.default_rng([self.run.seed, 3])
        slow_at = [self.slow_ticks(node) for node in range(self.run.nodes)]
        moved = self.sampling.cumulative(np.full(self.run.steps, float(GRADIENT_BYTES)))[ticks]
        caught = min((fault.caught for fault in self.run.faults if isinstance(fault, SlowNic)), default=1.0)
        for i, (a, b) in enumerate(self.pairs()):
            node_a, node_b = int(self.run.node_of[a]), int(self.run.node_of[b])
            slow = (slow_at[node_a] | slow_at[node_b] | self.slow_path(node_a, node_b))[ticks] & (node_a != node_b)
            if caught < 1.0:
                slow &= rng.random(len(slow)) < caught
            rtt = np.where(slow, SLOW_RTT_US, HEALTHY_RTT_US) * rng.uniform(0.8, 1.25, slow.shape)
            yield {
                "node": node_a,
                "mono_ns": self.sampling.mono_ns[ticks],
                "socket": i,
                "rank": a,
                "rtt_us": np.rint(rtt),
                "min_rtt_us": np.full(slow.shape, 90.0),
                "delivery_bytes_per_s": np.where(slow, 5e6, 800e6),
                "acked_bytes": moved,
                "received_bytes": moved,
                "retransmits": np.cumsum(slow * 3.0),
                "unacked": np.where(slow, 40.0, 2.0),
                "send_queue_bytes": np.where(slow, 200_000.0, 0.0),
            }


def _host_address(node: int) -> str:
    return f"10.{node // 62_500}.{node // 250 % 250}.{node % 250 + 1}"
