"""What the numbers mean by which NVIDIA's driver reports trouble of a GPU (XIDs), and how its lines look.

The numbers are those of NVIDIA's public XID catalogue (docs.nvidia.com/deploy/xid-errors); the words are ours. A number
says what the driver saw, not what it cost: applications make some of them, and healthy GPUs go on after others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starprof.model import causes

MEMORY, LOST, LINK, FIRMWARE, APPLICATION, FOLLOWING, OTHER = (
    "memory",
    "lost",
    "link",
    "firmware",
    "application",
    "following",
    "other",
)
"""What is concerned: memory cells; the whole card; its NVLinks; the firmware or a controller on it; the program that
computes on it; cleaning up after another error; none of these."""

CAUSES = {MEMORY: causes.GPU_ECC, LOST: causes.GPU_LOST, LINK: causes.NVLINK, FIRMWARE: causes.GPU_LOST}
"""Causes that a class can be; a program's own fault or a clean-up is no cause of the hardware."""

_KINDS: dict[str, dict[int, str]] = {
    MEMORY: {
        48: "memory error that could not be corrected",
        63: "a bad memory row or page was taken out of use",
        64: "taking a bad memory row or page out of use failed",
        92: "many memory errors were corrected",
        94: "uncorrectable memory error, confined to one program",
        95: "uncorrectable memory error, not confined",
        140: "uncorrectable memory error",
    },
    LOST: {79: "the GPU fell off the bus"},
    LINK: {
        74: "NVLink error",
        121: "error of the link between CPU and GPU",
        **dict.fromkeys(range(144, 151), "NVLink error"),
    },
    FIRMWARE: {
        61: "a controller on the GPU stopped",
        62: "a controller on the GPU halted",
        119: "the GPU's firmware (GSP) did not answer",
        120: "error in the GPU's firmware (GSP)",
    },
    APPLICATION: {
        8: "the GPU stopped processing for a program",
        13: "a program made the GPU's engine fail",
        31: "a program accessed memory that is not its own",
        32: "a program's commands were damaged",
        43: "the GPU stopped a program that had failed",
        69: "a program made the GPU's engine fail",
    },
    FOLLOWING: {
        45: "work was cleaned up after another error or the end of its program",
        154: "the GPU asks for a recovery",
    },
}
_MEANINGS = {number: (kind, words) for kind, numbers in _KINDS.items() for number, words in numbers.items()}

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?)\): (\d{1,4})\b(.{0,200})"
)
_PROCESS = re.compile(r"\bpid='?(\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an XID says: which part is concerned, and words for it."""

    kind: str
    words: str

    @property
    def of_hardware(self) -> bool:
        """Whether a part of the machine is concerned, not the program that computes."""
        return self.kind in CAUSES


@dataclass(frozen=True, slots=True)
class XidLine:
    """One line of a log.

    Attributes:
        pci: address of the GPU as the line writes it.
        process: process that computed on it, None when the line does not tell.
    """

    number: int
    pci: str
    process: int | None


def meaning(number: int) -> Meaning:
    """What a number says; for one that is not listed here, that NVIDIA's catalogue does."""
    kind, words = _MEANINGS.get(number, (OTHER, "see NVIDIA's catalogue of XID errors"))
    return Meaning(kind, words)


def line_of(text: str) -> XidLine | None:
    """The XID that a line of a log reports, None when it reports none."""
    found = _LINE.search(text)
    if found is None:
        return None
    process = _PROCESS.search(found[3])
    return XidLine(int(found[2]), found[1], int(process[1]) if process is not None else None)


def detail_of(line: XidLine) -> str:
    """How an event's detail names the GPU of a line; nothing else of the line is kept."""
    return f"GPU {line.pci}" + (f", process {line.process}" if line.process is not None else "")
