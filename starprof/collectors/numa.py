"""NUMA nodes: free memory, and pages that had to be taken from another node.

Columns of `numa_sample`, 1 Hz, from /sys/devices/system/node/nodeN:
  free_bytes      meminfo, `MemFree`, kB times 1024
  local_pages     numastat, `local_node`: pages given to processes that ran on this node
  other_pages     numastat, `other_node`: pages given to processes that ran on another node
  miss_pages      numastat, `numa_miss`: pages given here although another node was wanted
"""

from __future__ import annotations

import re

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.procfile import ProcFile, optional
from starprof.model.tables.host import NUMA_SAMPLE

_NODE = re.compile(r"node(\d+)")
_KIB = 1024
_MEM_FREE = re.compile(rb"MemFree:\s+(\d+)")


class NumaCollector:
    """Collects `numa_sample`."""

    name = "numa"
    dear = True

    def open(self, context: NodeContext, rows: Rows) -> None:  # noqa: ARG002 - NUMA nodes need no dictionary
        """Open the files of each node."""
        self._node = context.node
        root = context.sys / "devices" / "system" / "node"
        folders = {int(m[1]): f for f in root.glob("node*") if (m := _NODE.fullmatch(f.name))}
        self._files: dict[int, tuple[ProcFile | None, ProcFile | None]] = {
            number: (optional(folder / "numastat"), optional(folder / "meminfo"))
            for number, folder in sorted(folders.items())
        }
        if not self._files:
            raise Unavailable(f"no NUMA node below {root}")

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per node."""
        for number, (numastat, meminfo) in self._files.items():
            stat = dict(line.split() for line in _read(numastat).splitlines())
            free = _MEM_FREE.search(_read(meminfo))
            free_bytes = int(free[1]) * _KIB if free else None
            pages = [_integer(stat.get(name)) for name in (b"local_node", b"other_node", b"numa_miss")]
            rows.add(NUMA_SAMPLE, [self._node, mono_ns, number, free_bytes, *pages])

    def close(self) -> None:
        """Close all descriptors."""
        for files in self._files.values():
            for file in files:
                if file is not None:
                    file.close()


def _read(file: ProcFile | None) -> bytes:
    """Content, empty where the file is missing or its node went offline."""
    try:
        return file.read() if file is not None else b""
    except OSError:
        return b""


def _integer(text: bytes | None) -> int | None:
    return int(text) if text is not None else None
