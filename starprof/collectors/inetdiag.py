"""Established TCP sockets of this network namespace with their `tcp_info`, by socket diagnosis over netlink.

Request and answer: linux/inet_diag.h (`struct inet_diag_req_v2`, `struct inet_diag_msg`, attribute
INET_DIAG_INFO); fields of `struct tcp_info`: linux/tcp.h. The structure grows with every few kernels, so each
field is taken by its offset and is None where the kernel's answer is too short to hold it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from starprof.collectors.netlink import NETLINK_SOCK_DIAG, Netlink, attributes

_SOCK_DIAG_BY_FAMILY = 20
_INET_DIAG_INFO = 2
_TCP_ESTABLISHED = 1
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=BBBB2s2s16s16sI8sIIIII")

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_UNACKED_AT, _RTT_AT, _TOTAL_RETRANS_AT, _MIN_RTT_AT = 24, 68, 100, 148
_BYTES_ACKED_AT, _BYTES_RECEIVED_AT, _DELIVERY_RATE_AT = 120, 128, 160
_BUSY_AT, _RWND_LIMITED_AT, _SNDBUF_LIMITED_AT = 168, 176, 184
_NO_MIN_RTT = 0xFFFFFFFF
_V4_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What `tcp_info` tells of one socket; None where the kernel does not say or has not measured yet.

    Attributes:
        rtt_us: smoothed round trip, in microseconds.
        min_rtt_us: least round trip within the kernel's window.
        delivery_bytes_per_s: most recent delivery rate.
        acked_bytes, received_bytes, retransmits: since the connection began.
        busy_us, rwnd_limited_us, sndbuf_limited_us: time with data to send, and the parts of it that the peer's
            window or the own send buffer held back, since the connection began.
        unacked: segments in flight.
    """

    rtt_us: int | None
    min_rtt_us: int | None
    delivery_bytes_per_s: int | None
    acked_bytes: int | None
    received_bytes: int | None
    retransmits: int | None
    busy_us: int | None
    rwnd_limited_us: int | None
    sndbuf_limited_us: int | None
    unacked: int | None


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One established socket, not yet taken apart: most sockets of a node belong to nobody we look at.

    Attributes:
        inode: number by which /proc/PID/fd names it; 0 when no process holds it any more.
        cookie: the kernel's id of the socket, never used twice during a boot.
        send_queue_bytes: bytes not yet acknowledged, sent or not.
    """

    inode: int
    cookie: bytes
    send_queue_bytes: int
    _ends: tuple[bytes, bytes, bytes, bytes]
    _family: int
    _info: bytes

    @property
    def local(self) -> str:
        """Own address:port."""
        return _end_point(self._family, self._ends[0], self._ends[2])

    @property
    def remote(self) -> str:
        """Peer's address:port."""
        return _end_point(self._family, self._ends[1], self._ends[3])

    def info(self) -> TcpInfo:
        """The fields of `tcp_info`."""
        return parse_tcp_info(self._info)


class DiagSocket:
    """Asks the kernel for sockets.

    Raises:
        OSError: the kernel or a sandbox refuses socket diagnosis.
    """

    def __init__(self) -> None:
        self._netlink = Netlink(NETLINK_SOCK_DIAG)

    def established(self) -> Iterator[TcpSocket]:
        """All established TCP sockets, IPv4 and IPv6.

        Raises:
            OSError: the kernel has no TCP diagnosis (module `tcp_diag`) or does not answer.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 1 << _TCP_ESTABLISHED)
            for message in self._netlink.dump(_SOCK_DIAG_BY_FAMILY, request):
                if len(message) >= _MESSAGE.size:
                    yield _socket(message)

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()


def _socket(message: memoryview) -> TcpSocket:
    family, _, _, _, sport, dport, source, dest, _, cookie, _, _, wqueue, _, inode = _MESSAGE.unpack_from(message)
    info = next((bytes(v) for kind, v in attributes(message, _MESSAGE.size) if kind == _INET_DIAG_INFO), b"")
    return TcpSocket(inode, cookie, wqueue, (source, dest, sport, dport), family, info)


def _end_point(family: int, address: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, address[:4])}:{number}"
    if address.startswith(_V4_MAPPED):  # an IPv4 connection over a socket that also takes IPv6
        return f"{socket.inet_ntop(socket.AF_INET, address[12:])}:{number}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{number}"


def parse_tcp_info(data: bytes) -> TcpInfo:
    """Read the fields that an answer of this length holds."""

    def u32(at: int) -> int | None:
        return int(_U32.unpack_from(data, at)[0]) if at + _U32.size <= len(data) else None

    def u64(at: int) -> int | None:
        return int(_U64.unpack_from(data, at)[0]) if at + _U64.size <= len(data) else None

    min_rtt_us = u32(_MIN_RTT_AT)
    return TcpInfo(
        rtt_us=u32(_RTT_AT) or None,  # 0: nothing measured yet
        min_rtt_us=None if min_rtt_us in (0, _NO_MIN_RTT) else min_rtt_us,
        delivery_bytes_per_s=u64(_DELIVERY_RATE_AT) or None,
        acked_bytes=u64(_BYTES_ACKED_AT),
        received_bytes=u64(_BYTES_RECEIVED_AT),
        retransmits=u32(_TOTAL_RETRANS_AT),
        busy_us=u64(_BUSY_AT),
        rwnd_limited_us=u64(_RWND_LIMITED_AT),
        sndbuf_limited_us=u64(_SNDBUF_LIMITED_AT),
        unacked=u32(_UNACKED_AT),
    )
