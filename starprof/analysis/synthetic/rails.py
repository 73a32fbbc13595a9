"""Runs on nodes with several interfaces: each serves some of the ranks, and one of them may be slow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from starprof.analysis.synthetic.devices import gpu_numa
from starprof.analysis.synthetic.faults import window
from starprof.analysis.synthetic.run import SyntheticRun
from starprof.model.rundata import RunData
from starprof.model.tables import network

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats
    from starprof.model.columns import Table

REDUCED_BYTES = 4e6
SPEED_MBIT = 400_000.0
FIRST_ID = 10
HEALTHY_RTT_US, SLOW_RTT_US = 150.0, 20_000.0


@dataclass(frozen=True)
class Railed:
    """A run whose nodes have `rails` interfaces; rank r's is the one in its place among the node's ranks.

    Attributes:
        run: the recipe, with GPUs and with the faults that cost time.
        rails: interfaces of a node.
        rdma: they are InfiniBand ports; else Ethernet with the ranks' sockets on them.
        placed: the places of cards and GPUs in the PCI tree were recorded.
        slow: (node, rail) of a slow one.
        start: first step of that.
        end: first step no longer slow; None = to the end.
        speed_mbit: what a slow one's speed falls to; None: it keeps its own.
        errors_per_s: errors that a slow one counts.
        chosen: what a rank's environment chooses, as in {3: {"NCCL_IB_HCA": "=mlx5_3"}}.
        above: per node the names of the switches above it, the nearest last.
    """

    run: SyntheticRun
    rails: int = 8
    rdma: bool = True
    placed: bool = True
    slow: tuple[int, int] | None = None
    start: int = 0
    end: int | None = None
    speed_mbit: float | None = None
    errors_per_s: float = 0.0
    chosen: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    above: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return -(-self.run.ranks // self.run.nodes)

    def rail_of(self, rank: int) -> int:
        """Which of its node's interfaces serves a rank."""
        return (rank % self.per_node) * self.rails // self.per_node

    def name(self, rail: int) -> str:
        """Name of an interface."""
        return f"mlx5_{rail}/1" if self.rdma else f"eth{rail}"

    def data(self) -> RunData:
        """The run as the analysis reads it."""
        data = self.run.data()
        start = data.steps.start_mono_ns[0].astype(np.float64)
        edges = np.r_[start, start[-1] + data.steps["dur_us"][0, -1] * 1e3]
        ticks = np.arange(edges[0], edges[-1] + 1e8, 1e8)
        samples = {
            **data.samples,
            "nic": _frame(network.NIC, self._names()),
            "nic_sample": _frame(network.NIC_SAMPLE, self._nics(ticks, edges)),
            "tcp": _frame(network.TCP, self._ends()),
            "tcp_sample": _frame(network.TCP_SAMPLE, self._sockets(ticks[::10], edges)),
        }
        if "gpu" in samples:
            samples["gpu"] = samples["gpu"].assign(
                pci=[f"00000000:{self._bus(r):02X}:00.0" for r in range(self.run.ranks)]
            )
        ranks = tuple(
            replace(info, detail={**info.detail, **self.chosen.get(info.rank, {})}) if self.chosen else info
            for info in data.ranks
        )
        return replace(data, samples=samples, ranks=ranks, nodes=self._nodes(data.nodes))

    def _bus(self, rank: int) -> int:
        return 0x20 + rank % self.per_node

    def _nodes(self, nodes: pd.DataFrame) -> pd.DataFrame:
        details = []
        for node, detail in zip(nodes["node"].astype(int), nodes["detail"], strict=True):
            told = json.loads(detail)
            if self.placed:
                told["pci"] = self._places()
            if node in self.above:
                names = [*self.above[node], f"node{node}"]
                pattern = ".".join([*("switch" for _ in self.above[node]), "node"])
                told["topology"] = {"address": ".".join(names), "pattern": pattern}
            details.append(json.dumps(told))
        return nodes.assign(detail=details)

    def _places(self) -> dict[str, dict[str, object]]:
        """One switch per interface, with the GPUs that it serves below."""
        found: dict[str, dict[str, object]] = {}
        for rail in range(self.rails):
            root = 0x80 + rail
            above = f"pci0000:{root:02x}/0000:{root:02x}:01.0"
            found[self.name(rail).partition("/")[0]] = {"path": f"{above}/0000:{0x60 + rail:02x}:00.0"}
            for local in range(self.per_node):
                if self.rail_of(local) == rail:
                    address = f"0000:{self._bus(local):02x}:00.0"
                    found[address] = {"path": f"{above}/{address}", "numa": gpu_numa(self.run, local)}
        return found

    def _names(self) -> Iterable[Mapping[str, object]]:
        for node in range(self.run.nodes):
            for rail in range(self.rails):
                yield {
                    "node": [node],
                    "nic": [FIRST_ID + rail],
                    "name": [self.name(rail)],
                    "type": ["infiniband" if self.rdma else "ethernet"],
                    "addresses": [None if self.rdma else self._address(node, rail)],
                }

    def _address(self, node: int, rail: int) -> str:
        return f"10.0.{rail}.{node + 1}"

    def _is_slow(self, times: Floats, edges: Floats, node: int, rail: int) -> Bools:
        if self.slow != (node, rail):
            return np.zeros(len(times), bool)
        inside = window(self.run.steps, self.start, self.end)
        place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, self.run.steps - 1)
        slow: Bools = inside[place]
        return slow

    def _nics(self, ticks: Floats, edges: Floats) -> Iterable[Mapping[str, object]]:
        moved = np.rint(np.interp(ticks, edges, REDUCED_BYTES * np.arange(len(edges))))
        seconds = np.diff(ticks, prepend=ticks[0]) / 1e9
        for node in range(self.run.nodes):
            for rail in range(self.rails):
                slow = self._is_slow(ticks, edges, node, rail)
                speed = SPEED_MBIT if self.speed_mbit is None else np.where(slow, self.speed_mbit, SPEED_MBIT)
                yield {
                    "node": node,
                    "mono_ns": ticks.astype(np.int64),
                    "nic": FIRST_ID + rail,
                    "rx_bytes": moved,
                    "tx_bytes": moved,
                    "rx_dropped": 0.0,
                    "tx_dropped": 0.0,
                    "rx_errors": np.rint(np.cumsum(seconds * slow * self.errors_per_s)),
                    "tx_errors": 0.0,
                    "speed_mbit": speed,
                    "up": 1.0,
                }

    def _pairs(self) -> list[tuple[int, int]]:
        """Ranks that are connected: those in the same place of all other nodes."""
        if self.rdma:
            return []
        ranks, here = range(self.run.ranks), self.run.node_of
        return [(a, b) for a in ranks for b in ranks if here[a] != here[b] and a % self.per_node == b % self.per_node]

    def _end(self, rank: int, other: int) -> str:
        address = self._address(int(self.run.node_of[rank]), self.rail_of(rank))
        return f"{address}:{20_000 + rank * self.run.ranks + other}"

    def _ends(self) -> Iterable[Mapping[str, object]]:
        for i, (a, b) in enumerate(self._pairs()):
            node = int(self.run.node_of[a])
            yield {"node": [node], "socket": [i], "rank": [a], "local": [self._end(a, b)], "remote": [self._end(b, a)]}

    def _sockets(self, ticks: Floats, edges: Floats) -> Iterable[Mapping[str, object]]:
        moved = np.rint(np.interp(ticks, edges, REDUCED_BYTES * np.arange(len(edges))) / max(1, self.run.nodes - 1))
        for i, (a, b) in enumerate(self._pairs()):
            slow = np.zeros(len(ticks), bool)
            for rank in (a, b):
                slow |= self._is_slow(ticks, edges, int(self.run.node_of[rank]), self.rail_of(rank))
            yield {
                "node": int(self.run.node_of[a]),
                "mono_ns": ticks.astype(np.int64),
                "socket": i,
                "rank": a,
                "rtt_us": np.where(slow, SLOW_RTT_US, HEALTHY_RTT_US),
                "min_rtt_us": np.full(len(ticks), 90.0),
                "delivery_bytes_per_s": np.where(slow, 5e6, 800e6),
                "acked_bytes": moved,
                "received_bytes": moved,
                "retransmits": np.zeros(len(ticks)),
            }


def _frame(table: Table, blocks: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Stack blocks of equally long columns; columns not given are NULL."""
    frames = [pd.DataFrame(dict(block)) for block in blocks]
    if not frames:
        return pd.DataFrame(columns=list(table.names))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(table.names))
