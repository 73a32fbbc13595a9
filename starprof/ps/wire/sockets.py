"""How the connections of a parameter server are set up: at once, watched, and as fast as they may be."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

from starprof.wire.channel import tune

LOST_S = 20.0
"""A host that answers nothing for so long is gone, whether it was to be sent something or not."""
PROBE_IDLE_S, PROBE_EVERY_S = 5, 3
UNPACED = (1 << 64) - 1

_SO_MAX_PACING_RATE = 47
_RATE = struct.Struct("@Q")
_TIMEVAL = struct.Struct("@ll")


def prepare(sock: socket.socket) -> None:
    """Small messages leave at once, a peer that vanished is noticed, and a connection within one host is not paced.

    BBR, where it is the machine's default, finds out how much a path takes and sends no faster. Within a host there
    is nothing to find out, and it costs half of the speed.
    """
    tune(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LOST_S * 1e3))
    if _within_host(sock):
        with contextlib.suppress(OSError):  # a kernel may allow only some; then it stays as it is
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def pace(sock: socket.socket, bytes_per_s: float | None) -> None:
    """Send no faster than this from now on, without root; None: as fast as possible.

    The kernel spaces the packets out itself, or the `fq` queue where an interface has one.
    """
    rate = UNPACED if bytes_per_s is None else max(1, min(UNPACED, int(bytes_per_s)))
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE.pack(rate))


def paced(sock: socket.socket) -> int | None:
    """Bytes per second that a connection is held to; None: it isn't."""
    (rate,) = _RATE.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE.size))
    return None if rate >= UNPACED else int(rate)


def limit(sock: socket.socket, option: int, seconds: float) -> None:
    """Let the kernel keep the time: a socket with a time limit of Python's own costs a system call more for each."""
    whole = int(seconds)
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(whole, round((seconds - whole) * 1e6)))


def _within_host(sock: socket.socket) -> bool:
    peer = ipaddress.ip_address(sock.getpeername()[0])
    return peer.is_loopback or peer == ipaddress.ip_address(sock.getsockname()[0])
