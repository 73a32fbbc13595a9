"""One connection of a hub: what has come of a message, and what waits to be taken."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from starprof.errors import TransportError
from starprof.ps.wire.connection import behind
from starprof.ps.wire.heads import Head, Inlet, Limits, seal
from starprof.ps.wire.sockets import prepare
from starprof.wire.frames import ANSWER_BYTES, Frames, ServerProof

READ_AT_ONCE_BYTES = 8 << 20
"""Of one connection, before the others get their turn."""
_SCRATCH = memoryview(bytearray(1 << 18))


class Owner(Protocol):
    """Whom a hub serves; called in the hub's thread. TransportError, raised by `room` or `came`, ends that line."""

    def joined(self, line: Line) -> None:
        """Somebody has connected who knows the secret."""
        ...

    def room(self, line: Line, head: Head) -> memoryview | None:
        """Where a payload goes: a view of exactly so many bytes; None: it is not wanted, but the line goes on."""
        ...

    def came(self, line: Line, head: Head, payload: memoryview | None) -> None:
        """A message is here as a whole; the payload is what `room` gave, or None."""
        ...

    def lost(self, line: Line, why: str) -> None:
        """A line that had joined is gone; what `room` gave it and `came` did not bring is free again."""
        ...


class Line:
    """A client's connection. Only the hub's thread uses it.

    Attributes:
        peer: address of the client, for messages.
        data: the owner's, None at first.
        lost: why it has ended, "" as long as it has not.
        since_s: CLOCK_MONOTONIC when it was made.
        moved_s: when anything was last sent or came.
        frames: seals and opens heads; None before the client has proven itself.
        watched: events that the hub waits for.
        socket: of this connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        proof: ServerProof,
        limits: Limits,
        owner: Owner,
        joined: Callable[[Line], None],
        touched: set[Line],
    ) -> None:
        """Greet whoever has connected.

        Args:
            sock: connection.
            proof: of ours, to whoever it is.
            limits: of messages.
            owner: whom to give them to.
            joined: called when the client has proven itself.
            touched: gets this line when the hub has to look at it.
        """
        self.data: Any = None
        self.lost = ""
        self.since_s = self.moved_s = time.monotonic()
        self.frames: Frames | None = None
        self.watched = 0
        self.socket = sock
        self.peer = "{}:{}".format(*sock.getpeername()[:2])
        self._proof = proof
        self._limits = limits
        self._owner = owner
        self._joined = joined
        self._touched = touched
        self._answered = bytearray(ANSWER_BYTES)
        self._answer = memoryview(self._answered)
        self._inlet: Inlet | None = None
        self._head: Head | None = None
        self._payload: memoryview | None = None
        self._target = memoryview(b"")
        self._unwanted = 0
        self._out: deque[tuple[list[memoryview], Callable[[], None] | None]] = deque()
        prepare(sock)
        sock.setblocking(False)
        self._post([proof.greeting], len(proof.greeting), None)

    @property
    def waits(self) -> bool:
        """Whether something is to be sent that the client has not taken yet."""
        return bool(self._out)

    @property
    def stuck(self) -> bool:
        """Whether something has begun that should go on."""
        return self.waits or self._head is not None or (self._inlet is not None and self._inlet.begun)

    def send(
        self, kind: int, header: bytes = b"", payload: memoryview | None = None, done: Callable[[], None] | None = None
    ) -> None:
        """Send one message; returns at once.

        Args:
            kind: of message.
            header: what it says.
            payload: bytes, which must stay as they are until `done`.
            done: called once, when the payload is not needed any more, whether it was sent or not.
        """
        frames = self.frames
        if self.lost or frames is None:
            if done is not None:
                done()
            return
        size = 0 if payload is None else len(payload)
        head = seal(frames, kind, header, size)
        self._post([head, payload] if size else [head], len(head) + size, done)

    def end(self, why: str) -> None:
        """Hang up; the hub does it when it is next at it."""
        self.lost = self.lost or why
        self._touched.add(self)

    def _post(self, views: list[Any], size: int, done: Callable[[], None] | None) -> None:
        """Send at once what the connection takes, which mostly is all; the rest waits."""
        count = 0
        if not self._out:
            try:
                count = self.socket.sendmsg(views)
            except BlockingIOError:
                pass
            except OSError as error:
                self.end(f"the connection was lost: {error}")
            if count == size:
                if done is not None:
                    done()
                return
            self.moved_s = time.monotonic()
            self._touched.add(self)
        self._out.append((behind([memoryview(view) for view in views], count), done))
        if len(self._out) > self._limits.queued:
            self.end("it leaves too much waiting")

    # For the hub.

    def write(self) -> None:
        """Send what the connection takes of what waits."""
        self._touched.add(self)
        while self._out and not self.lost:
            views, done = self._out[0]
            try:
                count = self.socket.sendmsg(views)
            except BlockingIOError:
                return
            except OSError as error:
                self.end(f"the connection was lost: {error}")
                return
            self.moved_s = time.monotonic()
            views = behind(views, count)
            if views:
                self._out[0] = views, done
                continue
            self._out.popleft()
            if done is not None:
                done()

    def read(self) -> None:
        """Take what has come.

        Raises:
            TransportError: it is nothing that may come.
        """
        left = READ_AT_ONCE_BYTES
        self.moved_s = time.monotonic()
        while left > 0 and not self.lost:
            target = self._target or (self._answer if self._inlet is None else self._inlet.room())
            try:
                count = self.socket.recv_into(target)
            except BlockingIOError:
                return
            except OSError as error:
                raise TransportError(f"the connection was lost: {error}") from error
            if not count:
                raise TransportError("it closed the connection")
            left -= count
            if self._inlet is None:
                self._prove(count)
                continue
            if self._head is None:
                self._inlet.filled(count)
                self._cut(self._inlet)
            elif self._filled(count):
                self._cut(self._inlet)
            if count < len(target) and self._head is None:
                return  # there is no more now: to ask again would only tell that

    def free(self) -> None:
        """It has ended: close it, and call back for what was not sent."""
        self.socket.close()
        waiting, self._out = self._out, deque()
        for _, done in waiting:
            if done is not None:
                done()

    # What has come.

    def _prove(self, count: int) -> None:
        self._answer = self._answer[count:]
        if self._answer:
            return
        proof, self.frames = self._proof.admit(self._answered)
        self._inlet = Inlet(self.frames, self._limits)
        self._post([proof], len(proof), None)
        self._joined(self)

    def _cut(self, inlet: Inlet) -> None:
        """Messages that are here, up to the first of which something is missing."""
        while not self.lost and (head := inlet.head()) is not None:
            self._head = head
            if not head.payload_bytes:
                self._came()
                continue
            self._payload = payload = self._owner.room(self, head)
            if payload is None:
                self._unwanted = head.payload_bytes
                self._target = _SCRATCH[: self._unwanted]
            elif len(payload) == head.payload_bytes:
                self._target = payload
            else:
                raise TransportError(f"a message of {head.payload_bytes} bytes has no place here")
            if not self._filled(inlet.take(self._target)):
                return

    def _filled(self, count: int) -> bool:
        """More of a payload is here; whether it is now complete."""
        if self._unwanted:
            self._unwanted -= count
            self._target = _SCRATCH[: self._unwanted]
        else:
            self._target = self._target[count:]
        if self._target:
            return False
        self._came()
        return True

    def _came(self) -> None:
        head, payload = self._head, self._payload
        assert head is not None
        self._head, self._payload = None, None
        self._owner.came(self, head, payload)
