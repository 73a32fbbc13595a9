"""XIDs of a run, and whose GPU reported them. Evidence of why something is slow or stands still, never that it does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.counters import Counters, numbers
from starprof.analysis.machine import address
from starprof.analysis.network.rails import gpu_pci
from starprof.model import xids
from starprof.model.events import XID
from starprof.model.rundata import RankInfo, RunData

MAX_XIDS = 2_000
LARGEST = 1_000
XID_CHECKS = {
    xids.MEMORY: "look at the ECC and row-remap counters of that GPU (nvidia-smi -q -d ECC,ROW_REMAPPER)",
    xids.LOST: "see whether nvidia-smi still lists that GPU; reset it or restart its host, and check slot and power",
    xids.LINK: "look at the NVLink counters of that GPU (nvidia-smi nvlink -e)",
    xids.FIRMWARE: "reset that GPU or restart its host, and keep the driver's version in mind",
    xids.APPLICATION: "look for the program's own error in its log (an illegal address, a failed assertion)",
    xids.FOLLOWING: "look for what came before it in the kernel's log",
    xids.OTHER: "look the XID up in NVIDIA's catalogue of XID errors",
}
"""What to look at next, per class."""

_GPU = re.compile(r"(?:GPU |(?=(?:GPU|MIG)-))(\S+?)(?:[,:](?=\s)|$)")
_PROCESS = re.compile(r"\bprocess (\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Reported:
    """One XID.

    Attributes:
        mono_ns: when, in the clock of the node; NaN when not told.
        rank: the rank whose own log told it, -1 otherwise.
        gpu: UUID, PCI address or index of the GPU, "" when not told.
        process: process that computed on it, None when not told.
    """

    number: int
    node: int
    mono_ns: float
    rank: int
    gpu: str
    process: int | None

    @property
    def meaning(self) -> xids.Meaning:
        """What the number says."""
        return xids.meaning(self.number)

    @property
    def words(self) -> str:
        """The number and what it says."""
        return f"XID {self.number} ({self.meaning.words})"


def reported(run: RunData) -> tuple[Reported, ...]:
    """All XIDs of a run, equal ones once."""
    events = run.events
    if len(events) == 0 or "kind" not in events:
        return ()
    rows = events[events["kind"] == XID].drop_duplicates(["node", "mono_ns", "value", "detail"]).head(MAX_XIDS)
    columns = [numbers(rows, name) for name in ("value", "node", "mono_ns", "rank")]
    found = []
    for value, node, mono_ns, rank, detail in zip(*columns, rows["detail"], strict=True):
        if not 1 <= value < LARGEST:
            continue
        text = detail if isinstance(detail, str) else ""
        gpu, process = _GPU.search(text), _PROCESS.search(text)
        found.append(
            Reported(
                int(value),
                int(node) if np.isfinite(node) else -1,
                float(mono_ns),
                int(rank) if np.isfinite(rank) else -1,
                gpu[1] if gpu is not None else "",
                int(process[1]) if process is not None else None,
            )
        )
    return tuple(found)


def on_gpu_of(found: Iterable[Reported], info: RankInfo, counters: Counters) -> list[Reported]:
    """Those of the GPU that a rank certainly computes on: by its log, process, UUID, PCI address or index."""
    gpu = counters.gpus.get((info.node, info.gpu_uuid or ""))
    names = {name for name in (info.gpu_uuid, gpu.mig_parent if gpu is not None else None) if name}
    pci = gpu_pci(info, counters)
    index = _index(info, counters)
    return [
        one
        for one in found
        if (one.rank == info.rank)
        or (
            one.node == info.node
            and (
                one.gpu in names
                or (pci != "" and ":" in one.gpu and address(one.gpu) == address(pci))
                or (index is not None and one.gpu == index)
                or (one.process is not None and one.process == info.pid)
            )
        )
    ]


def on_host_of(found: Iterable[Reported], info: RankInfo) -> list[Reported]:
    """Those of any GPU of a rank's host, where the host is known."""
    return [one for one in found if info.host and one.node == info.node]


def listed(found: Sequence[Reported]) -> str:
    """The different ones in words, hardware first."""
    order = sorted(dict.fromkeys((not one.meaning.of_hardware, one.number, one.words) for one in found))
    words = [words for _, _, words in order]
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1] if words else ""


def _index(info: RankInfo, counters: Counters) -> str | None:
    """NVML's index of a rank's GPU as metrics name it; None when not known."""
    if not info.gpu_uuid or not counters.has("gpu"):
        return None
    table = counters.table("gpu")
    here = (numbers(table, "node") == info.node) & (table["uuid"] == info.gpu_uuid).to_numpy()
    told = numbers(table, "nvml_index")[here]
    return f"{told[-1]:.0f}" if len(told) and np.isfinite(told[-1]) else None
