"""Where each rank may run, where its GPU is, and whether the two belong together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from starprof.analysis.counters import Counters, numbers
from starprof.model.rundata import RankInfo, RunData

MAX_CPU = 1 << 16
MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Binding:
    """One rank's row of the table rank - GPU - NUMA node - cores.

    Attributes:
        gpu: UUID of its GPU, None without one.
        gpu_numa: NUMA node of the GPU, None when not known.
        cpus: affinity mask as a list such as 0-31, "" when not known.
        cpu_numa: NUMA nodes that the mask touches; empty when the map is not known.
        numa_nodes: NUMA nodes of the machine, None when not known.
    """

    rank: int
    node: int
    gpu: str | None
    gpu_numa: int | None
    cpus: str
    cpu_numa: tuple[int, ...]
    numa_nodes: int | None

    @property
    def remote(self) -> bool:
        """The rank may only run on NUMA nodes that its GPU is not attached to."""
        return self.gpu_numa is not None and bool(self.cpu_numa) and self.gpu_numa not in self.cpu_numa

    @property
    def unbound(self) -> bool:
        """The rank may run on several NUMA nodes."""
        return len(self.cpu_numa) > 1

    @property
    def command(self) -> str:
        """A prefix that binds the rank to its GPU's NUMA node; empty when that node is not known."""
        if self.gpu_numa is None:
            return ""
        return f"numactl --cpunodebind={self.gpu_numa} --membind={self.gpu_numa}"

    def words(self) -> str:
        """The row for people: "rank 1: GPU on NUMA node 1, cores 0-31 (NUMA node 0): mismatch"."""
        place = "GPU's NUMA node not known" if self.gpu_numa is None else f"GPU on NUMA node {self.gpu_numa}"
        where = ", ".join(str(n) for n in self.cpu_numa)
        nodes = f" (NUMA node{'s' if len(self.cpu_numa) > 1 else ''} {where})" if where else ""
        return f"rank {self.rank}: {place}, cores {self.cpus or '?'}{nodes}{': mismatch' if self.remote else ''}"


def bindings(run: RunData) -> tuple[Binding, ...]:
    """The table for all ranks of a run, in rank order."""
    maps = {node: numa_of_cpus(detail) for node, detail in _details(run)}
    counts = _numa_nodes(run)
    gpus = _gpu_numa(run)
    return tuple(_binding(info, maps.get(info.node, {}), counts.get(info.node), gpus) for info in run.ranks)


def _binding(
    info: RankInfo, numa_of: Mapping[int, int], count: int | None, gpus: Mapping[tuple[int, str], int]
) -> Binding:
    uses_gpu = info.gpu_uuid is not None or (info.device or "").startswith("cuda")
    gpu_numa = gpus.get((info.node, info.gpu_uuid or ""))
    if gpu_numa is None and uses_gpu:
        gpu_numa = info.numa_node
    return Binding(
        rank=info.rank,
        node=info.node,
        gpu=info.gpu_uuid,
        gpu_numa=gpu_numa,
        cpus=info.cpus or "",
        cpu_numa=tuple(sorted({numa_of[cpu] for cpu in cpus_in(info.cpus or "") if cpu in numa_of})),
        numa_nodes=count,
    )


def cpus_in(text: str) -> frozenset[int]:
    """Logical CPUs of a list such as 0-3,8; parts that are no such list are left out."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if low.isdecimal() and (not high or high.isdecimal()) and max(len(low), len(high)) < 6:
            found.update(range(int(low), min(int(high or low), MAX_CPU) + 1))
    return frozenset(found)


def numa_of_cpus(detail: str) -> dict[int, int]:
    """NUMA node per logical CPU, from the `detail` of a node's row; empty where it does not tell."""
    return {cpu: number for number, cpus in _lists_of(detail).items() for cpu in cpus_in(cpus)}


def cpu_lists(run: RunData) -> dict[int, dict[int, str]]:
    """Logical CPUs of each NUMA node as a list, per node; a node whose row does not tell has an empty entry."""
    return {node: _lists_of(detail) for node, detail in _details(run)}


def _lists_of(detail: str) -> dict[int, str]:
    try:
        told = json.loads(detail)
    except (ValueError, RecursionError):
        return {}
    lists = told.get("numa_cpus") if isinstance(told, dict) else None
    if not isinstance(lists, dict):
        return {}
    return {
        int(number): cpus
        for number, cpus in lists.items()
        if str(number).isdecimal() and len(str(number)) < MAX_DIGITS and isinstance(cpus, str)
    }


def _details(run: RunData) -> list[tuple[int, str]]:
    nodes = run.nodes
    if "detail" not in nodes or "node" not in nodes:
        return []
    pairs = zip(numbers(nodes, "node"), nodes["detail"], strict=True)
    return [(int(node), detail) for node, detail in pairs if np.isfinite(node) and isinstance(detail, str)]


def _numa_nodes(run: RunData) -> dict[int, int]:
    nodes, counts = numbers(run.nodes, "node"), numbers(run.nodes, "numa_nodes")
    known = np.isfinite(nodes) & np.isfinite(counts)
    return {int(node): int(count) for node, count in zip(nodes[known], counts[known], strict=True)}


def _gpu_numa(run: RunData) -> dict[tuple[int, str], int]:
    gpus = Counters(run).gpus
    return {key: int(gpu.numa_node) for key, gpu in gpus.items() if gpu.numa_node >= 0}
