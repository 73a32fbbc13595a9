"""Per-priority packets and pause frames of a network card, from the driver's own statistics.

Source: ioctl SIOCETHTOOL (linux/ethtool.h) with ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS and ETHTOOL_GSTATS, what
`ethtool -S` prints; needs no privilege. The names are the driver's: mlx5 has `rx_prio3_packets`, `rx_prio3_pause`
and `rx_global_pause`; bnxt `rx_packets_pri3` and `rx_pfc_ena_frames_pri3`; ice and i40e `rx_priority_3_xoff`. All
are cumulative frame counts.

They show a lossless class that is not used: RDMA traffic that runs in priority 0 while pause frames (802.1Qbb)
would only protect another one.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from typing import NamedTuple

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_ETH_SS_STATS = 1
_NAME_BYTES = 32
_IFREQ = struct.Struct("16sP16x")
_SSET = struct.Struct("=IIQI")
_HEAD = struct.Struct("=III")
_STATS_HEAD = struct.Struct("=II")

_PRIORITY_PACKETS = re.compile(r"rx_prio(\d)_packets|rx_packets_pri(\d)")
_PAUSE = re.compile(
    r"(?:port\.)?(rx|tx)_(?:prio\d_pause|global_pause|pfc_ena_frames_pri\d|priority_\d_xoff|pause_frames)"
)


class PriorityCounters(NamedTuple):
    """The last columns of `nic_sample`, cumulative; None where the driver does not count it."""

    rx_pause_frames: int | None
    tx_pause_frames: int | None
    rx_prio0_packets: int | None
    rx_other_prio_packets: int | None


def priority_counters(statistics: dict[str, int]) -> PriorityCounters | None:
    """Sum a driver's statistics by direction and priority class; None when it counts neither."""
    pause: dict[str, int] = {}
    packets: dict[bool, int] = {}
    for name, value in statistics.items():
        if match := _PAUSE.fullmatch(name):
            pause[match[1]] = pause.get(match[1], 0) + value
        elif match := _PRIORITY_PACKETS.fullmatch(name):
            default = (match[1] or match[2]) == "0"
            packets[default] = packets.get(default, 0) + value
    if not pause and not packets:
        return None
    return PriorityCounters(pause.get("rx"), pause.get("tx"), packets.get(True), packets.get(False))


class Ethtool:
    """Asks drivers for their statistics; remembers which interfaces count nothing of interest.

    Raises:
        OSError: no socket can be made.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._names: dict[str, list[str]] = {}
        self._useless: set[str] = set()

    def priorities(self, interface: str) -> PriorityCounters | None:
        """Priority counters of an interface; None when its driver has none or refuses."""
        if interface in self._useless:
            return None
        try:
            found = priority_counters(self.statistics(interface))
        except OSError:  # the driver has no statistics, or the interface is gone
            found = None
        if found is None:
            self._useless.add(interface)
        return found

    def statistics(self, interface: str) -> dict[str, int]:
        """All statistics of the driver by name.

        Raises:
            OSError: the interface does not exist or its driver has no statistics.
        """
        names = self._names.get(interface)
        if names is None or len(names) != self._count(interface):
            names = self._names[interface] = self._read_names(interface)
        raw = self._call(interface, _STATS_HEAD.pack(_GSTATS, len(names)) + bytes(8 * len(names)))
        return dict(zip(names, struct.unpack_from(f"={len(names)}Q", raw, _STATS_HEAD.size), strict=True))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _count(self, interface: str) -> int:
        raw = self._call(interface, _SSET.pack(_GSSET_INFO, 0, 1 << _ETH_SS_STATS, 0))
        _, _, mask, count = _SSET.unpack(raw)
        return int(count) if mask else 0

    def _read_names(self, interface: str) -> list[str]:
        count = self._count(interface)
        raw = self._call(interface, _HEAD.pack(_GSTRINGS, _ETH_SS_STATS, count) + bytes(_NAME_BYTES * count))
        at = [_HEAD.size + _NAME_BYTES * i for i in range(count)]
        return [raw[i : i + _NAME_BYTES].split(b"\0", 1)[0].decode(errors="replace").strip() for i in at]

    def _call(self, interface: str, command: bytes) -> bytes:
        """Run one ethtool command; the kernel writes its answer over it."""
        buffer = array.array("B", command)
        fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(interface.encode(), buffer.buffer_info()[0]))
        return buffer.tobytes()
