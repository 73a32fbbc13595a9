"""A connection of `frames` on a blocking socket, with a bound on every wait."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

from starprof.errors import TransportError
from starprof.wire.frames import ANSWER_BYTES, PROOF_BYTES, ClientProof, Frames, ServerProof, Service

HANDSHAKE_S = 5.0
WRITE_S = 10.0
"""The other side must take what we send within this time."""

_READ_BYTES = 1 << 16


class Channel:
    """An authenticated connection. One thread uses it; any failure raises TransportError and ends it."""

    def __init__(self, sock: socket.socket, frames: Frames) -> None:
        self._socket = sock
        self._frames = frames
        self.arrived_ns = 0
        """CLOCK_MONOTONIC when the last frame was here."""

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame."""
        _write(self._socket, self._frames.seal(kind, payload))

    def send_json(self, kind: int, **fields: object) -> None:
        """Send one frame with a JSON object."""
        self.send(kind, json.dumps(fields).encode())

    def receive(self, timeout_s: float) -> tuple[int, bytes]:
        """The next frame, which must be complete within `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        while (frame := self._frames.next()) is None:
            self._frames.feed(_read_some(self._socket, _READ_BYTES, deadline_s))
            self.arrived_ns = time.monotonic_ns()
        return frame

    def poll(self, timeout_s: float) -> tuple[int, bytes] | None:
        """The next frame if it is here as a whole within `timeout_s` seconds; None if not."""
        deadline_s = time.monotonic() + timeout_s
        while (frame := self._frames.next()) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise TransportError(f"the connection was lost: {error}") from error
            if not data:
                raise _ClosedError("the other side closed the connection")
            self._frames.feed(data)
            self.arrived_ns = time.monotonic_ns()
        return frame

    def receive_json(self, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """The next frame, which must hold a JSON object."""
        kind, payload = self.receive(timeout_s)
        return kind, as_object(payload)

    def close(self) -> None:
        """Close the connection."""
        hang_up(self._socket)


def as_object(payload: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        TransportError: it is none.
    """
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise TransportError("the other side sent something that is no message") from error
    if not isinstance(value, dict):
        raise TransportError("the other side sent something that is no message")
    return value


def accept(sock: socket.socket, service: Service, secret: bytes) -> Channel:
    """The listening side of the handshake.

    Raises:
        TransportError: the client did not prove in time that it knows the secret.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    proof = ServerProof(service, secret)
    _write(sock, proof.greeting)
    answer, frames = proof.admit(_read(sock, ANSWER_BYTES, deadline_s))
    _write(sock, answer)
    return Channel(sock, frames)


def connect(address: tuple[str, int], service: Service, secret: bytes, timeout_s: float) -> Channel:
    """Connect to a service and let both sides prove themselves.

    Raises:
        RejectedError: it does not accept the secret, or what answers there is something else.
        ConnectionRefusedError: nothing listens there.
        TransportError: it can't be reached.
    """
    sock, frames = dial(address, service, secret, timeout_s)
    return Channel(sock, frames)


def dial(address: tuple[str, int], service: Service, secret: bytes, timeout_s: float) -> tuple[socket.socket, Frames]:
    """As `connect`, for whoever reads and writes the socket in its own way."""
    where = f"{address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout_s)
    except ConnectionRefusedError:
        raise
    except OSError as error:
        raise TransportError(f"{where} can't be reached: {error}") from error
    try:
        return sock, _prove(sock, ClientProof(service, secret, where), service.greeting_bytes)
    except BaseException:
        hang_up(sock)
        raise


def _prove(sock: socket.socket, proof: ClientProof, greeting_bytes: int) -> Frames:
    tune(sock)
    deadline_s = time.monotonic() + HANDSHAKE_S
    _write(sock, proof.answer(_read(sock, greeting_bytes, deadline_s)))
    try:
        theirs = _read(sock, PROOF_BYTES, deadline_s)
    except _ClosedError:
        raise proof.refused() from None
    return proof.check(theirs)


def tune(sock: socket.socket) -> None:
    """Small frames leave at once, and a peer that vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def hang_up(sock: socket.socket) -> None:
    """Close a socket, waking whoever waits on it."""
    with contextlib.suppress(OSError):  # it was not connected any more
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class _ClosedError(TransportError):
    """The other side closed the connection."""


def _write(sock: socket.socket, data: bytes) -> None:
    try:
        sock.settimeout(WRITE_S)
        sock.sendall(data)
    except OSError as error:
        raise TransportError(f"the connection was lost: {error}") from error


def _read(sock: socket.socket, count: int, deadline_s: float) -> bytes:
    """Exactly `count` bytes before the deadline, however slowly they drip in."""
    parts = bytearray()
    while len(parts) < count:
        parts += _read_some(sock, count - len(parts), deadline_s)
    return bytes(parts)


def _read_some(sock: socket.socket, most: int, deadline_s: float) -> bytes:
    """Whatever comes next, at least one byte, before the deadline."""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TransportError("the other side is too slow")
        sock.settimeout(left_s)
        try:
            data = sock.recv(most)
        except TimeoutError:
            continue
        except OSError as error:
            raise TransportError(f"the connection was lost: {error}") from error
        if not data:
            raise _ClosedError("the other side closed the connection")
        return data
