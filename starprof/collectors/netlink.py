"""Dumps over netlink with the standard library: the framing that routing and socket diagnosis share.

Message layout: linux/netlink.h (`struct nlmsghdr`, `struct nlattr`), native byte order, 4-byte alignment.
pyroute2 would do this too, but its import takes 24 MB and 100 ms in an agent that may use 30 MB.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4

_NLM_F_REQUEST = 0x1
_NLM_F_DUMP = 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_HEADER = struct.Struct("=IHHII")
_ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF  # without the flags "nested" and "network byte order"
_BUFFER_BYTES = 65536  # the kernel packs a dump into messages of at most 32 KiB
_TIMEOUT_S = 2.0


class Netlink:
    """One netlink socket of the calling process's network namespace.

    Args:
        protocol: `NETLINK_ROUTE` or `NETLINK_SOCK_DIAG`.
        groups: bit mask of multicast groups; a socket with groups only listens (`heard`), and never waits.

    Raises:
        OSError: the kernel or a sandbox refuses the socket.
    """

    def __init__(self, protocol: int, groups: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.settimeout(0.0 if groups else _TIMEOUT_S)
            self._socket.bind((0, groups))
        except OSError:
            self._socket.close()
            raise
        self._buffer = bytearray(_BUFFER_BYTES)
        self._seq = 0

    def dump(self, kind: int, body: bytes) -> Iterator[memoryview]:
        """Bodies of the messages that answer a dump request; each is valid only until the next is asked for.

        Raises:
            OSError: the kernel refuses the request or does not answer.
        """
        self._seq += 1
        self._socket.send(
            _HEADER.pack(_HEADER.size + len(body), kind, _NLM_F_REQUEST | _NLM_F_DUMP, self._seq, 0) + body
        )
        view = memoryview(self._buffer)
        while True:
            received = self._socket.recv_into(self._buffer)
            at = 0
            while received - at >= _HEADER.size:
                length, answer, _, seq, _ = _HEADER.unpack_from(view, at)
                if length < _HEADER.size or at + length > received:
                    break
                if seq == self._seq:  # what an aborted dump left behind is skipped
                    if answer == _NLMSG_DONE:
                        return
                    if answer == _NLMSG_ERROR:
                        code = -_ERRNO.unpack_from(view, at + _HEADER.size)[0]
                        raise OSError(code, os.strerror(code))
                    yield view[at + _HEADER.size : at + length]
                at += (length + 3) & ~3

    def heard(self) -> bool:
        """Whether a multicast message came since the last call (their content is dropped; a lost one counts)."""
        news = False
        while True:
            try:
                self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return news
            except OSError:  # ENOBUFS: more came than the socket could hold
                pass
            news = True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def attributes(data: memoryview, at: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each attribute from offset `at` on; a torn one ends the iteration."""
    while len(data) - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def c_string(data: memoryview) -> str:
    """Text of a NUL-terminated attribute."""
    return bytes(data).split(b"\0", 1)[0].decode(errors="replace")
