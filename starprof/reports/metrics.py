"""The counters that the report can draw, one entry each, and which of them a cause is read from.

A metric turns sampled tables into one series per rank or per node. Adding one is one function and one entry of
`METRICS`; a metric whose tables hold nothing is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from starprof.model import causes
from starprof.model.rundata import RunData
from starprof.reports.series import Clock, Floats, Series, grid, levels, rates, total

CPU_CAUSES = frozenset(
    {
        causes.CPU_CONTENTION,
        causes.CGROUP_THROTTLING,
        causes.AFFINITY,
        causes.OVERSUBSCRIPTION,
        causes.NUMA,
        causes.HOST_PAUSE,
    }
)
NETWORK_CAUSES = frozenset(
    {
        causes.NIC_BANDWIDTH,
        causes.NIC_DEGRADED,
        causes.NETWORK_PATH,
        causes.WRONG_INTERFACE,
        causes.SHARED_NIC,
        causes.COMMUNICATION_VOLUME,
        causes.PACKET_LOSS,
        causes.PFC,
        causes.PARAMETER_SERVER,
    }
)
GPU_CAUSES = frozenset(cause for cause in causes.ALL if cause.startswith("gpu-")) | {
    causes.PCIE_LINK,
    causes.NVLINK,
    causes.HOST_TO_DEVICE,
}
IO_CAUSES = frozenset({causes.STORAGE, causes.DATA_LOADING, causes.MEMORY_SWAP})
PHYSICAL = ("ethernet", "bond-member", "infiniband")
"""Interfaces whose bytes are counted: a bond and a bridge carry their members' bytes once more."""


@dataclass(frozen=True)
class Metric:
    """One time line.

    Attributes:
        per: "rank" or "node": what a series belongs to.
        scale: factor from the series' unit to the drawn one.
        causes: findings with one of these causes show it at once; with others it waits folded.
        always: shown at once whatever the cause.
        zero: the drawn axis reaches down to zero.
    """

    key: str
    title: str
    unit: str
    per: str
    series: Callable[[RunData, Clock], Series | None]
    scale: float = 1.0
    causes: frozenset[str] = frozenset()
    always: bool = False
    zero: bool = True


def _frame(run: RunData, clock: Clock, table: str) -> pd.DataFrame | None:
    """A sampled table with its times on node 0's clock; None when nothing was sampled."""
    frame = run.samples.get(table)
    if frame is None or frame.empty:
        return None
    shift = frame["node"].map(clock.shift_ns).fillna(0)
    return frame.assign(mono_ns=frame["mono_ns"].astype("float64") + shift)


def _summed(parts: dict[int, list[Floats]], edges_ns: Floats) -> Series | None:
    values = {entity: total(found) for entity, found in sorted(parts.items())}
    return Series(edges_ns, values) if any(np.isfinite(v).any() for v in values.values()) else None


def _of_processes(column: str, *, own_only: bool) -> Callable[[RunData, Clock], Series | None]:
    """Rate of a process counter per rank: of its own process, or of its whole tree."""

    def series(run: RunData, clock: Clock) -> Series | None:
        frame = _frame(run, clock, "process_sample")
        if frame is None:
            return None
        chosen = frame[(frame["rank"] >= 0) & ((frame["is_rank"] == 1) | (not own_only))]
        if chosen.empty:
            return None
        edges = grid(chosen, ["node", "pid"])
        parts: dict[int, list[Floats]] = {}
        for (rank, _, _), rate in rates(chosen, ["rank", "node", "pid"], column, edges).items():
            parts.setdefault(int(rank), []).append(rate)
        return _summed(parts, edges)

    return series


def _foreign_cpu(run: RunData, clock: Clock) -> Series | None:
    frame = _frame(run, clock, "process_sample")
    if frame is None:
        return None
    edges = grid(frame, ["node", "pid"])
    # A node without foreign processes is known to have none: the agent looked.
    parts: dict[int, list[Floats]] = {int(node): [np.zeros(len(edges) - 1)] for node in frame["node"].unique()}
    foreign = frame[frame["rank"] < 0]
    if foreign.empty:
        return None
    for (node, _), rate in rates(foreign, ["node", "pid"], "cpu_us", edges).items():
        parts[int(node)].append(rate)
    return _summed(parts, edges)


def _throttled(run: RunData, clock: Clock) -> Series | None:
    frame, groups = _frame(run, clock, "cgroup_sample"), run.samples.get("cgroup")
    if frame is None or groups is None or groups.empty:
        return None
    edges = grid(frame, ["node", "cgroup"])
    found = rates(frame, ["node", "cgroup"], "throttled_us", edges)
    worst: dict[int, list[Floats]] = {}
    for node, group, rank in groups[["node", "cgroup", "rank"]].itertuples(index=False):
        if (node, group) in found and rank >= 0:
            worst.setdefault(int(rank), []).append(found[(node, group)])
    # Nested limits: the rank stands still when any level does, so levels do not add up.
    return _summed({rank: [np.fmax.reduce(rows)] for rank, rows in worst.items()}, edges)


def _of_interfaces(column: str) -> Callable[[RunData, Clock], Series | None]:
    """Rate of an interface counter, summed over the node's interfaces."""

    def series(run: RunData, clock: Clock) -> Series | None:
        frame, known = _frame(run, clock, "nic_sample"), run.samples.get("nic")
        if frame is None or known is None or known.empty:
            return None
        counted = _counted_nics(known)
        frame = frame.merge(counted, on=["node", "nic"])
        if frame.empty:
            return None
        edges = grid(frame, ["node", "nic"])
        parts: dict[int, list[Floats]] = {}
        for (node, _), rate in rates(frame, ["node", "nic"], column, edges).items():
            parts.setdefault(int(node), []).append(rate)
        return _summed(parts, edges)

    return series


def _counted_nics(known: pd.DataFrame) -> pd.DataFrame:
    """(node, nic) of the interfaces whose bytes add up to the node's: virtual ones only where there is no other."""
    last = known.drop_duplicates(["node", "nic"], keep="last")
    physical = last[last["type"].isin(PHYSICAL)]
    virtual = last[(last["type"] == "virtual") & ~last["node"].isin(physical["node"])]
    return pd.concat([physical, virtual])[["node", "nic"]]


def _of_sockets(column: str, *, counter: bool) -> Callable[[RunData, Clock], Series | None]:
    """A socket counter summed, or a socket gauge's worst, per rank."""

    def series(run: RunData, clock: Clock) -> Series | None:
        frame = _frame(run, clock, "tcp_sample")
        if frame is None:
            return None
        frame = frame[frame["rank"] >= 0]
        if frame.empty:
            return None
        edges = grid(frame, ["node", "socket"])
        reduce = rates if counter else levels
        parts: dict[int, list[Floats]] = {}
        for (rank, _, _), values in reduce(frame, ["rank", "node", "socket"], column, edges).items():
            parts.setdefault(int(rank), []).append(values)
        if not counter:
            parts = {rank: [np.fmax.reduce(rows)] for rank, rows in parts.items()}
        return _summed(parts, edges)

    return series


def _of_gpus(column: str) -> Callable[[RunData, Clock], Series | None]:
    """A gauge of the GPU that a rank computes on."""

    def series(run: RunData, clock: Clock) -> Series | None:
        frame, known = _frame(run, clock, "gpu_sample"), run.samples.get("gpu")
        if frame is None or known is None or known.empty:
            return None
        number = {
            (int(node), uuid): int(gpu) for node, gpu, uuid in known[["node", "gpu", "uuid"]].itertuples(index=False)
        }
        edges = grid(frame, ["node", "gpu"])
        found = levels(frame, ["node", "gpu"], column, edges)
        parts = {
            rank.rank: [found[(rank.node, number[(rank.node, rank.gpu_uuid)])]]
            for rank in run.ranks
            if (rank.node, number.get((rank.node, rank.gpu_uuid), -1)) in found
        }
        return _summed(parts, edges)

    return series


def _of_nodes(column: str) -> Callable[[RunData, Clock], Series | None]:
    """Rate of a whole-node counter."""

    def series(run: RunData, clock: Clock) -> Series | None:
        frame = _frame(run, clock, "node_sample")
        if frame is None:
            return None
        edges = grid(frame, ["node"])
        return _summed({int(node): [rate] for (node,), rate in rates(frame, ["node"], column, edges).items()}, edges)

    return series


METRICS: tuple[Metric, ...] = (
    Metric("cpu", "CPU used", "cores", "rank", _of_processes("cpu_us", own_only=False), 1e-6, CPU_CAUSES, always=True),
    Metric(
        "run-delay",
        "Runnable but not running",
        "% of time",
        "rank",
        _of_processes("run_delay_us", own_only=True),
        1e-4,
        CPU_CAUSES,
        always=True,
    ),
    Metric(
        "throttled",
        "Throttled by a CPU quota",
        "% of time",
        "rank",
        _throttled,
        1e-4,
        frozenset({causes.CGROUP_THROTTLING}),
    ),
    Metric(
        "foreign-cpu",
        "CPU used by other processes",
        "cores",
        "node",
        _foreign_cpu,
        1e-6,
        frozenset({causes.CPU_CONTENTION}),
    ),
    Metric(
        "psi-cpu",
        "Some task waits for a CPU (PSI)",
        "% of time",
        "node",
        _of_nodes("psi_cpu_some_us"),
        1e-4,
        frozenset({causes.CPU_CONTENTION, causes.OVERSUBSCRIPTION}),
    ),
    Metric(
        "switches",
        "Involuntary context switches",
        "per s",
        "rank",
        _of_processes("involuntary_switches", own_only=True),
        1.0,
        CPU_CAUSES - {causes.NUMA},
    ),
    Metric("tx", "Network sent", "MB/s", "node", _of_interfaces("tx_bytes"), 1e-6, NETWORK_CAUSES),
    Metric("rx", "Network received", "MB/s", "node", _of_interfaces("rx_bytes"), 1e-6, NETWORK_CAUSES),
    Metric(
        "rtt", "TCP round trip, worst socket", "ms", "rank", _of_sockets("rtt_us", counter=False), 1e-3, NETWORK_CAUSES
    ),
    Metric(
        "acked",
        "TCP sent and acknowledged",
        "MB/s",
        "rank",
        _of_sockets("acked_bytes", counter=True),
        1e-6,
        NETWORK_CAUSES,
    ),
    Metric(
        "retransmits",
        "TCP segments sent again",
        "per s",
        "rank",
        _of_sockets("retransmits", counter=True),
        1.0,
        NETWORK_CAUSES,
    ),
    Metric("sm-clock", "GPU clock", "MHz", "rank", _of_gpus("sm_clock_mhz"), 1.0, GPU_CAUSES, zero=False),
    Metric("power", "GPU power", "W", "rank", _of_gpus("power_w"), 1.0, GPU_CAUSES, zero=False),
    Metric("temperature", "GPU temperature", "°C", "rank", _of_gpus("temperature_c"), 1.0, GPU_CAUSES, zero=False),
    Metric("gpu-util", "GPU busy (says nothing about progress)", "%", "rank", _of_gpus("util_pct")),
    Metric(
        "disk-read",
        "Read from storage",
        "MB/s",
        "rank",
        _of_processes("read_bytes", own_only=False),
        1e-6,
        IO_CAUSES | {causes.CHECKPOINT},
    ),
    Metric(
        "disk-wait",
        "Waiting for block I/O",
        "% of time",
        "rank",
        _of_processes("blkio_delay_us", own_only=False),
        1e-4,
        IO_CAUSES,
    ),
    Metric(
        "faults",
        "Major page faults",
        "per s",
        "rank",
        _of_processes("major_faults", own_only=False),
        1.0,
        frozenset({causes.MEMORY_SWAP}),
    ),
)
"""In the order of the page."""
