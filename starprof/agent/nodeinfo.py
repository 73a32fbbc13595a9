"""What is known of the node when the agent starts: one row of table `node`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from starprof.collectors import pci
from starprof.collectors.base import NodeContext
from starprof.collectors.cgroup import find_mounts
from starprof.collectors.procfile import read_once
from starprof.model.schema import BY_NAME, row

_SLURM = {"address": "", "pattern": "_PATTERN"}


def boot_id(proc: Path) -> str:
    """The kernel's boot id, empty where it does not tell."""
    return _text(proc / "sys/kernel/random/boot_id")


def node_row(context: NodeContext, environ: Mapping[str, str] = os.environ) -> list[object]:
    """The row of table `node`; the clocks are read last, as close together as possible."""
    uname = os.uname()
    detail: dict[str, object] = {
        "cpu_model": _cpu_model(context.proc),
        "cgroup": _cgroup_version(context),
        "interfaces": sorted(_names(context.sys / "class/net")),
        "infiniband": sorted(_names(context.sys / "class/infiniband")),
        "gpus": sorted(_names(context.proc / "driver/nvidia/gpus")),
        "netns": _inode(context.proc / "self/ns/net"),
        "pci": pci.devices(context.proc, context.sys),
        "topology": _topology(environ),
    }
    numa = [name for name in _names(context.sys / "devices/system/node") if name[:4] == "node" and name[4:].isdecimal()]
    detail["numa_cpus"] = {name[4:]: _text(context.sys / "devices/system/node" / name / "cpulist") for name in numa}
    facts = {
        "node": context.node,
        "host": uname.nodename,
        "boot_id": boot_id(context.proc) or None,
        "kernel": uname.release,
        "cpus": os.sysconf("SC_NPROCESSORS_ONLN"),
        "numa_nodes": len(numa) or None,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "detail": json.dumps({k: v for k, v in detail.items() if v}),
    }
    mono_ns, unix_ns = clock_pair()
    return row(BY_NAME["node"], **facts, mono_ns=mono_ns, unix_ns=unix_ns)


def _topology(environ: Mapping[str, str]) -> dict[str, str]:
    """Where Slurm puts this node in the network, such as s0.s4.node7 with the pattern switch.switch.node."""
    told = {name: environ.get(f"SLURM_TOPOLOGY_ADDR{suffix}", "") for name, suffix in _SLURM.items()}
    return told if all(told.values()) else {}


def clock_pair() -> tuple[int, int]:
    """Monotonic and wall clock of the same moment, ns: the closest of three readings."""
    best = None
    for _ in range(3):
        before = time.monotonic_ns()
        unix_ns = time.time_ns()
        width = time.monotonic_ns() - before
        if best is None or width < best[0]:
            best = (width, before + width // 2, unix_ns)
    assert best is not None
    return best[1], best[2]


def _text(path: Path) -> str:
    try:
        return read_once(path).decode(errors="replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:
        return []


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _cpu_model(proc: Path) -> str:
    for line in _text(proc / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def _cgroup_version(context: NodeContext) -> str:
    """v1, v2 or hybrid, by where the CPU and memory controllers are mounted."""
    try:
        mounts = find_mounts(read_once(context.proc / "self/mountinfo"), context.sys)
    except OSError:
        return ""
    versions = {mount.version for mount in mounts}
    return "hybrid" if len(versions) > 1 else f"v{versions.pop()}" if versions else ""
