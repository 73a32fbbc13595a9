"""What a rank has sent and received, as the kernel counts it on each of its TCP connections."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

_ACKED_AT, _RECEIVED_AT = 120, 128
"""Of `struct tcp_info` in linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received, 8 bytes each."""
_INFO_BYTES = 256
_U64 = struct.Struct("=Q")


def traffic(connections: Iterable[tuple[int, socket.socket]]) -> tuple[int, int]:
    """Bytes that the other ends have acknowledged, and bytes received, of all connections that are open now."""
    sent = received = 0
    for _, sock in connections:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) >= _RECEIVED_AT + 8:
            sent += _U64.unpack_from(info, _ACKED_AT)[0]
            received += _U64.unpack_from(info, _RECEIVED_AT)[0]
    return sent, received
