"""One connection of a rank, in the coordinator's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from starprof.control.codec import decode
from starprof.control.speech import COORDINATOR, MAX_FRAME_BYTES, MESSAGE, PING, PONG
from starprof.errors import TransportError
from starprof.sync.protocol.messages import ToCoordinator, ToRank
from starprof.wire.channel import HANDSHAKE_S, tune
from starprof.wire.frames import ANSWER_BYTES, Frames, ServerProof

MANY_WAITING_BYTES = 1 << 20
"""More than this may wait for a rank for a short time only, as after its hello where it has missed much."""

MAX_WAITING_BYTES = 32 << 20
"""Never more than this. Whoever reads too slowly is cut off, and its next hello makes it good."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""Of SO_LINGER: without it the kernel goes on offering what waits, to a side that may only ever have it from there that
the connection is over."""

_BUFFER = memoryview(bytearray(1 << 16))
"""One for all, as one thread reads. A protocol without one has the loop take 256 KiB anew for each message, which costs
more than all that we do with it."""


class Hub(Protocol):
    """Whom the connections belong to."""

    def opened(self, connection: Connection) -> None:
        """Somebody has connected, who may be anybody."""
        ...

    def said(self, connection: Connection, message: ToCoordinator | ToRank) -> None:
        """It has said something, which may be anything that is well formed."""
        ...

    def ended(self, connection: Connection, why: str) -> None:
        """It is over."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Whatever goes wrong ends only this connection.

    Attributes:
        rank: whose, once it has said hello.
        heard_s: when anything came last, by the clock of the loop.
    """

    def __init__(self, hub: Hub, secret: bytes, clock: Callable[[], float], patience_s: float) -> None:
        """Wait for a rank; it may be behind with its reading for `patience_s` seconds."""
        self.rank: int | None = None
        self.heard_s = clock()
        self._hub = hub
        self._clock = clock
        self._proof = ServerProof(COORDINATOR, secret)
        self._answer = b""
        self._frames: Frames | None = None
        self._transport: asyncio.Transport | None = None
        self._patience_s = patience_s
        self._too_slow: asyncio.TimerHandle | None = None
        self._behind: asyncio.TimerHandle | None = None
        self._why = ""
        self._pongs: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))  # the loop does so only where it has made the listener itself
        self._hub.opened(self)
        self._too_slow = asyncio.get_running_loop().call_later(
            HANDSHAKE_S, self.cut, "it did not say who it is in time"
        )
        self._transport.set_write_buffer_limits(MANY_WAITING_BYTES)
        self._transport.write(self._proof.greeting)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Called by the loop."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: so many bytes have come."""
        self._heard(_BUFFER[:nbytes])

    def _heard(self, data: memoryview) -> None:
        self.heard_s = self._clock()
        try:
            if self._frames is None:
                self._prove(data)
            else:
                self._frames.feed(data)
            while self._frames is not None and not self._why and (frame := self._frames.next()) is not None:
                self._frame(*frame)
            self._answer_pings()
        except TransportError as error:
            self.cut(str(error))

    def eof_received(self) -> bool:
        """Called by the loop: whoever says no more has nothing to hear either."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._no_hurry()
        self.resume_writing()
        self._hub.ended(self, self._why or str(exc or "the other side closed the connection"))

    def pause_writing(self) -> None:
        """Called by the loop: much waits."""
        self._behind = asyncio.get_running_loop().call_later(self._patience_s, self.cut, "it reads too slowly")

    def resume_writing(self) -> None:
        """Called by the loop."""
        if self._behind is not None:
            self._behind.cancel()

    def belongs_to(self, rank: int) -> None:
        """It has said hello."""
        self.rank = rank
        self._no_hurry()

    def send(self, payloads: list[bytes]) -> None:
        """Send some encoded messages, at once."""
        if self._frames is None or self._transport is None or self._why:
            return
        seal = self._frames.seal
        self._write(
            seal(MESSAGE, payloads[0]) if len(payloads) == 1 else b"".join([seal(MESSAGE, p) for p in payloads])
        )

    def cut(self, why: str) -> None:
        """End it now; what waits to be sent is not sent, nor kept for a rank that does not read."""
        if not self._why and self._transport is not None:
            self._why = why
            if self.rank is not None:
                with contextlib.suppress(OSError):  # it has ended by itself
                    sock = self._transport.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._transport.abort()

    def _no_hurry(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.cut("it reads too slowly")

    def _prove(self, data: memoryview) -> None:
        self._answer += data
        if len(self._answer) < ANSWER_BYTES:
            return
        answer, rest = self._answer[:ANSWER_BYTES], self._answer[ANSWER_BYTES:]
        self._answer = b""
        reply, frames = self._proof.admit(answer)
        frames.most_bytes = MAX_FRAME_BYTES
        frames.feed(rest)
        self._frames = frames
        self._write(reply)

    def _answer_pings(self) -> None:
        """Many at once where many have come: some event loops look at each piece that waits with each more."""
        if self._pongs:
            pongs, self._pongs = b"".join(self._pongs), []
            self._write(pongs)

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == MESSAGE:
            self._answer_pings()
            self._hub.said(self, decode(payload))
        elif kind == PING:
            assert self._frames is not None
            self._pongs.append(self._frames.seal(PONG))
        else:
            raise TransportError(f"a rank sent a frame of the unknown kind {kind}")
