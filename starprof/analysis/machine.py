"""What the `detail` of a node's row tells of the machine: cards in the PCI tree, place in the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from starprof.analysis.counters import numbers
from starprof.model.rundata import RunData

MAX_LEVELS = 16
MAX_NUMA = 1 << 16
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Device:
    """A card: bridges from the root of the PCI tree down to it, and its NUMA node, None when not known."""

    path: tuple[str, ...]
    numa: int | None


@dataclass(frozen=True, slots=True)
class Level:
    """A switch, block or the like above a node.

    Attributes:
        kind: as Slurm calls it, `switch` or `block`.
        name: its name.
        key: the names from the top of the network down to it.
    """

    kind: str
    name: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """One node.

    Attributes:
        devices: by interface or InfiniBand device name; GPUs by PCI address in lower case, without leading zeros of
            the domain beyond four.
        levels: what stands above the node in the network, the nearest last; empty when that was not recorded.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()

    def card(self, nic: str) -> Device | None:
        """The card of an interface; InfiniBand ports are named DEVICE/PORT."""
        return self.devices.get(nic.partition("/")[0])

    def gpu(self, pci: str) -> Device | None:
        """The GPU at a PCI address, in any of the ways in which addresses are written."""
        return self.devices.get(address(pci)) if pci else None


def address(pci: str) -> str:
    """A PCI address as sysfs writes it: lower case, a domain of four digits, with the function.

    NVML writes 00000000:65:00.0, the kernel's messages PCI:0000:65:00.
    """
    text = pci.strip().lower().removeprefix("pci:")
    domain, _, rest = text.partition(":")
    if rest.count(":") == 0:
        domain, rest = "0000", text
    whole = f"{domain[-4:].rjust(4, '0')}:{rest}"
    return whole if "." in whole else f"{whole}.0"


def machines(run: RunData) -> dict[int, Machine]:
    """What is known of each node; nodes whose row tells nothing are left out."""
    nodes = run.nodes
    if "detail" not in nodes or "node" not in nodes:
        return {}
    pairs = zip(numbers(nodes, "node"), nodes["detail"], strict=True)
    return {int(node): machine(detail) for node, detail in pairs if np.isfinite(node) and isinstance(detail, str)}


def machine(detail: str) -> Machine:
    """One node from the JSON of its row; what is not as the agent writes it is left out."""
    try:
        told = json.loads(detail)
    except (ValueError, RecursionError):
        return Machine()
    if not isinstance(told, dict):
        return Machine()
    return Machine(_devices(told.get("pci")), _levels(told.get("topology")))


def _devices(told: object) -> dict[str, Device]:
    if not isinstance(told, dict):
        return {}
    found = {}
    for name, place in told.items():
        if isinstance(place, dict) and isinstance(place.get("path"), str):
            numa = place.get("numa")
            known = isinstance(numa, int) and not isinstance(numa, bool) and 0 <= numa < MAX_NUMA
            found[str(name)] = Device(tuple(place["path"].split("/")), numa if known else None)
    return found


def _levels(told: object) -> tuple[Level, ...]:
    """Slurm's SLURM_TOPOLOGY_ADDR and its pattern: s0.s4.node7 and switch.switch.node."""
    if not isinstance(told, dict):
        return ()
    where, pattern = told.get("address"), told.get("pattern")
    if not isinstance(where, str) or not isinstance(pattern, str):
        return ()
    kinds = pattern.split(".")
    names = where.split(".", len(kinds) - 1)  # the node's own name comes last and may hold dots
    if len(names) != len(kinds) or len(kinds) > MAX_LEVELS or kinds[-1] != "node":
        return ()
    return tuple(
        Level(kind[:MAX_NAME], name[:MAX_NAME], tuple(names[: depth + 1]))
        for depth, (kind, name) in enumerate(zip(kinds[:-1], names[:-1], strict=True))
        if name and kind
    )
