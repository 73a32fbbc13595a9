"""GPU, disk and InfiniBand counters of a healthy synthetic run, at realistic values; faults change them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic.trouble import GPU_ID_0

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.analysis.synthetic.run import SyntheticRun

SM_CLOCK_MHZ = 1755.0
POWER_LIMIT_W = 300.0
MEMORY_BYTES = 80e9
SW_POWER_CAP = 0x04
DISK_ID = 7
INFINIBAND_ID = 2
INFINIBAND_MBIT = 200_000


def gpu_uuid(rank: int) -> str:
    """UUID of a rank's GPU."""
    return f"GPU-{rank:08d}-0000-0000-0000-000000000000"


def gpus(run: SyntheticRun, ticks_ns: Floats) -> Iterable[Mapping[str, object]]:
    """Samples of one GPU per rank at full load: near the power limit, whose bit flickers as on healthy cards."""
    rng = np.random.default_rng([run.seed, 5])
    n = len(ticks_ns)
    seconds = (ticks_ns - ticks_ns[0]) / 1e9
    for rank in range(run.ranks):
        yield {
            "node": int(run.node_of[rank]),
            "mono_ns": ticks_ns.astype(np.int64),
            "gpu": GPU_ID_0 + rank,
            "util_pct": rng.uniform(92.0, 100.0, n),
            "memory_util_pct": rng.uniform(40.0, 60.0, n),
            "sm_clock_mhz": SM_CLOCK_MHZ + np.rint(rng.normal(0.0, 6.0, n)),
            "memory_clock_mhz": np.full(n, 1593.0),
            "temperature_c": np.rint(62.0 + rng.normal(0.0, 1.5, n)),
            "power_w": 285.0 + rng.normal(0.0, 8.0, n),
            "power_limit_w": np.full(n, POWER_LIMIT_W),
            "clock_event_reasons": np.where(rng.random(n) < 0.4, SW_POWER_CAP, 0).astype(np.float64),
            "memory_used_bytes": np.full(n, 0.6 * MEMORY_BYTES),
            "memory_total_bytes": np.full(n, MEMORY_BYTES),
            "pcie_gen": np.full(n, 4.0),
            "pcie_width": np.full(n, 16.0),
            "pcie_rx_bytes_per_s": rng.uniform(0.5e9, 1.5e9, n),
            "pcie_tx_bytes_per_s": rng.uniform(0.2e9, 0.6e9, n),
            "ecc_corrected": np.floor(seconds / 40.0),
            "ecc_uncorrected": np.zeros(n),
            "remapped_rows": np.zeros(n),
            "remap_pending": np.zeros(n),
            "nvlink_errors": np.zeros(n),
            "nvlink_active": np.full(n, 12.0),
            "foreign_processes": np.zeros(n),
            "foreign_memory_bytes": np.zeros(n),
        }


def gpu_names(run: SyntheticRun) -> list[Mapping[str, object]]:
    """The dictionary of those GPUs: the first half of a node's on its first NUMA node."""
    per_node = -(-run.ranks // run.nodes)
    return [
        {
            "node": [int(run.node_of[rank])],
            "gpu": [GPU_ID_0 + rank],
            "uuid": [gpu_uuid(rank)],
            "nvml_index": [rank % per_node],
            "name": ["Accelerator 80GB"],
            "numa_node": [gpu_numa(run, rank)],
            "pcie_gen_max": [4],
            "pcie_width_max": [16],
            "mig_parent": [None],
        }
        for rank in range(run.ranks)
    ]


def gpu_numa(run: SyntheticRun, rank: int) -> int:
    """NUMA node that a rank's GPU is attached to."""
    per_node = -(-run.ranks // run.nodes)
    return (rank % per_node) * run.numa_nodes // per_node


def numa_cpus(run: SyntheticRun, number: int) -> str:
    """Logical CPUs of a NUMA node, as a list."""
    first, last = number * run.cores // run.numa_nodes, (number + 1) * run.cores // run.numa_nodes - 1
    return f"{first}-{last}"


def disks(run: SyntheticRun, ticks_ns: Floats) -> Iterable[Mapping[str, object]]:
    """One quiet NVMe disk per node."""
    seconds = (ticks_ns - ticks_ns[0]) / 1e9
    for node in range(run.nodes):
        yield {
            "node": node,
            "mono_ns": ticks_ns.astype(np.int64),
            "disk": DISK_ID,
            "read_bytes": np.rint(seconds * 50e6),
            "write_bytes": np.rint(seconds * 1e6),
            "reads": np.rint(seconds * 400.0),
            "writes": np.rint(seconds * 10.0),
            "read_wait_us": np.rint(seconds * 400.0 * 150.0),
            "write_wait_us": np.rint(seconds * 2_000.0),
            "busy_us": np.rint(seconds * 30_000.0),
        }


def disk_names(run: SyntheticRun) -> list[Mapping[str, object]]:
    """The dictionary of those disks."""
    return [{"node": [n], "disk": [DISK_ID], "name": ["nvme0n1"], "type": ["block"]} for n in range(run.nodes)]


def ports(run: SyntheticRun, ticks_ns: Floats, sent: Floats) -> Iterable[Mapping[str, object]]:
    """One InfiniBand port per node that carries the reductions."""
    for node in range(run.nodes):
        yield {
            "node": node,
            "mono_ns": ticks_ns.astype(np.int64),
            "nic": INFINIBAND_ID,
            "rx_bytes": sent,
            "tx_bytes": sent,
            "rx_dropped": 0.0,
            "tx_dropped": 0.0,
            "rx_errors": 0.0,
            "tx_errors": 0.0,
            "speed_mbit": float(INFINIBAND_MBIT),
            "up": 1.0,
            "xmit_wait_ticks": 0.0,
        }


def port_names(run: SyntheticRun) -> list[Mapping[str, object]]:
    """The dictionary of those ports."""
    return [
        {"node": [n], "nic": [INFINIBAND_ID], "name": ["mlx5_0/1"], "type": ["infiniband"]} for n in range(run.nodes)
    ]
