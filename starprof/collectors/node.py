"""The whole node: pressure stall information, memory, swap, scheduler.

PSI (pressure stall information) is the kernel's own account of time lost to waiting:
https://docs.kernel.org/accounting/psi.html
"""

from __future__ import annotations

from pathlib import Path

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.cpu import STAT_BYTES
from starprof.collectors.notes import Notes
from starprof.collectors.procfile import ProcFile, TickFile, optional, shared
from starprof.model.schema import BY_NAME, INT_NULL

_NODE_SAMPLE = BY_NAME["node_sample"]
_SECOND_NS = 950_000_000
"""A second, less the slack that a tick may come early."""
_PRESSURES = ("cpu", "memory", "io")


class NodeCollector:
    """Rows of `node_sample`. The counters of /proc/vmstat are read at 1 Hz and NULL in between."""

    name = "node"
    dear = False

    def __init__(self) -> None:
        self._node = 0
        self._stat: TickFile | None = None
        self._meminfo: ProcFile | None = None
        self._vmstat: ProcFile | None = None
        self._pressure: list[ProcFile | None] = []
        self._next_second_ns = 0

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Open the sources; each one that is missing is recorded and leaves its columns NULL.

        Raises:
            Unavailable: none of them can be read.
        """
        self._node = context.node
        notes = Notes(self.name, context.node)
        self._pressure = [_open_pressure(context.proc / "pressure" / name, notes, rows) for name in _PRESSURES]
        self._meminfo = optional(context.proc / "meminfo")
        self._vmstat = optional(context.proc / "vmstat", 8192)
        try:
            self._stat = shared(context.shared, context.proc / "stat", STAT_BYTES)
        except OSError:
            self._stat = None
        for name, file in (("meminfo", self._meminfo), ("vmstat", self._vmstat), ("stat", self._stat)):
            if file is None:
                notes.unavailable(rows, name, f"{context.proc}/{name} can't be opened")
        if not any((*self._pressure, self._meminfo, self._vmstat, self._stat)):
            raise Unavailable(f"nothing in {context.proc} can be read")

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append the node's row."""
        pressure = [_totals(file) for file in self._pressure]
        available, swap_used, dirty = _memory(self._meminfo)
        swap_in = swap_out = major_faults = INT_NULL
        if self._vmstat is not None and mono_ns >= self._next_second_ns:
            self._next_second_ns = mono_ns + _SECOND_NS
            swap_in, swap_out, major_faults = _vm_counters(self._vmstat.read_all())
        switches, running, blocked = _scheduler(self._stat.at(mono_ns) if self._stat else b"")
        row = (
            self._node,
            mono_ns,
            pressure[0][0],
            *pressure[1],
            *pressure[2],
            available,
            swap_used,
            dirty,
            swap_in,
            swap_out,
            major_faults,
            switches,
            running,
            blocked,
        )
        rows.add(_NODE_SAMPLE, row)

    def close(self) -> None:
        """Close all descriptors."""
        for file in (*self._pressure, self._meminfo, self._vmstat, self._stat):
            if file is not None:
                file.close()
        self._pressure = []
        self._meminfo = self._vmstat = self._stat = None


def _open_pressure(path: Path, notes: Notes, rows: Rows) -> ProcFile | None:
    """One PSI file, or None with the reason recorded."""
    try:
        file = ProcFile(path, 256)
    except FileNotFoundError:
        notes.unavailable(rows, f"psi-{path.name}", f"no {path}: kernel without CONFIG_PSI or booted with psi=0")
        return None
    except OSError as error:
        notes.unavailable(rows, f"psi-{path.name}", f"{path}: {error.strerror}")
        return None
    try:
        file.read()
    except OSError as error:  # the file exists with CONFIG_PSI_DEFAULT_DISABLED, but can't be read
        notes.unavailable(rows, f"psi-{path.name}", f"{path}: {error.strerror}; boot with psi=1")
        file.close()
        return None
    return file


def _totals(file: ProcFile | None) -> tuple[int, int]:
    """The `some` and `full` totals of a PSI file in us; the node's cpu file has no `full` before Linux 5.13."""
    if file is None:
        return INT_NULL, INT_NULL
    words = file.read().split()
    return int(words[4][6:]), int(words[9][6:]) if len(words) > 9 else INT_NULL


def _field(data: bytes, name: bytes) -> int:
    """The number after `name` at the start of a line, INT_NULL where there is no such line."""
    at = data.find(name)
    if at < 0:
        return INT_NULL
    at += len(name)
    return int(data[at : at + 24].split(None, 1)[0])


def _memory(meminfo: ProcFile | None) -> tuple[int, int, int]:
    """MemAvailable, used swap and dirty page cache in bytes."""
    if meminfo is None:
        return INT_NULL, INT_NULL, INT_NULL
    data = meminfo.read()
    available = _field(data, b"\nMemAvailable:")
    total, free = _field(data, b"\nSwapTotal:"), _field(data, b"\nSwapFree:")
    dirty = _field(data, b"\nDirty:")
    return (
        available * 1024 if available >= 0 else INT_NULL,
        (total - free) * 1024 if total >= 0 and free >= 0 else INT_NULL,
        dirty * 1024 if dirty >= 0 else INT_NULL,
    )


def _vm_counters(data: bytes) -> tuple[int, int, int]:
    """pswpin, pswpout, pgmajfault since boot."""
    return _field(data, b"\npswpin "), _field(data, b"\npswpout "), _field(data, b"\npgmajfault ")


def _scheduler(stat: bytes) -> tuple[int, int, int]:
    """ctxt, procs_running, procs_blocked; they stand behind the long `intr` line."""
    at = stat.find(b"\nctxt ")
    if at < 0:
        return INT_NULL, INT_NULL, INT_NULL
    tail = stat[at:]
    return _field(tail, b"\nctxt "), _field(tail, b"\nprocs_running "), _field(tail, b"\nprocs_blocked ")
