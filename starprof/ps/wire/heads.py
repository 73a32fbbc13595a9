"""Heads: what is said about a payload before it comes, sealed, and how they are cut out of what a socket gives."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from starprof.errors import TransportError
from starprof.wire.frames import MAX_PAYLOAD_BYTES, TAG_BYTES, Frames, Service

SERVICE = Service(b"SPS1", "a parameter server of this job")
MAX_HEADER_BYTES = 1 << 18
"""Of one head: names and shapes of some thousand parameters; what is longer is a payload."""

STAGING_BYTES = 4096
"""Most heads fit. What is read beyond a head is a payload's begin and has to be copied, so it is a page at most."""

_SIZE = struct.Struct("<Q")
_FRAME = struct.Struct("<IB")


class Head(NamedTuple):  # which is made in half the time of a frozen dataclass, for every message
    """What comes before a payload.

    Attributes:
        kind: of message; the two sides agree on what it means.
        header: what is said about it.
        payload_bytes: that follow, 0 for a message without.
    """

    kind: int
    header: bytes
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What is allowed on a connection, and how many there may be.

    Attributes:
        payload_bytes: of one message.
        lines: connections that have proven themselves.
        strangers: that have not yet; the oldest must go when there are more.
        queued: messages that wait to be taken by one client; a client that lets more wait is hung up on.
        stall_s: without a byte of a message that has begun, in either direction, a connection is given up.
    """

    payload_bytes: int = 1 << 36
    lines: int = 4096
    strangers: int = 64
    queued: int = 64
    stall_s: float = 30.0


def seal(frames: Frames, kind: int, header: bytes, payload_bytes: int) -> bytes:
    """The bytes of a head.

    Raises:
        TransportError: the header is too long to be sent.
    """
    if len(header) > MAX_HEADER_BYTES:
        raise TransportError(f"a header of {len(header)} bytes is too long to be sent")
    return frames.seal(kind, _SIZE.pack(payload_bytes) + header)


class Inlet:
    """What has been read from a connection and not been used yet: heads, and the begin of a payload."""

    def __init__(self, frames: Frames, limits: Limits) -> None:
        self._frames = frames
        self._limits = limits
        self._memory = memoryview(bytearray(STAGING_BYTES))
        self._begin = 0
        self._end = 0
        self._most = min(MAX_PAYLOAD_BYTES, MAX_HEADER_BYTES + _SIZE.size)

    @property
    def begun(self) -> bool:
        """Whether a part of a head is here that does not go on by itself."""
        return self._begin < self._end

    def room(self) -> memoryview:
        """Where to read to, when `head` has none."""
        return self._memory[self._end :]

    def filled(self, count: int) -> None:
        """So many bytes were read to `room`."""
        self._end += count

    def head(self) -> Head | None:
        """The next head, if it is here as a whole; else there is room for more of it.

        Raises:
            TransportError: it is too long, promises too much, or was changed on its way.
        """
        here = self._end - self._begin
        if not here and len(self._memory) == STAGING_BYTES:
            self._begin = self._end = 0
            return None
        if here < _FRAME.size:
            self._make_room(_FRAME.size)
            return None
        length, kind = _FRAME.unpack_from(self._memory, self._begin)
        if not _SIZE.size <= length <= self._most:
            raise TransportError("the other side sent a head of an impossible length")
        whole = _FRAME.size + length + TAG_BYTES
        if here < whole:
            self._make_room(whole)
            return None
        told = self._frames.open(bytes(self._memory[self._begin : self._begin + whole]))
        self._begin += whole
        (payload_bytes,) = _SIZE.unpack_from(told)
        if payload_bytes > self._limits.payload_bytes:
            raise TransportError(f"a message of {payload_bytes} bytes is more than the allowed")
        return Head(kind, told[_SIZE.size :], payload_bytes)

    def take(self, target: memoryview) -> int:
        """Move what is here of a payload to where it belongs; how many bytes that were."""
        count = self._end - self._begin
        if count > len(target):
            count = len(target)
        if count:
            target[:count] = self._memory[self._begin : self._begin + count]
            self._begin += count
        return count

    def _make_room(self, whole: int) -> None:
        """For a head of so many bytes, which has begun."""
        rest = self._memory[self._begin : self._end]
        if whole > len(self._memory) or (not rest and len(self._memory) > STAGING_BYTES):
            memory = memoryview(bytearray(max(whole, STAGING_BYTES)))
            memory[: len(rest)] = rest
            self._memory = memory
        elif self._begin:
            self._memory[: len(rest)] = bytes(rest)
        self._begin, self._end = 0, len(rest)
