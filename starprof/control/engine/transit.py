"""How long this rank's data was on its way in reductions, as the kernel has counted it on the connections it went over.

The kernel counts the time in which a connection had data that the other side had not acknowledged. Time in which the
other side had no room for more is none of the interface's: that rank's process was busy.

Small sums go over connections of our own. In a group of gloo's all data of a rank goes to one other, its neighbour in
the ring: one of the connections that the group has made, found after the first reductions by what it has carried.

Where the kernel doesn't say (not Linux, a sandbox, transports other than TCP) nothing is told, and nobody is blamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from starprof.collectors.inetdiag import parse_tcp_info
from starprof.sync.transfers import Sent

DESCRIPTORS = Path("/proc/self/fd")
_TCP_INFO = 11
_INFO_BYTES = 256
_LEAST, _MOST = 0.4, 1.05
"""Of what a ring sends on, the part that has come when the connection is looked for: some may still be on its way."""

Read = Callable[[int], "tuple[int, int] | None"]


class Transit:
    """Of what goes to one other rank."""

    def __init__(self, to: int, descriptors: Iterable[int], read: Read, carries: float | None = None) -> None:
        """Begin before the first reduction.

        Args:
            to: which rank.
            descriptors: that the connection is among.
            read: how to learn of one of them how many bytes were acknowledged, and for how many microseconds there
                were some to acknowledge; None: it is no connection.
            carries: bytes that go over the connection for each byte that is reduced, by which it is found; None: there
                is one descriptor, and it is that connection.
        """
        self._to = to
        self._read = read
        self._carries = carries
        self._before = {fd: counts for fd in descriptors if (counts := read(fd)) is not None}
        self._found = next(iter(self._before), None) if carries is None else None
        self._rested = False
        self._reductions = 0
        self._bytes = 0

    def reduced(self, size: int) -> None:
        """One more reduction, of so many bytes on each member, begins."""
        if self._rested:
            # What was still on its way when it was last asked is none of this one's.
            self._before = {fd: counts for fd in self._before if (counts := self._read(fd)) is not None}
            self._rested = False
        self._reductions += 1
        self._bytes += size

    def sent(self) -> Sent | None:
        """Of the reductions since it was last asked, the mean; None: there were none, or it is not known."""
        if not self._reductions:
            self._rested = True
            return None
        if self._found is None and self._carries is not None:
            self._find(self._carries)
        fd, reductions = self._found, self._reductions
        self._reductions = 0
        now = None if fd is None else self._read(fd)
        if fd is None or now is None or fd not in self._before:
            return None
        before, self._before = self._before[fd], {fd: now}
        if now[0] < before[0]:
            return None  # another connection has its number now
        return Sent(self._to, max(0, now[1] - before[1]) // reductions)

    def _find(self, carries: float) -> None:
        """The one that has carried what it should have; others may have been made at the same time."""
        sent_on = max(1.0, carries * self._bytes)
        parts = {
            fd: (now[0] - before[0]) / sent_on
            for fd, before in self._before.items()
            if (now := self._read(fd)) is not None
        }
        there = [fd for fd, part in parts.items() if _LEAST <= part <= _MOST]
        self._found = max(there, key=lambda fd: parts[fd], default=None)


def in_ring(members: tuple[int, ...], rank: int, descriptors: Iterable[int], read: Read) -> Transit:
    """Of a rank's part in reductions among the members of a group of gloo's, in the order of their ranks there."""
    count = len(members)
    return Transit(members[members.index(rank) - 1], descriptors, read, carries=2.0 * (count - 1) / count)


def sockets() -> frozenset[tuple[int, str]]:
    """Descriptors of this process that are sockets, each with its name; none where that can't be seen."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in DESCRIPTORS.iterdir():
            with contextlib.suppress(OSError):  # closed since
                there = str(entry.readlink())
                if there.startswith("socket:"):
                    found.add((int(entry.name), there))
    return frozenset(found)


def reader() -> Read:
    """Reads the kernel's counters of a descriptor, without a copy of it: a copy would keep a closed one open."""
    getsockopt = ctypes.PyDLL(None).getsockopt  # so short that others need not get the interpreter meanwhile

    def read(fd: int) -> tuple[int, int] | None:
        data = ctypes.create_string_buffer(_INFO_BYTES)
        size = ctypes.c_uint32(_INFO_BYTES)
        if getsockopt(fd, socket.IPPROTO_TCP, _TCP_INFO, data, ctypes.byref(size)):
            return None
        info = parse_tcp_info(data.raw[: size.value])
        if info.acked_bytes is None or info.busy_us is None:
            return None
        return info.acked_bytes, info.busy_us - (info.rwnd_limited_us or 0)

    return read
