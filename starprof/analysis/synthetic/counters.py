"""Host counters of a synthetic run, cumulative, as collectors would have read them, and all tables together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from starprof.analysis.synthetic import devices
from starprof.analysis.synthetic.devices import numa_cpus
from starprof.analysis.synthetic.faults import CpuHog, Neighbour, Pinned, Quota
from starprof.analysis.synthetic.frames import frame_of
from starprof.analysis.synthetic.sampling import Parts, Sampling
from starprof.analysis.synthetic.trouble import Trouble
from starprof.analysis.synthetic.wires import Wires
from starprof.model.tables import gpu, host, job

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.analysis.synthetic.run import SyntheticRun
    from starprof.model.rundata import Steps

FOREIGN_PID = 99_000


def node_frame(run: SyntheticRun) -> pd.DataFrame:
    """The `node` table."""
    return frame_of(
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
    sampling = Sampling(run, steps, parts)
    frames = {**_Host(sampling).frames(), **Wires(sampling).frames(), **_of_gpus(sampling)}
    for i, (fault, part) in enumerate(zip(run.faults, parts, strict=True)):
        if isinstance(fault, Trouble):
            fault.show(run, frames, sampling, part, np.random.default_rng([run.seed, 4, i]))
    return frames


def _of_gpus(sampling: Sampling) -> dict[str, pd.DataFrame]:
    if not sampling.run.gpus:
        return {}
    return {
        "gpu_sample": frame_of(gpu.GPU_SAMPLE, devices.gpus(sampling.run, sampling.ticks_ns)),
        "gpu": frame_of(gpu.GPU, devices.gpu_names(sampling.run)),
    }


class _Host:
    """Counters of processes, CPUs, control groups, nodes and disks."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling, self.run = sampling, sampling.run
        self.pinned = {fault.rank: fault for fault in self.run.faults if isinstance(fault, Pinned)}
        self.limited = {fault.rank for fault in self.run.faults if isinstance(fault, Quota)}
        self.hogs = [fault for fault in self.run.faults if isinstance(fault, (CpuHog, Neighbour))]

    def frames(self) -> dict[str, pd.DataFrame]:
        ticks_ns = self.sampling.ticks_ns
        return {
            "process_sample": frame_of(host.PROCESS_SAMPLE, self.processes()),
            "process": self.process_names(),
            "cpu_sample": frame_of(host.CPU_SAMPLE, self.cpus()),
            "node_sample": frame_of(host.NODE_SAMPLE, self.pressure()),
            "cgroup_sample": frame_of(host.CGROUP_SAMPLE, self.groups()),
            "cgroup": self.group_names(),
            "agent_sample": frame_of(host.AGENT_SAMPLE, self.agents()),
            "disk_sample": frame_of(host.DISK_SAMPLE, devices.disks(self.run, ticks_ns)),
            "disk": frame_of(host.DISK, devices.disk_names(self.run)),
        }

    def processes(self) -> Iterable[Mapping[str, object]]:
        sampling, n, steps = self.sampling, len(self.sampling.ticks_ns), self.run.steps
        switches = sampling.cumulative(np.full(steps, 20.0))
        faults = sampling.cumulative(np.full(steps, 10.0))
        read = sampling.cumulative(np.full(steps, 1e5))
        for rank in range(self.run.ranks):
            if rank in self.run.missing_ranks:
                continue
            busy = sampling.busy[rank]
            delay = sampling.hogged[rank] + sampling.pinned[rank] + 0.001 * busy
            used = sampling.cumulative(busy)
            yield {
                "node": int(self.run.node_of[rank]),
                "mono_ns": sampling.mono_ns,
                "pid": 1000 + rank,
                "rank": rank,
                "is_rank": 1,
                "cpu_us": used,
                "run_delay_us": sampling.cumulative(delay),
                "on_cpu_us": used,
                "voluntary_switches": switches,
                "involuntary_switches": sampling.cumulative(delay / 4_000.0),
                "minor_faults": faults,
                "major_faults": np.zeros(n),
                "threads": self.pinned[rank].threads if rank in self.pinned else 4,
                "rss_bytes": 500e6,
                "blkio_delay_us": np.zeros(n),
                "read_bytes": read,
                "last_cpu": sampling.cpu_of(rank),
                **self.allowed(rank),
            }
        yield from self.foreign()

    def allowed(self, rank: int) -> Mapping[str, object]:
        """CPUs that a rank may use: one only while it is pinned."""
        if rank not in self.pinned:
            return {"allowed_cpus": self.run.cores}
        fault = self.pinned[rank]
        if fault.start == 0 and fault.end is None:
            return {"allowed_cpus": 1}
        on = self.sampling.active(fault.start, fault.end)
        return {"allowed_cpus": np.where(on, 1.0, float(self.run.cores))}

    def foreign(self) -> Iterable[Mapping[str, object]]:
        for i, hog in enumerate(self.hogs):
            on = self.sampling.active(hog.start, hog.end)
            if not on.any():
                continue
            seconds = self.sampling.tick_s[on]
            yield {
                "node": self.node_of(hog),
                "mono_ns": self.sampling.mono_ns[on],
                "pid": FOREIGN_PID + i,
                "rank": -1,
                "is_rank": 0,
                "cpu_us": np.rint((seconds - seconds[0]) * 1e6 * hog.share),
                "threads": 1,
                "last_cpu": hog.cpu if isinstance(hog, Neighbour) else self.sampling.cpu_of(hog.rank),
                "allowed_cpus": 1,
            }

    def node_of(self, hog: CpuHog | Neighbour) -> int:
        return hog.node if isinstance(hog, Neighbour) else int(self.run.node_of[hog.rank])

    def process_names(self) -> pd.DataFrame:
        rows = [
            {"node": [int(self.run.node_of[r])], "pid": [1000 + r], "rank": [r], "name": ["python"]}
            for r in range(self.run.ranks)
        ]
        rows += [
            {"node": [self.node_of(hog)], "pid": [FOREIGN_PID + i], "rank": [-1], "name": ["stress"]}
            for i, hog in enumerate(self.hogs)
        ]
        return frame_of(host.PROCESS, rows)

    def cpus(self) -> Iterable[Mapping[str, object]]:
        """Only the ranks' own cores; the whole-node row sums them."""
        sampling = self.sampling
        elapsed = np.rint(sampling.tick_s * 1e6)
        for node in range(self.run.nodes):
            total = np.zeros(len(sampling.ticks_ns))
            used: dict[int, Floats] = {}
            for rank in sampling.members[node].tolist():
                busy = sampling.cumulative(sampling.busy[rank] + sampling.hogged[rank] + sampling.pinned[rank])
                used[sampling.cpu_of(rank)] = used.get(sampling.cpu_of(rank), 0.0) + busy
                total = total + busy
            for cpu, busy in [*used.items(), (-1, total)]:
                capacity = elapsed * (self.run.cores if cpu < 0 else 1)
                yield {
                    "node": node,
                    "mono_ns": sampling.mono_ns,
                    "cpu": cpu,
                    "user_us": np.minimum(busy, capacity),
                    "system_us": 0.0,
                    "idle_us": np.maximum(capacity - busy, 0.0),
                    "iowait_us": 0.0,
                    "steal_us": 0.0,
                    "freq_khz": 3_200_000.0,
                }

    def pressure(self) -> Iterable[Mapping[str, object]]:
        sampling = self.sampling
        for node, ranks in enumerate(sampling.members):
            waited = np.sum(sampling.hogged[ranks] + sampling.pinned[ranks], axis=0)
            yield {
                "node": node,
                "mono_ns": sampling.mono_ns,
                "psi_cpu_some_us": sampling.cumulative(waited),
                "psi_memory_some_us": 0.0,
                "psi_io_some_us": 0.0,
                "swap_in_pages": 0.0,
                "major_faults": 0.0,
                "runnable": float(len(ranks)),
                "memory_available_bytes": 32e9,
            }

    def groups(self) -> Iterable[Mapping[str, object]]:
        """One group per rank below one unlimited parent per node (ids 0 and 1 + rank)."""
        sampling = self.sampling
        periods = np.rint(sampling.tick_s * 10.0)
        for rank in range(self.run.ranks):
            throttled = sampling.throttled[rank]
            yield {
                "node": int(self.run.node_of[rank]),
                "mono_ns": sampling.mono_ns,
                "cgroup": 1 + rank,
                "quota_us": 60_000.0 if rank in self.limited else np.nan,
                "period_us": 100_000.0,
                "periods": periods,
                "throttled_periods": sampling.cumulative((throttled > 0).astype(np.float64)),
                "throttled_us": sampling.cumulative(throttled),
                "cpu_us": sampling.cumulative(sampling.busy[rank]),
            }

    def group_names(self) -> pd.DataFrame:
        return frame_of(
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

    def agents(self) -> Iterable[Mapping[str, object]]:
        sampling = self.sampling
        for node in range(self.run.nodes):
            yield {
                "node": node,
                "mono_ns": sampling.mono_ns,
                "cpu_us": np.rint(sampling.tick_s * 3_000.0),
                "rss_bytes": 20e6,
                "ticks": np.arange(len(sampling.ticks_ns), dtype=np.float64),
                "late_ticks": 0.0,
                "fds": 40.0,
            }
