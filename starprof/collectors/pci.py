"""Where network cards and GPUs hang in the PCI tree: who shares a switch or a NUMA node with whom.

Read once, from links of sysfs: /sys/class/net/NAME/device, /sys/class/infiniband/NAME/device,
/sys/class/drm/renderD*/device, and /proc/driver/nvidia/gpus, whose names are PCI addresses.
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_DEVICES = 128
_ROOT = "pci"
_PARTS = 3


def devices(proc: Path, sys: Path) -> dict[str, dict[str, object]]:
    """Place of each card by interface or InfiniBand device name, of GPUs by PCI address in lower case.

    Args:
        proc: root of procfs.
        sys: root of sysfs.

    Returns:
        Per device `path`, the PCI addresses from the host bridge down to the device, joined by "/", and `numa`, its
        NUMA node, absent where the kernel does not know it. Devices without a PCI card are left out.
    """
    found: dict[str, dict[str, object]] = {}
    for kind in ("class/net", "class/infiniband"):
        for name in _names(sys / kind):
            _add(found, name, sys / kind / name / "device")
    for name in _names(sys / "class/drm"):
        if name.startswith("renderD"):
            _add(found, "", sys / "class/drm" / name / "device")
    for name in _names(proc / "driver/nvidia/gpus"):
        _add(found, "", sys / "bus/pci/devices" / name.lower())
    return found


def _add(found: dict[str, dict[str, object]], name: str, link: Path) -> None:
    real = os.path.realpath(link)
    parts = [part for part in real.split("/") if _is_address(part) or _is_bridge(part)]
    addresses = [part for part in parts if _is_address(part)]
    if not addresses or len(found) >= MAX_DEVICES:
        return
    place: dict[str, object] = {"path": "/".join(parts)}
    card = real[: real.rindex(addresses[-1]) + len(addresses[-1])]  # virtio devices have a folder of their own below
    numa = _numa_node(Path(card))
    if numa is not None:
        place["numa"] = numa
    found[name or addresses[-1]] = place


def _is_bridge(part: str) -> bool:
    """Whether it is a host bridge, written like pci0000:16."""
    return part.startswith(_ROOT) and ":" in part


def _is_address(part: str) -> bool:
    """Whether it is written like 0000:18:00.0."""
    pieces = part.split(":")
    return len(pieces) == _PARTS and "." in pieces[-1] and len(pieces[1]) == 2 and len(pieces[0]) >= 4


def _numa_node(device: Path) -> int | None:
    """NUMA node of a device; the kernel says -1 where it does not know."""
    try:
        number = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - only names are needed
    except OSError:
        return []
