"""Network interfaces: bytes, packets, drops, errors, link state, and what the root queue discipline holds back.

Columns of `nic_sample` and where they come from:
  rx_*, tx_*              /proc/net/dev, cumulative bytes and packets. One read for all interfaces, and always of
                          this network namespace, while /sys may be mounted from another one. Receive drops include
                          packets missed by the hardware, as the kernel prints them there.
  up                      rtnetlink operational state (`rtnetlink.Link.up`), 0 or 1
  speed_mbit              /sys/class/net/NAME/speed, Mbit/s, at 1 Hz; NULL when the driver does not know (-1, EINVAL)
                          or when /sys shows another namespace's interface of that name
  qdisc_*                 rtnetlink RTM_GETQDISC of the root discipline, at 1 Hz, NULL in the ticks between; bytes,
                          packets and times; 32-bit counters that start when the discipline is installed
  rx_pause_frames, ...    `starprof.collectors.ethtool`, every 10 s, NULL in between

The bytes belong to the node, never to a rank: all processes of a namespace share them. To sum a node's traffic
take types `ethernet` and `bond-member` (and `virtual` only where there are neither): a `bond` counts its members
again, and bridges, VLANs and IPoIB count what passes below them again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from operator import itemgetter

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.ethtool import Ethtool, PriorityCounters
from starprof.collectors.nic_list import NicList, Route
from starprof.collectors.notes import Notes, Pace
from starprof.collectors.procfile import ProcFile
from starprof.collectors.rtnetlink import Qdisc, RouteSocket
from starprof.model.schema import INT_NULL
from starprof.model.tables.network import NIC_SAMPLE

_SECOND_NS = 1_000_000_000
_SHARE = 0.002
_HEADER_LINES = 2
_IN_COLUMN_ORDER = itemgetter(0, 8, 1, 9, 3, 11, 2, 10)  # bytes, packets, drops, errors: received, sent
_NO_QDISC = Qdisc("", INT_NULL, INT_NULL, INT_NULL)
_NO_PRIORITIES = PriorityCounters(INT_NULL, INT_NULL, INT_NULL, INT_NULL)


class NicCollector:
    """Collects `nic_sample` and `nic`.

    Args:
        route: opens the routing socket; raises OSError where the kernel or a sandbox refuses it.
        ethtool: opens the source of per-priority counters; raises OSError likewise.
    """

    name = "nic"
    dear = False

    def __init__(self, route: Callable[[], Route] = RouteSocket, ethtool: Callable[[], Ethtool] = Ethtool) -> None:
        self._open_route = route
        self._open_ethtool = ethtool
        self._route: Route | None = None
        self._ethtool: Ethtool | None = None
        self._each_second = Pace(_SECOND_NS, _SHARE, time.thread_time_ns)
        self._each_ten_seconds = Pace(10 * _SECOND_NS, _SHARE, time.thread_time_ns)

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Open /proc/net/dev and the routing socket, and list the interfaces."""
        self._node = context.node
        try:
            self._dev = ProcFile(context.proc / "net" / "dev")
        except OSError as error:
            raise Unavailable(f"{context.proc}/net/dev can't be read: {error.strerror}") from error
        notes = Notes(self.name, context.node)
        try:
            self._route = self._open_route()
        except OSError as error:
            notes.unavailable(rows, "link", f"no routing netlink socket: {error.strerror}")
        with contextlib.suppress(OSError):  # pause frames are then NULL, as for a driver that counts none
            self._ethtool = self._open_ethtool()
        self._list = NicList(context, self._route, notes)
        self._list.refresh(self._counters(), None, rows)

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per interface."""
        counters = self._counters()
        second = self._each_second.due(mono_ns)
        if self._list.stale(counters) or (second and self._route is None):
            self._list.refresh(counters, mono_ns, rows)
        qdiscs: Mapping[int, Qdisc] = {}
        if second:
            qdiscs = self._list.qdiscs(mono_ns, rows)
            self._each_second.done(mono_ns)
        priorities = self._priorities(mono_ns)
        for name, nic in self._list.nics.items():
            qdisc = qdiscs.get(nic.link.index, _NO_QDISC)
            speed_mbit = INT_NULL if nic.speed_mbit is None else nic.speed_mbit
            state = (speed_mbit, int(nic.link.up), qdisc.drops, qdisc.backlog_bytes, qdisc.overlimits)
            pauses = priorities.get(name, _NO_PRIORITIES)
            rows.add(
                NIC_SAMPLE,
                [
                    self._node,
                    mono_ns,
                    nic.id,
                    *map(int, _IN_COLUMN_ORDER(counters[name].split())),
                    *state,
                    *pauses,
                    INT_NULL,
                ],
            )

    def close(self) -> None:
        """Close all descriptors."""
        self._dev.close()
        self._list.close()
        if self._route is not None:
            self._route.close()
        if self._ethtool is not None:
            self._ethtool.close()

    def _counters(self) -> dict[str, bytes]:
        """Counters of each interface as text: 8 of reception, then 8 of transmission."""
        found = {}
        for line in self._dev.read_all().split(b"\n")[_HEADER_LINES:]:
            name, colon, rest = line.partition(b":")
            if colon:
                found[name.strip().decode(errors="replace")] = rest
        return found

    def _priorities(self, mono_ns: int) -> Mapping[str, PriorityCounters]:
        """Per-priority and pause counters of the hardware interfaces, empty in between."""
        if self._ethtool is None or not self._each_ten_seconds.due(mono_ns):
            return {}
        found = {}
        for name, nic in self._list.nics.items():
            if nic.type in ("ethernet", "bond-member") and (counters := self._ethtool.priorities(name)) is not None:
                found[name] = counters
        self._each_ten_seconds.done(mono_ns)
        return found
