"""The connection between two recorders: who is there is proven first, and every frame after that is proven too.

    server -> client   "SPT1", 32 bytes nonce
    client -> server   32 bytes nonce, HMAC-SHA256(secret, "client" + both nonces)
    server -> client   HMAC-SHA256(secret, "server" + both nonces)
    then frames        u32 payload bytes, u8 kind, payload, first 16 bytes of
                       HMAC-SHA256(key of the direction, u64 frame number + header + payload)

The keys are derived from the secret and both nonces, so nothing can be replayed, reordered or injected. Nothing is
encrypted. Until the client has proven itself it gets a nonce and costs the server 64 bytes and a bounded time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import time
from typing import Any

from starprof.errors import TransportError

MAGIC = b"SPT1"
NONCE_BYTES = 32
TAG_BYTES = 16
MAX_PAYLOAD_BYTES = 1 << 20
HANDSHAKE_S = 5.0
WRITE_S = 10.0
"""The other side must take what we send within this time."""

JOIN, WELCOME, REFUSED, PING, PONG, OFFER, WANT, CHUNK, DONE, STORED, BAD, BYE, FAREWELL = range(1, 14)
"""Kinds of frames: see `receiver` and `sender`."""

_HEADER = struct.Struct("<IB")
_NUMBER = struct.Struct("<Q")
_PROOF_BYTES = 32


class RejectedError(TransportError):
    """The other side does not accept us (or could not prove itself): trying again will not help."""


class Channel:
    """An authenticated connection. One thread uses it; any failure raises TransportError and ends it."""

    def __init__(self, sock: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._socket = sock
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0
        self.arrived_ns = 0
        """CLOCK_MONOTONIC when the header of the last frame was here."""

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame."""
        head = _HEADER.pack(len(payload), kind)
        tag = _tag(self._send_key, self._sent, head, payload)
        self._sent += 1
        _write(self._socket, b"".join((head, payload, tag)))

    def send_json(self, kind: int, **fields: object) -> None:
        """Send one frame with a JSON object."""
        self.send(kind, json.dumps(fields).encode())

    def receive(self, timeout_s: float) -> tuple[int, bytes]:
        """The next frame, which must be complete within `timeout_s` seconds."""
        deadline_s = time.monotonic() + timeout_s
        head = _read(self._socket, _HEADER.size, deadline_s)
        self.arrived_ns = time.monotonic_ns()
        length, kind = _HEADER.unpack(head)
        if length > MAX_PAYLOAD_BYTES:
            raise TransportError("the other side sent a frame that is too long")
        body = _read(self._socket, length + TAG_BYTES, deadline_s)
        payload = body[:length]
        if not hmac.compare_digest(body[length:], _tag(self._receive_key, self._received, head, payload)):
            raise TransportError("a frame was damaged on its way")
        self._received += 1
        return kind, payload

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
    except ValueError as error:
        raise TransportError("the other side sent something that is no message") from error
    if not isinstance(value, dict):
        raise TransportError("the other side sent something that is no message")
    return value


def accept(sock: socket.socket, secret: bytes) -> Channel:
    """Node 0's side of the handshake.

    Raises:
        TransportError: the client did not prove in time that it knows the secret.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    ours = os.urandom(NONCE_BYTES)
    _write(sock, MAGIC + ours)
    answer = _read(sock, NONCE_BYTES + _PROOF_BYTES, deadline_s)
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _derive(secret, b"client", ours, theirs)):
        raise TransportError("a client did not know the secret")
    _write(sock, _derive(secret, b"server", ours, theirs))
    to_client, to_server = (_derive(secret, label, ours, theirs) for label in (b"to client", b"to server"))
    return Channel(sock, to_client, to_server)


def connect(address: tuple[str, int], secret: bytes, timeout_s: float) -> Channel:
    """Connect to node 0 and let both sides prove themselves.

    Raises:
        RejectedError: node 0 does not accept the secret, or what answers there is not node 0.
        ConnectionRefusedError: nothing listens there.
        TransportError: it can't be reached.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout_s)
    except ConnectionRefusedError:
        raise
    except OSError as error:
        raise TransportError(f"{where} can't be reached: {error}") from error
    try:
        return _prove(sock, where, secret)
    except BaseException:
        hang_up(sock)
        raise


def _prove(sock: socket.socket, where: str, secret: bytes) -> Channel:
    tune(sock)
    deadline_s = time.monotonic() + HANDSHAKE_S
    greeting = _read(sock, len(MAGIC) + NONCE_BYTES, deadline_s)
    if greeting[: len(MAGIC)] != MAGIC:
        raise RejectedError(f"what listens on {where} is no starprof recorder of this version")
    theirs, ours = greeting[len(MAGIC) :], os.urandom(NONCE_BYTES)
    _write(sock, ours + _derive(secret, b"client", theirs, ours))
    try:
        proof = _read(sock, _PROOF_BYTES, deadline_s)
    except _ClosedError:
        raise RejectedError(f"{where} does not accept the secret: give the one that node 0 has") from None
    if not hmac.compare_digest(proof, _derive(secret, b"server", theirs, ours)):
        raise RejectedError(f"what listens on {where} does not know the secret: is it node 0?")
    to_client, to_server = (_derive(secret, label, theirs, ours) for label in (b"to client", b"to server"))
    return Channel(sock, to_server, to_client)


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


def _derive(secret: bytes, label: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(secret, label + server_nonce + client_nonce, hashlib.sha256)


def _tag(key: bytes, number: int, head: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"".join((_NUMBER.pack(number), head, payload)), hashlib.sha256)[:TAG_BYTES]


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
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TransportError("the other side is too slow")
        sock.settimeout(left_s)
        try:
            data = sock.recv(min(count - len(parts), 1 << 16))
        except TimeoutError:
            continue
        except OSError as error:
            raise TransportError(f"the connection was lost: {error}") from error
        if not data:
            raise _ClosedError("the other side closed the connection")
        parts += data
    return bytes(parts)
