"""Interrupts: which logical CPUs do the network's work.

Columns of `irq_sample`, cumulative counts, 1 Hz:
  interrupts        cpu = -1: first number of the `intr` line of /proc/stat, all interrupts since boot.
                    cpu >= 0: sum of the CPU's column in /proc/interrupts, read as often as it costs less than 0.1 % of
                    a core (its size is CPUs times interrupts), NULL in between
  softirq_net_rx    NET_RX of /proc/softirqs; cpu = -1 is the sum
  softirq_net_tx    NET_TX of /proc/softirqs
"""

from __future__ import annotations

import time

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.notes import Pace
from starprof.collectors.procfile import ProcFile, optional, shared
from starprof.model.tables.host import IRQ_SAMPLE

_SHARE = 0.001


class IrqCollector:
    """Collects `irq_sample`."""

    name = "irq"
    dear = True

    def open(self, context: NodeContext, rows: Rows) -> None:  # noqa: ARG002 - CPUs need no dictionary
        """Open /proc/softirqs, /proc/stat and /proc/interrupts."""
        self._node = context.node
        self._pace = Pace(0, _SHARE, time.thread_time_ns)
        try:
            self._softirqs = ProcFile(context.proc / "softirqs")
        except OSError as error:
            raise Unavailable(f"{context.proc}/softirqs can't be read: {error.strerror}") from error
        self._interrupts = optional(context.proc / "interrupts")
        try:
            self._stat = shared(context.shared, context.proc / "stat")
        except OSError as error:
            raise Unavailable(f"{context.proc}/stat can't be read: {error.strerror}") from error

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per CPU and one of the whole node."""
        cpus, softirqs = per_cpu(self._softirqs.read(), (b"NET_RX:", b"NET_TX:"))
        none: list[int | None] = [None] * len(cpus)
        rx = softirqs.get(b"NET_RX:", none)
        tx = softirqs.get(b"NET_TX:", none)
        hardware = self._per_cpu_interrupts(mono_ns)
        total = _interrupt_total(self._stat.at(mono_ns))
        rows.add(IRQ_SAMPLE, [self._node, mono_ns, -1, total, _sum(rx), _sum(tx)])
        for i, cpu in enumerate(cpus):
            rows.add(IRQ_SAMPLE, [self._node, mono_ns, cpu, hardware.get(cpu), rx[i], tx[i]])

    def close(self) -> None:
        """Close the descriptors that are not shared."""
        self._softirqs.close()
        if self._interrupts is not None:
            self._interrupts.close()

    def _per_cpu_interrupts(self, mono_ns: int) -> dict[int, int]:
        if self._interrupts is None or not self._pace.due(mono_ns):
            return {}
        found = interrupt_sums(self._interrupts.read_all())
        self._pace.done(mono_ns)
        return found


def per_cpu(data: bytes, names: tuple[bytes, ...]) -> tuple[list[int], dict[bytes, list[int | None]]]:
    """CPU numbers of the head line, and the named lines as one number per CPU."""
    lines = data.split(b"\n")
    cpus = [int(word[3:]) for word in lines[0].split()]
    found: dict[bytes, list[int | None]] = {}
    for line in lines[1:]:
        name, _, rest = line.strip().partition(b" ")
        values = rest.split()
        if name in names and len(values) >= len(cpus):
            found[name] = [int(v) for v in values[: len(cpus)]]
    return cpus, found


def interrupt_sums(data: bytes) -> dict[int, int]:
    """Sum of all interrupt lines per CPU; lines without a number per CPU (ERR, MIS) are left out."""
    lines = data.split(b"\n")
    cpus = [int(word[3:]) for word in lines[0].split()]
    sums = [0] * len(cpus)
    for line in lines[1:]:
        values = line.split(None, len(cpus) + 1)[1 : len(cpus) + 1]
        if len(values) == len(cpus) and values[-1].isdigit():
            sums = [a + int(b) for a, b in zip(sums, values, strict=True)]
    return dict(zip(cpus, sums, strict=True))


def _interrupt_total(stat: bytes) -> int | None:
    at = stat.find(b"\nintr ")
    return int(stat[at + 6 :].split(None, 1)[0]) if at >= 0 else None


def _sum(values: list[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None
