"""CPU time per logical CPU and of the whole node from /proc/stat; frequencies at 1 Hz.

/proc/stat counts in clock ticks (USER_HZ, 10 ms), so a single interval of 100 ms is only good to 10 %.
"""

from __future__ import annotations

import os

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.notes import Notes
from starprof.collectors.procfile import ProcFile, TickFile, shared
from starprof.model.schema import BY_NAME, INT_NULL

_CPU_SAMPLE = BY_NAME["cpu_sample"]
_WHOLE_NODE = -1
_SECOND_NS = 950_000_000
"""A second, less the slack that a tick may come early."""
MANY_CPUS = 64
"""More logical CPUs than this: their own rows come at 1 Hz, the node's row at every tick."""
_FREQUENCY_FILES = 256
"""No more frequency files than this stay open."""

STAT_BYTES = 16384


class CpuCollector:
    """Rows of `cpu_sample`."""

    name = "cpu"
    dear = False

    def __init__(self) -> None:
        self._tick_us = 1_000_000 // os.sysconf("SC_CLK_TCK")
        self._node = 0
        self._stat: TickFile | None = None
        self._frequencies: dict[int, ProcFile] = {}
        self._cpuinfo: ProcFile | None = None
        self._next_second_ns = 0

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Open /proc/stat and the frequency files.

        Raises:
            Unavailable: /proc/stat can't be read.
        """
        self._node = context.node
        try:
            self._stat = shared(context.shared, context.proc / "stat", STAT_BYTES)
            fields = self._stat.read().split(b"\n", 1)[0].split()
        except OSError as error:
            raise Unavailable(f"{context.proc}/stat can't be read: {error.strerror}") from error
        if len(fields) < 9 or fields[0] != b"cpu":
            raise Unavailable(f"{context.proc}/stat has no line of CPU times")
        self._open_frequencies(context, rows)

    def _open_frequencies(self, context: NodeContext, rows: Rows) -> None:
        """Prefer cpufreq; /proc/cpuinfo is the fallback (virtual machines often have only that)."""
        for folder in sorted((context.sys / "devices/system/cpu").glob("cpu[0-9]*"))[:_FREQUENCY_FILES]:
            try:
                self._frequencies[int(folder.name[3:])] = ProcFile(folder / "cpufreq/scaling_cur_freq", 64)
            except OSError:
                continue
        if self._frequencies:
            return
        try:
            self._cpuinfo = ProcFile(context.proc / "cpuinfo")
            if b"cpu MHz" in self._cpuinfo.read_all():
                return
            self._cpuinfo.close()
            self._cpuinfo = None
        except OSError:
            pass
        reason = f"no {context.sys}/devices/system/cpu/*/cpufreq and no 'cpu MHz' in {context.proc}/cpuinfo"
        Notes(self.name, context.node).unavailable(rows, "frequency", reason)

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """One row for the node and one per logical CPU; frequencies only once a second, NULL in between."""
        assert self._stat is not None
        data = self._stat.at(mono_ns)
        fields = data[: data.find(b"\nintr")].split()
        # Every CPU line has the same number of fields (10 values since Linux 2.6.33, more one day).
        width = fields.index(b"cpu0") if b"cpu0" in fields[:32] else _line_width(data)
        every_second = mono_ns >= self._next_second_ns
        frequencies = {}
        if every_second:
            self._next_second_ns = mono_ns + _SECOND_NS
            frequencies = self._read_frequencies()
        end = len(fields) if every_second or len(fields) <= width * (MANY_CPUS + 1) else width
        node, tick_us, add = self._node, self._tick_us, rows.add
        for i in range(0, end, width):
            label, user, nice, system, idle, iowait, irq, softirq, steal = fields[i : i + 9]
            cpu = int(label[3:]) if i else _WHOLE_NODE
            wait_us = int(iowait) * tick_us
            row = (
                node,
                mono_ns,
                cpu,
                (int(user) + int(nice)) * tick_us,
                (int(system) + int(irq) + int(softirq)) * tick_us,
                int(idle) * tick_us + wait_us,
                wait_us,
                int(steal) * tick_us,
                frequencies.get(cpu, INT_NULL),
            )
            add(_CPU_SAMPLE, row)

    def _read_frequencies(self) -> dict[int, int]:
        """Current frequency per logical CPU in kHz, the node's mean as CPU -1; what can't be read is left out."""
        found: dict[int, int] = {}
        for cpu, file in self._frequencies.items():
            try:
                found[cpu] = int(file.read())
            except (OSError, ValueError):  # offline, or the driver answers <unknown>
                continue
        if self._cpuinfo is not None:
            cpu = 0
            for line in self._cpuinfo.read_all().split(b"\n"):
                if line.startswith(b"processor"):
                    cpu = int(line.rpartition(b":")[2])
                elif line.startswith(b"cpu MHz"):
                    found[cpu] = round(float(line.rpartition(b":")[2]) * 1000)
        if found:
            found[_WHOLE_NODE] = sum(found.values()) // len(found)
        return found

    def close(self) -> None:
        """Close all descriptors."""
        for file in (self._stat, self._cpuinfo, *self._frequencies.values()):
            if file is not None:
                file.close()
        self._frequencies.clear()
        self._stat = self._cpuinfo = None


def _line_width(stat: bytes) -> int:
    """Fields in the first line of /proc/stat, for a machine whose CPU 0 is offline."""
    return len(stat.split(b"\n", 1)[0].split())
