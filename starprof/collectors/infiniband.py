"""InfiniBand and RoCE ports, as rows of `nic_sample` with type `infiniband`.

Sources below /sys/class/infiniband/DEVICE/ports/PORT:
  rx_bytes, tx_bytes      counters/port_rcv_data, port_xmit_data: 4-byte words, so times 4, once. The number of
                          lanes ("4X") is no part of it: the counter counts the whole port.
  rx_packets, tx_packets  counters/port_rcv_packets, port_xmit_packets
  tx_dropped              counters/port_xmit_discards
  rx_dropped              hw_counters/out_of_buffer, where the driver has it: no receive buffer was posted
  rx_errors, tx_errors    counters/port_rcv_errors, port_xmit_constraint_errors
  xmit_wait_ticks         counters/port_xmit_wait: ticks with data to send but no credit from the other side
  speed_mbit              rate ("100 Gb/sec (4X EDR)"), all lanes together
  up                      state ("4: ACTIVE")

The counters are 64 bits wide and wrap or are reset by tools; they are reported as they are. Each read asks the
card's firmware, so ports are read at 1 Hz. A RoCE port's bytes are those of RDMA alone, which the Ethernet
interface of the same card does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.notes import Notes, stable_id
from starprof.collectors.procfile import ProcFile, optional
from starprof.model.schema import row
from starprof.model.tables.network import NIC, NIC_SAMPLE

_WORD_BYTES = 4
_COUNTERS = {
    "rx_bytes": "counters/port_rcv_data",
    "tx_bytes": "counters/port_xmit_data",
    "rx_packets": "counters/port_rcv_packets",
    "tx_packets": "counters/port_xmit_packets",
    "rx_dropped": "hw_counters/out_of_buffer",
    "tx_dropped": "counters/port_xmit_discards",
    "rx_errors": "counters/port_rcv_errors",
    "tx_errors": "counters/port_xmit_constraint_errors",
    "xmit_wait_ticks": "counters/port_xmit_wait",
}
_IN_WORDS = ("rx_bytes", "tx_bytes")
_ACTIVE = "4"
_MBIT_PER_GBIT = 1000
_INT64_MAX = 2**63 - 1


@dataclass(slots=True)
class _Port:
    """One port with its kept-open files by column."""

    id: int
    name: str
    files: dict[str, ProcFile | None]
    rate: ProcFile | None
    state: ProcFile | None

    def close(self) -> None:
        for file in (*self.files.values(), self.rate, self.state):
            if file is not None:
                file.close()


class InfinibandCollector:
    """Collects the ports of `nic_sample` and `nic`."""

    name = "infiniband"
    dear = True

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Find the ports and open their counters."""
        self._node = context.node
        self._notes = Notes(self.name, context.node)
        self._seen_ns: int | None = None
        root = context.sys / "class" / "infiniband"
        folders = sorted(root.glob("*/ports/*"))
        if not folders:
            raise Unavailable(f"no InfiniBand or RoCE device below {root}")
        self._ports = [self._open_port(folder, rows) for folder in folders]

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per port that still answers."""
        for port in list(self._ports):
            values = {column: _number(file) for column, file in port.files.items()}
            if all(value is None for value in values.values()):
                self._lose(port, rows)
                continue
            for column in _IN_WORDS:
                words = values[column]
                values[column] = _signed(words * _WORD_BYTES) if words is not None else None
            rate, state = _text(port.rate), _text(port.state)
            up = int(state.startswith(_ACTIVE)) if state else None
            facts = {"speed_mbit": _mbit(rate), "up": up}
            rows.add(NIC_SAMPLE, row(NIC_SAMPLE, node=self._node, mono_ns=mono_ns, nic=port.id, **values, **facts))
        self._seen_ns = mono_ns

    def close(self) -> None:
        """Close all descriptors."""
        for port in self._ports:
            port.close()

    def _open_port(self, folder: Path, rows: Rows) -> _Port:
        name = f"{folder.parent.parent.name}/{folder.name}"
        files = {column: optional(folder / path) for column, path in _COUNTERS.items()}
        port = _Port(stable_id("infiniband", name), name, files, optional(folder / "rate"), optional(folder / "state"))
        rows.add(NIC, row(NIC, node=self._node, nic=port.id, name=name, type="infiniband"))
        missing = [path for column, path in _COUNTERS.items() if files[column] is None]
        if missing:
            self._notes.unavailable(rows, name, f"not counted by the driver: {', '.join(missing)}")
        return port

    def _lose(self, port: _Port, rows: Rows) -> None:
        self._ports.remove(port)
        port.close()
        self._notes.gap(rows, self._seen_ns, None, f"port {port.name} can't be read any more")


def _text(file: ProcFile | None) -> str | None:
    try:
        return file.read().decode(errors="replace").strip() if file is not None else None
    except OSError:
        return None


def _number(file: ProcFile | None) -> int | None:
    text = _text(file)
    return _signed(int(text)) if text is not None and text.isdecimal() else None


def _signed(value: int) -> int:
    """Fold a counter into the signed 64 bits of a cell: past its end it wraps, which reads as a reset."""
    return value & _INT64_MAX


def _mbit(rate: str | None) -> int | None:
    """Megabits per second of a rate such as "100 Gb/sec (4X EDR)"; a port that is down says 0 or less."""
    try:
        gbit = float((rate or "").split()[0])
    except (IndexError, ValueError):
        return None
    return round(gbit * _MBIT_PER_GBIT) if gbit > 0 else None
