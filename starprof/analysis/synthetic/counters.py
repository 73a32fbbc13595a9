"""Host and network counters of a synthetic run: cumulative, as collectors would have read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from starprof.analysis.synthetic import devices
from starprof.analysis.synthetic.devices import numa_cpus
from starprof.analysis.synthetic.faults import CPU_PHASES, CpuHog, Pinned, Quota, SlowNic
from starprof.analysis.synthetic.trouble import Trouble
from starprof.model.tables import gpu, host, job, network

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats
    from starprof.analysis.synthetic.run import SyntheticRun
    from starprof.model.columns import Table
    from starprof.model.rundata import Steps

FOREIGN_PID = 99_000
GRADIENT_BYTES = 2_000_000
REDUCED_BYTES = 2.0 * GRADIENT_BYTES
CONTROL_BYTES = 10_000.0
NIC_SPEED_MBIT = 10_000
HEALTHY_RTT_US = 150.0
SLOW_RTT_US = 20_000.0

Parts = Sequence[Mapping[str, "Floats"]]


def empty_frame(table: Table) -> pd.DataFrame:
    """A frame with the table's columns and no rows."""
    return pd.DataFrame({name: pd.Series(dtype="float64") for name in table.names})


def _frame(table: Table, blocks: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Stack blocks of equally long columns; columns not given are NULL."""
    frames = [pd.DataFrame(dict(block)) for block in blocks]
    if not frames:
        return empty_frame(table)
    return pd.concat(frames, ignore_index=True).reindex(columns=list(table.names))


def node_frame(run: SyntheticRun) -> pd.DataFrame:
    """The `node` table."""
    return _frame(
        job.NODE,
        [
            {
                "node": [n],
                "host": [f"node{n}"],
                "cpus": [run.cores],
                "numa_nodes": [run.numa_nodes],
                "detail": [json.dumps({"numa_cpus": {str(i): numa_cpus(run, i) for i in range(run.numa_nodes)}})],
            }
            for n in range(run.nodes)
        ],
    )


def counter_frames(run: SyntheticRun, steps: Steps, parts: Parts) -> dict[str, pd.DataFrame]:
    """All sampled tables and their dictionaries."""
    counters = _Counters(run, steps, parts)
    frames = counters.frames()
    for fault in run.faults:
        if isinstance(fault, Trouble):
            fault.show(run, frames, counters.edges_ns)
    return frames


class _Counters:
    """Shared time base of one run's counters."""

    def __init__(self, run: SyntheticRun, steps: Steps, parts: Parts) -> None:
        self.run, self.steps, self.parts = run, steps, parts
        start = steps.start_mono_ns[0].astype(np.float64)
        self.edges_ns = np.r_[start, start[-1] + steps["dur_us"][0, -1] * 1e3]
        period = 1e9 / run.rate_hz
        self.ticks_ns = np.arange(self.edges_ns[0], self.edges_ns[-1] + period, period)
        self.tick_s = (self.ticks_ns - self.ticks_ns[0]) / 1e9

    def cumulative(self, per_step: Floats) -> Floats:
        """Counter at every tick of something that grows by `per_step`, shape (S,), within each step."""
        grown: Floats = np.rint(np.interp(self.ticks_ns, self.edges_ns, np.r_[0.0, np.cumsum(per_step)]))
        return grown

    def active(self, fault: CpuHog | SlowNic) -> Bools:
        """Ticks at which the fault is on."""
        first, last = fault.start, self.run.steps if fault.end is None else fault.end
        on: Bools = (self.ticks_ns >= self.edges_ns[first]) & (self.ticks_ns <= self.edges_ns[last])
        return on

    def frames(self) -> dict[str, pd.DataFrame]:
        return {
            "process_sample": _frame(host.PROCESS_SAMPLE, self.processes()),
            "process": self.process_names(),
            "cpu_sample": _frame(host.CPU_SAMPLE, self.cpus()),
            "node_sample": _frame(host.NODE_SAMPLE, self.pressure()),
            "cgroup_sample": _frame(host.CGROUP_SAMPLE, self.groups()),
            "cgroup": self.group_names(),
            "nic_sample": _frame(network.NIC_SAMPLE, self.nics()),
            "nic": self.nic_names(),
            "tcp_sample": _frame(network.TCP_SAMPLE, self.sockets()),
            "tcp": self.socket_names(),
            "agent_sample": _frame(host.AGENT_SAMPLE, self.agents()),
            "disk_sample": _frame(host.DISK_SAMPLE, devices.disks(self.run, self.ticks_ns)),
            "disk": _frame(host.DISK, devices.disk_names(self.run)),
            **self.of_gpus(),
        }

    def of_gpus(self) -> dict[str, pd.DataFrame]:
        if not self.run.gpus:
            return {}
        return {
            "gpu_sample": _frame(gpu.GPU_SAMPLE, devices.gpus(self.run, self.ticks_ns)),
            "gpu": _frame(gpu.GPU, devices.gpu_names(self.run)),
        }

    def cpu_of(self, rank: int) -> int:
        return rank % self.run.cores

    def lost(self, rank: int, kind: type) -> Floats:
        """Time per step that faults of a kind took from a rank, shape (S,)."""
        total = np.zeros(self.run.steps)
        for fault, part in zip(self.run.faults, self.parts, strict=True):
            if isinstance(fault, kind):
                total += np.sum([values[rank] for values in part.values()], axis=0)
        return total

    def busy(self, rank: int) -> Floats:
        """CPU time per step of a rank, shape (S,)."""
        spans = np.sum([self.steps[f"{name}_us"][rank] for name in CPU_PHASES if name != "data_wait"], axis=0)
        busy: Floats = np.maximum(spans - self.lost(rank, CpuHog) - self.lost(rank, Quota), 0.0)
        return busy

    def processes(self) -> Iterable[Mapping[str, object]]:
        n = len(self.ticks_ns)
        for rank in range(self.run.ranks):
            if rank in self.run.missing_ranks:
                continue
            pinned = any(isinstance(f, Pinned) and f.rank == rank for f in self.run.faults)
            threads = next((f.threads for f in self.run.faults if isinstance(f, Pinned) and f.rank == rank), 4)
            delay = self.lost(rank, CpuHog) + self.lost(rank, Pinned) + 0.001 * self.busy(rank)
            yield {
                "node": int(self.run.node_of[rank]),
                "mono_ns": self.ticks_ns.astype(np.int64),
                "pid": 1000 + rank,
                "rank": rank,
                "is_rank": 1,
                "cpu_us": self.cumulative(self.busy(rank)),
                "run_delay_us": self.cumulative(delay),
                "on_cpu_us": self.cumulative(self.busy(rank)),
                "voluntary_switches": self.cumulative(np.full(self.run.steps, 20.0)),
                "involuntary_switches": self.cumulative(delay / 4_000.0),
                "minor_faults": self.cumulative(np.full(self.run.steps, 10.0)),
                "major_faults": np.zeros(n),
                "threads": threads,
                "rss_bytes": 500e6,
                "blkio_delay_us": np.zeros(n),
                "read_bytes": self.cumulative(np.full(self.run.steps, 1e5)),
                "last_cpu": self.cpu_of(rank),
                "allowed_cpus": 1 if pinned else self.run.cores,
            }
        for i, hog in enumerate(f for f in self.run.faults if isinstance(f, CpuHog)):
            on = self.active(hog)
            if not on.any():
                continue
            yield {
                "node": int(self.run.node_of[hog.rank]),
                "mono_ns": self.ticks_ns[on].astype(np.int64),
                "pid": FOREIGN_PID + i,
                "rank": -1,
                "is_rank": 0,
                "cpu_us": np.rint((self.tick_s[on] - self.tick_s[on][0]) * 1e6 * hog.share),
                "threads": 1,
                "last_cpu": self.cpu_of(hog.rank),
                "allowed_cpus": 1,
            }

    def process_names(self) -> pd.DataFrame:
        rows = [
            {"node": [int(self.run.node_of[r])], "pid": [1000 + r], "rank": [r], "name": ["python"]}
            for r in range(self.run.ranks)
        ]
        rows += [
            {"node": [int(self.run.node_of[hog.rank])], "pid": [FOREIGN_PID + i], "rank": [-1], "name": ["stress"]}
            for i, hog in enumerate(f for f in self.run.faults if isinstance(f, CpuHog))
        ]
        return _frame(host.PROCESS, rows)

    def cpus(self) -> Iterable[Mapping[str, object]]:
        """Only the ranks' own cores; the whole-node row sums them."""
        for node in range(self.run.nodes):
            ranks = [r for r in range(self.run.ranks) if self.run.node_of[r] == node]
            total = np.zeros(len(self.ticks_ns))
            used: dict[int, Floats] = {}
            for rank in ranks:
                stolen = self.lost(rank, CpuHog)
                idle_free = self.lost(rank, Pinned)
                busy = self.cumulative(self.busy(rank) + stolen + idle_free)
                used[self.cpu_of(rank)] = used.get(self.cpu_of(rank), 0.0) + busy
                total = total + busy
            elapsed = np.rint(self.tick_s * 1e6)
            for cpu, busy in [*used.items(), (-1, total)]:
                capacity = elapsed * (self.run.cores if cpu < 0 else 1)
                yield {
                    "node": node,
                    "mono_ns": self.ticks_ns.astype(np.int64),
                    "cpu": cpu,
                    "user_us": np.minimum(busy, capacity),
                    "system_us": 0.0,
                    "idle_us": np.maximum(capacity - busy, 0.0),
                    "iowait_us": 0.0,
                    "steal_us": 0.0,
                    "freq_khz": 3_200_000.0,
                }

    def pressure(self) -> Iterable[Mapping[str, object]]:
        for node in range(self.run.nodes):
            ranks = [r for r in range(self.run.ranks) if self.run.node_of[r] == node]
            waited = np.sum([self.lost(r, CpuHog) + self.lost(r, Pinned) for r in ranks], axis=0)
            yield {
                "node": node,
                "mono_ns": self.ticks_ns.astype(np.int64),
                "psi_cpu_some_us": self.cumulative(waited),
                "psi_memory_some_us": 0.0,
                "psi_io_some_us": 0.0,
                "swap_in_pages": 0.0,
                "major_faults": 0.0,
                "runnable": float(len(ranks)),
                "memory_available_bytes": 32e9,
            }

    def groups(self) -> Iterable[Mapping[str, object]]:
        """One group per rank below one unlimited parent per node (ids 0 and 1 + rank)."""
        for rank in range(self.run.ranks):
            limited = any(isinstance(f, Quota) and f.rank == rank for f in self.run.faults)
            throttled = self.lost(rank, Quota)
            yield {
                "node": int(self.run.node_of[rank]),
                "mono_ns": self.ticks_ns.astype(np.int64),
                "cgroup": 1 + rank,
                "quota_us": 60_000.0 if limited else np.nan,
                "period_us": 100_000.0,
                "periods": np.rint(self.tick_s * 10.0),
                "throttled_periods": self.cumulative((throttled > 0).astype(np.float64)),
                "throttled_us": self.cumulative(throttled),
                "cpu_us": self.cumulative(self.busy(rank)),
            }

    def group_names(self) -> pd.DataFrame:
        return _frame(
            host.CGROUP,
            [
                {
                    "node": [int(self.run.node_of[r])],
                    "cgroup": [1 + r],
                    "path": [f"/job/rank{r}"],
                    "version": [2],
                    "rank": [r],
                    "depth": [2],
                }
                for r in range(self.run.ranks)
            ],
        )

    def slow_ticks(self, node: int) -> Bools:
        """Ticks at which the node's interface is slow and shows it."""
        slow = np.zeros(len(self.ticks_ns), bool)
        for fault in self.run.faults:
            if isinstance(fault, SlowNic) and fault.node == node and fault.seen:
                slow |= self.active(fault)
        return slow

    def nics(self) -> Iterable[Mapping[str, object]]:
        for node in range(self.run.nodes):
            slow = self.slow_ticks(node)
            speed = np.full(len(self.ticks_ns), float(NIC_SPEED_MBIT))
            for fault in self.run.faults:
                if isinstance(fault, SlowNic) and fault.node == node and fault.speed_mbit is not None:
                    speed[slow] = fault.speed_mbit
            sent = self.cumulative(np.full(self.run.steps, CONTROL_BYTES if self.run.infiniband else REDUCED_BYTES))
            yield {
                "node": node,
                "mono_ns": self.ticks_ns.astype(np.int64),
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
                "rx_prio0_packets": self.cumulative(np.full(self.run.steps, 20.0)),
                "rx_other_prio_packets": self.cumulative(np.full(self.run.steps, 4_000.0 * self.run.infiniband)),
            }
        if self.run.infiniband:
            reduced = self.cumulative(np.full(self.run.steps, REDUCED_BYTES))
            yield from devices.ports(self.run, self.ticks_ns, reduced)

    def nic_names(self) -> pd.DataFrame:
        ethernet = [
            {
                "node": [n],
                "nic": [1],
                "name": ["eth0"],
                "type": ["ethernet"],
                "qdisc": ["fq_codel"],
                "addresses": [f"10.0.0.{n + 1}"],
            }
            for n in range(self.run.nodes)
        ]
        return _frame(network.NIC, [*ethernet, *(devices.port_names(self.run) if self.run.infiniband else [])])

    def pairs(self) -> list[tuple[int, int]]:
        """Connected ranks: full mesh as gloo does for few ranks, else a ring; both directions are listed."""
        ranks = range(self.run.ranks)
        if self.run.ranks <= 16:
            return [(a, b) for a in ranks for b in ranks if a != b]
        ring = [(r, (r + 1) % self.run.ranks) for r in ranks]
        return ring + [(b, a) for a, b in ring]

    def address(self, rank: int, other: int) -> str:
        return f"10.0.0.{self.run.node_of[rank] + 1}:{20_000 + rank * self.run.ranks + other}"

    def socket_names(self) -> pd.DataFrame:
        return _frame(
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
        every = max(1, int(self.run.rate_hz))
        ticks = slice(None, None, every)
        rng = np.random.default_rng([self.run.seed, 3])
        for i, (a, b) in enumerate(self.pairs()):
            node_a, node_b = int(self.run.node_of[a]), int(self.run.node_of[b])
            slow = (self.slow_ticks(node_a) | self.slow_ticks(node_b))[ticks] & (node_a != node_b)
            rtt = np.where(slow, SLOW_RTT_US, HEALTHY_RTT_US) * rng.uniform(0.8, 1.25, slow.shape)
            yield {
                "node": node_a,
                "mono_ns": self.ticks_ns[ticks].astype(np.int64),
                "socket": i,
                "rank": a,
                "rtt_us": np.rint(rtt),
                "min_rtt_us": np.full(slow.shape, 90.0),
                "delivery_bytes_per_s": np.where(slow, 5e6, 800e6),
                "acked_bytes": self.cumulative(np.full(self.run.steps, float(GRADIENT_BYTES)))[ticks],
                "received_bytes": self.cumulative(np.full(self.run.steps, float(GRADIENT_BYTES)))[ticks],
                "retransmits": np.cumsum(slow * 3.0),
                "unacked": np.where(slow, 40.0, 2.0),
                "send_queue_bytes": np.where(slow, 200_000.0, 0.0),
            }

    def agents(self) -> Iterable[Mapping[str, object]]:
        for node in range(self.run.nodes):
            yield {
                "node": node,
                "mono_ns": self.ticks_ns.astype(np.int64),
                "cpu_us": np.rint(self.tick_s * 3_000.0),
                "rss_bytes": 20e6,
                "ticks": np.arange(len(self.ticks_ns), dtype=np.float64),
                "late_ticks": 0.0,
                "fds": 40.0,
            }
