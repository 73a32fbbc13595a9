"""The client's side of a connection: blocking, one message after the other, with a bound on every wait."""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import Any

from starprof.errors import TransportError
from starprof.ps.wire.heads import SERVICE, Head, Inlet, Limits, seal
from starprof.ps.wire.sockets import limit, pace, prepare
from starprof.wire.channel import dial, hang_up
from starprof.wire.frames import Frames, Service

CONNECT_S = 5.0
LOOK_EVERY_S = 0.5


class Connection:
    """An authenticated connection to a `Hub`. One thread uses it; `close` may be called by any and wakes it.

    Whatever fails raises TransportError and ends it.

    Attributes:
        sent_bytes: of payloads, since it was made.
        received_bytes: the same of what came.
    """

    def __init__(self, sock: socket.socket, frames: Frames, limits: Limits) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._socket = sock
        self._frames = frames
        self._limits = limits
        self._inlet = Inlet(frames, limits)
        self._coming = 0
        self._going = 0
        self._begun = b""
        prepare(sock)
        sock.settimeout(None)
        limit(sock, socket.SO_RCVTIMEO, LOOK_EVERY_S)
        limit(sock, socket.SO_SNDTIMEO, LOOK_EVERY_S)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def pace(self, bytes_per_s: float | None) -> None:
        """Send no faster than this from now on; None: as fast as possible."""
        try:
            pace(self._socket, bytes_per_s)
        except OSError as error:
            raise TransportError(f"this system can't pace a connection: {error}") from error

    # Sending.

    def send(self, kind: int, header: bytes = b"", payload: memoryview | None = None) -> None:
        """Send one message; the payload, a view of bytes, is free again when this returns."""
        size = 0 if payload is None else len(payload)
        self._is_whole()
        head = seal(self._frames, kind, header, size)
        self.sent_bytes += size
        self._send_all([head, payload] if size else [head], len(head) + size)

    def begin(self, kind: int, header: bytes, payload_bytes: int) -> None:
        """Begin a message whose payload follows by `put`, in parts: one is made while the former is on its way."""
        self._is_whole()
        self._begun = seal(self._frames, kind, header, payload_bytes)
        self._going = payload_bytes

    def put(self, part: memoryview) -> None:
        """Send the next part of what was begun."""
        size = len(part)
        if size > self._going:
            raise TransportError(f"{size} bytes are more than the {self._going} that were announced")
        begun, self._begun = self._begun, b""
        self._going -= size
        self.sent_bytes += size
        self._send_all([begun, part] if begun else [part], len(begun) + size)

    def _is_whole(self) -> None:
        if self._going:
            raise TransportError(f"{self._going} bytes of the last message have not been sent yet")

    def _send_all(self, views: list[Any], size: int) -> None:
        moved_s = 0.0
        while size:
            try:
                count = self._socket.sendmsg(views)
            except BlockingIOError:
                count = 0
            except OSError as error:
                raise self._broken(error) from error
            if count == size:
                return
            now_s = time.monotonic()
            if count or not moved_s:
                moved_s = now_s
                size -= count
                views = behind([memoryview(view) for view in views], count)
            elif now_s - moved_s > self._limits.stall_s:
                raise self._broken("the other side takes nothing")

    # Receiving.

    def ready(self, timeout_s: float) -> bool:
        """Whether something of a message is here, or comes within this time; to wait for one harms nothing."""
        if self._inlet.begun:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def receive(self, timeout_s: float) -> Head:
        """The next message's head, which must be complete within `timeout_s` seconds.

        The payload is then read by `receive_into`, whole or in parts, before the next `receive`.
        """
        if self._coming:
            raise TransportError(f"{self._coming} bytes of the last message have not been read yet")
        deadline_s = time.monotonic() + timeout_s
        try:
            while (head := self._inlet.head()) is None:
                count = self._some(self._inlet.room(), 0)
                if not count and time.monotonic() >= deadline_s:
                    raise self._broken("the other side is silent")
                self._inlet.filled(count)
        except TransportError:
            self.close()
            raise
        self._coming = head.payload_bytes
        return head

    def receive_into(self, target: memoryview) -> None:
        """The next bytes of the payload, as many as the target has."""
        size = len(target)
        if size > self._coming:
            raise TransportError(f"{size} bytes are more than the {self._coming} that come")
        self._coming -= size
        self.received_bytes += size
        target = target[self._inlet.take(target) :]
        moved_s = time.monotonic()
        while target:
            count = self._some(target, 0)  # the kernel waits: no turn of Python's for each piece
            if count:
                moved_s = time.monotonic()
                target = target[count:]
            elif time.monotonic() - moved_s > self._limits.stall_s:
                raise self._broken("the other side sends nothing")

    def skip(self) -> None:
        """Read what is left of the payload, and forget it."""
        scratch = memoryview(bytearray(min(self._coming, 1 << 16)))
        while self._coming:
            self.receive_into(scratch[: self._coming])

    def _some(self, target: memoryview, flags: int) -> int:
        """What comes within LOOK_EVERY_S, which may be nothing."""
        try:
            count = self._socket.recv_into(target, 0, flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error
        if not count:
            raise self._broken("the other side closed the connection")
        return count

    def close(self) -> None:
        """Hang up."""
        hang_up(self._socket)

    def _broken(self, why: OSError | str) -> TransportError:
        self.close()
        if isinstance(why, OSError) and why.errno == errno.EBADF:
            return TransportError("the connection is closed")
        return TransportError(why if isinstance(why, str) else f"the connection was lost: {why}")


def connect(
    address: tuple[str, int],
    secret: bytes,
    *,
    timeout_s: float = CONNECT_S,
    service: Service = SERVICE,
    limits: Limits | None = None,
) -> Connection:
    """Connect to a hub and let both sides prove themselves.

    Raises:
        RejectedError: it does not accept the secret, or what answers there is something else.
        ConnectionRefusedError: nothing listens there.
        TransportError: it can't be reached.
    """
    sock, frames = dial(address, service, secret, timeout_s)
    try:
        return Connection(sock, frames, limits or Limits())
    except OSError as error:
        hang_up(sock)
        raise TransportError(f"the connection was lost: {error}") from error


def behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of some memory when so many bytes of it are gone."""
    for at, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[at + 1 :]]
        count -= view.nbytes
    return []
