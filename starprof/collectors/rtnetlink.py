"""Links, addresses and root queue disciplines of this network namespace, from the kernel's rtnetlink.

Sources: RTM_GETLINK (`struct ifinfomsg`, linux/if_link.h), RTM_GETADDR (`struct ifaddrmsg`, linux/if_addr.h),
RTM_GETQDISC (`struct tcmsg`, linux/rtnetlink.h; `struct gnet_stats_queue`, linux/gen_stats.h). Unlike /sys, which
may be mounted from another namespace, a netlink socket always answers for the namespace it was opened in.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from starprof.collectors.netlink import NETLINK_ROUTE, Netlink, attributes, c_string

_RTM_GETLINK, _RTM_GETADDR, _RTM_GETQDISC = 18, 22, 38
_RTMGRP_LINK = 1

_IFINFOMSG = struct.Struct("=BxHiII")
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_OPERSTATE, _IFLA_LINKINFO, _IFLA_EXT_MASK = 3, 10, 16, 18, 29
_IFLA_INFO_KIND = 1
_RTEXT_FILTER_SKIP_STATS = 8
_IFF_UP, _IFF_LOOPBACK, _IFF_LOWER_UP = 0x1, 0x8, 0x10000
_OPER_UNKNOWN, _OPER_UP = 0, 6
_ARPHRD_INFINIBAND = 32

_IFADDRMSG = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2

_TCMSG = struct.Struct("=BxxxiIII")
_TC_H_ROOT = 0xFFFFFFFF
_TCA_KIND, _TCA_STATS2 = 1, 7
_TCA_STATS_QUEUE = 3
_QUEUE = struct.Struct("=IIIII")

_U32 = struct.Struct("=I")
_EXT_MASK = struct.Struct("=HHI")


@dataclass(frozen=True, slots=True)
class Link:
    """One interface.

    Attributes:
        index: the kernel's number of it, unique within the namespace.
        name: its name now.
        up: it can carry traffic: operational state up, or a driver that keeps no state but has a carrier.
        loopback: it is `lo`.
        ipoib: it carries IP over an InfiniBand port, whose own counters hold the same bytes.
        kind: driver kind of a software interface (veth, bond, bridge, vlan, ...), None for hardware.
        master: index of the bond or bridge it belongs to.
    """

    index: int
    name: str
    up: bool
    loopback: bool = False
    ipoib: bool = False
    kind: str | None = None
    master: int | None = None


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A root queue discipline; the counters are 32 bits wide in the kernel and start when it is installed."""

    kind: str
    backlog_bytes: int | None = None
    drops: int | None = None
    overlimits: int | None = None


class RouteSocket:
    """Asks the kernel about this namespace's interfaces, and hears when they change.

    Raises:
        OSError: the kernel or a sandbox refuses routing netlink.
    """

    def __init__(self) -> None:
        self._requests = Netlink(NETLINK_ROUTE)
        try:
            self._news = Netlink(NETLINK_ROUTE, _RTMGRP_LINK)
        except OSError:
            self._requests.close()
            raise

    def changed(self) -> bool:
        """Whether a link appeared, vanished, was renamed, or changed its state since the last call."""
        return self._news.heard()

    def links(self) -> list[Link]:
        """All interfaces."""
        body = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        body += _EXT_MASK.pack(_EXT_MASK.size, _IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
        return [_link(message) for message in self._requests.dump(_RTM_GETLINK, body)]

    def addresses(self) -> dict[int, list[str]]:
        """IP addresses per interface index."""
        found: dict[int, list[str]] = {}
        for message in self._requests.dump(_RTM_GETADDR, _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            family, _, _, _, index = _IFADDRMSG.unpack_from(message)
            parts = dict(attributes(message, _IFADDRMSG.size))
            # On a point-to-point link ADDRESS is the peer's, LOCAL is ours.
            raw = parts.get(_IFA_LOCAL, parts.get(_IFA_ADDRESS))
            if raw is not None and family in (socket.AF_INET, socket.AF_INET6):
                found.setdefault(index, []).append(socket.inet_ntop(family, bytes(raw)))
        return found

    def qdiscs(self) -> dict[int, Qdisc]:
        """Root queue discipline per interface index (statistics of `mq` include its children)."""
        found: dict[int, Qdisc] = {}
        for message in self._requests.dump(_RTM_GETQDISC, _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
            _, index, _, parent, _ = _TCMSG.unpack_from(message)
            if parent == _TC_H_ROOT:
                found[index] = _qdisc(message)
        return found

    def close(self) -> None:
        """Close both sockets."""
        self._requests.close()
        self._news.close()


def _link(message: memoryview) -> Link:
    _, hardware, index, flags, _ = _IFINFOMSG.unpack_from(message)
    parts = dict(attributes(message, _IFINFOMSG.size))
    state = parts[_IFLA_OPERSTATE][0] if _IFLA_OPERSTATE in parts else _OPER_UNKNOWN
    kind = dict(attributes(parts[_IFLA_LINKINFO])).get(_IFLA_INFO_KIND) if _IFLA_LINKINFO in parts else None
    return Link(
        index=index,
        name=c_string(parts[_IFLA_IFNAME]),
        up=state == _OPER_UP or (state == _OPER_UNKNOWN and bool(flags & _IFF_UP and flags & _IFF_LOWER_UP)),
        loopback=bool(flags & _IFF_LOOPBACK),
        ipoib=hardware == _ARPHRD_INFINIBAND,
        kind=c_string(kind) if kind is not None else None,
        master=_U32.unpack_from(parts[_IFLA_MASTER])[0] if _IFLA_MASTER in parts else None,
    )


def _qdisc(message: memoryview) -> Qdisc:
    parts = dict(attributes(message, _TCMSG.size))
    kind = c_string(parts[_TCA_KIND])
    stats = dict(attributes(parts[_TCA_STATS2])) if _TCA_STATS2 in parts else {}
    queue = stats.get(_TCA_STATS_QUEUE)
    if queue is None or len(queue) < _QUEUE.size:
        return Qdisc(kind)
    _, backlog, drops, _, overlimits = _QUEUE.unpack_from(queue)
    return Qdisc(kind, backlog, drops, overlimits)
