"""What goes over a connection, without the connection: who is there is proven first, and every frame after that too.

    server -> client   magic of the service, 32 bytes nonce
    client -> server   32 bytes nonce, HMAC-SHA256(secret, magic + "client" + both nonces)
    server -> client   HMAC-SHA256(secret, magic + "server" + both nonces)
    then frames        u32 payload bytes, u8 kind, payload, first 16 bytes of
                       HMAC-SHA256(key of the direction, u64 frame number + header + payload)

The keys are derived from the secret, the service and both nonces, so nothing can be replayed, reordered or injected,
nor carried from one service to another. Nothing is encrypted. Until the client has proven itself it gets a nonce and
costs the server 64 bytes and a bounded time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from starprof.errors import TransportError

NONCE_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
MAX_PAYLOAD_BYTES = 1 << 20
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
"""What the client says in the handshake."""

_HEADER = struct.Struct("<IB")
_NUMBER = struct.Struct("<Q")
_BLOCK_BYTES = 64


class RejectedError(TransportError):
    """The other side does not accept us (or could not prove itself): trying again will not help."""


@dataclass(frozen=True, slots=True)
class Service:
    """Who listens.

    Attributes:
        magic: its first bytes, with the version of what is spoken.
        name: for messages to the user.
    """

    magic: bytes
    name: str

    @property
    def greeting_bytes(self) -> int:
        """What the server says first."""
        return len(self.magic) + NONCE_BYTES


class ServerProof:
    """The server's side of one handshake."""

    def __init__(self, service: Service, secret: bytes) -> None:
        self._service = service
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self.greeting = service.magic + self._nonce

    def admit(self, answer: bytes | bytearray) -> tuple[bytes, Frames]:
        """What to send to a client that has answered with ANSWER_BYTES bytes, and the frames that follow.

        Raises:
            TransportError: it does not know the secret.
        """
        _, reply, frames = self.admit_any(answer, (self._secret,))
        return reply, frames

    def admit_any(self, answer: bytes | bytearray, secrets: Sequence[bytes]) -> tuple[int, bytes, Frames]:
        """The same for a server of several secrets; tells first which of them the client knows.

        Raises:
            TransportError: it knows none of them.
        """
        nonces, shown = self._nonce + bytes(answer[:NONCE_BYTES]), bytes(answer[NONCE_BYTES:])
        known = None
        for number, secret in enumerate(secrets):  # all of them, so that the time tells nothing
            if hmac.compare_digest(shown, _derive(secret, self._service, b"client", nonces)):
                known = number
        if known is None:
            raise TransportError("a client did not know the secret")

        def derived(label: bytes) -> bytes:
            return _derive(secrets[known], self._service, label, nonces)

        return known, derived(b"server"), Frames(derived(b"to client"), derived(b"to server"))


class ClientProof:
    """The client's side of one handshake."""

    def __init__(self, service: Service, secret: bytes, where: str) -> None:
        self._service = service
        self._secret = secret
        self._where = where
        self._nonces = b""

    def answer(self, greeting: bytes) -> bytes:
        """What to answer to the server's first `greeting_bytes` bytes.

        Raises:
            RejectedError: something else listens there.
        """
        magic = self._service.magic
        if greeting[: len(magic)] != magic:
            raise RejectedError(f"what listens on {self._where} is not {self._service.name}, or of another version")
        ours = os.urandom(NONCE_BYTES)
        self._nonces = greeting[len(magic) :] + ours
        return ours + self._derived(b"client")

    def check(self, proof: bytes) -> Frames:
        """The frames that follow when the server has proven itself too.

        Raises:
            RejectedError: it has not.
        """
        if not hmac.compare_digest(proof, self._derived(b"server")):
            raise RejectedError(f"what listens on {self._where} does not know the secret: is it {self._service.name}?")
        return Frames(self._derived(b"to server"), self._derived(b"to client"))

    def refused(self) -> RejectedError:
        """The server has hung up on our answer."""
        return RejectedError(f"{self._where} does not accept the secret: give the one that {self._service.name} has")

    def _derived(self, label: bytes) -> bytes:
        return _derive(self._secret, self._service, label, self._nonces)


class Frames:
    """Both directions of one connection: seals what is sent, and opens what has come, in order."""

    def __init__(self, send_key: bytes, receive_key: bytes, *, most_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        """Begin with no frame sent; a payload has `most_bytes` at most."""
        self.most_bytes = most_bytes
        self._sends = Tagger(send_key)
        self._receives = Tagger(receive_key)
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()

    def seal(self, kind: int, payload: bytes = b"") -> bytes:
        """The next frame to send."""
        data = _HEADER.pack(len(payload), kind) + payload
        tag = self._sends.tag(_NUMBER.pack(self._sent) + data)
        self._sent += 1
        return data + tag

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes have come in."""
        self._buffer += data

    def next(self) -> tuple[int, bytes] | None:
        """Kind and payload of the next frame that is here as a whole.

        Raises:
            TransportError: it is too long or was changed on its way; the connection is of no use any more.
        """
        buffer = self._buffer
        if len(buffer) < _HEADER.size:
            return None
        length, kind = _HEADER.unpack_from(buffer)
        if length > self.most_bytes:
            raise TransportError("the other side sent a frame that is too long")
        end = _HEADER.size + length
        if len(buffer) < end + TAG_BYTES:
            return None
        payload = self.open(bytes(buffer[: end + TAG_BYTES]))
        del buffer[: end + TAG_BYTES]
        return kind, payload

    def open(self, frame: bytes) -> bytes:
        """Payload of the next frame, for whoever cuts frames out of what has come by himself.

        Raises:
            TransportError: it was changed on its way; the connection is of no use any more.
        """
        data = frame[:-TAG_BYTES]
        if not hmac.compare_digest(frame[-TAG_BYTES:], self._receives.tag(_NUMBER.pack(self._received) + data)):
            raise TransportError("a frame was damaged on its way")
        self._received += 1
        return data[_HEADER.size :]


class Tagger:
    """HMAC-SHA256 with one key, cut to TAG_BYTES.

    The key goes into the two hashes once instead of with every frame, which halves the time of a short frame: a step
    of the training waits for several of them.
    """

    def __init__(self, key: bytes) -> None:
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def tag(self, data: bytes) -> bytes:
        """The tag of some bytes."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return outer.digest()[:TAG_BYTES]


def _derive(secret: bytes, service: Service, label: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, service.magic + label + nonces, hashlib.sha256)
