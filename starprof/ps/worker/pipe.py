"""A worker's connection to one shard, made again wherever the shard is, until the worker's step is through."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from starprof.errors import TransportError
from starprof.ps.messages import Await, First, Held, Meet, Parameters, Place, Push
from starprof.ps.speech import send, word
from starprof.ps.wire import Connection, connect

T = TypeVar("T")

AGAIN_S = 0.1
LOOK_EVERY_S = 0.5
ANSWER_S = 60.0


class Pipe:
    """One shard's. One thread uses it at a time.

    Attributes:
        shard: which one.
        connections: that were made so far.
    """

    def __init__(
        self,
        meet: Meet,
        shard: int,
        secret: bytes,
        into: memoryview,
        place: Callable[[int], Place | None],
        check: Callable[[], None],
    ) -> None:
        """Nothing is connected yet.

        Args:
            meet: who this is.
            shard: which one.
            secret: of the job.
            into: where the shard's parameters go.
            place: where a shard is now; None: nobody knows.
            check: raises an error once there is no sense in waiting any longer.
        """
        self.shard = shard
        self.connections = 0
        self._meet = meet
        self._secret = secret
        self._into = into
        self._place = place
        self._check = check
        self._connection: Connection | None = None
        self._at: Place | None = None
        self._pushed: tuple[Push, memoryview] | None = None
        self._told_to_wait = -1
        self._got = Parameters(-1, 0)
        self._bytes_per_s: float | None = None

    def pace(self, bytes_per_s: float | None) -> None:
        """Push no faster than this from now on; None: as fast as possible."""
        self._bytes_per_s = bytes_per_s
        if self._connection is not None:
            self._connection.pace(bytes_per_s)

    def first(self, payload: memoryview) -> None:
        """Give the initial parameters."""

        def do(connection: Connection) -> None:
            send(connection, First(self.shard), payload)
            self._wait_held(connection, -1)

        self._until_done(do)

    def push(self, push: Push, payload: memoryview) -> None:
        """Hand a gradient in; it is held by the shard when this returns, or not needed any more."""
        self._pushed = push, payload
        self._until_done(self._push)

    def pull(self, number: int) -> Parameters:
        """Wait to be released from gradient `number` or a later one; the parameters are in place then."""

        def do(connection: Connection) -> None:
            if self._told_to_wait != self.connections:
                # This connection is a new one: the shard may have been another process before.
                if self._pushed is not None:
                    self._push(connection)
                send(connection, Await(number))
                self._told_to_wait = self.connections
            while self._got.number < number:
                self._hear(connection)

        self._until_done(do)
        self._pushed = None
        return self._got

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _push(self, connection: Connection) -> None:
        assert self._pushed is not None
        push, payload = self._pushed
        if self._got.number >= push.gradient.number:
            return
        send(connection, push, payload)
        self._wait_held(connection, push.gradient.number)
        self._told_to_wait = self.connections

    def _wait_held(self, connection: Connection, number: int) -> None:
        while True:
            message = self._hear(connection)
            if isinstance(message, Held) and message.number == number:
                return

    def _hear(self, connection: Connection) -> object:
        """The next message; parameters are taken."""
        while not connection.ready(LOOK_EVERY_S):
            self._check()
            if self._place(self.shard) not in (None, self._at):
                raise TransportError("the shard is elsewhere now")
        head = connection.receive(ANSWER_S)
        message = word(head)
        if isinstance(message, Parameters):
            if head.payload_bytes != self._into.nbytes:
                raise TransportError("a shard sent parameters of another size")
            connection.receive_into(self._into)
            if message.number >= self._got.number:
                self._got = message
        elif head.payload_bytes:
            connection.skip()
        return message

    def _until_done(self, do: Callable[[Connection], T]) -> T:
        while True:
            try:
                return do(self._connected())
            except (TransportError, OSError):
                self.close()
            self._check()
            time.sleep(AGAIN_S)

    def _connected(self) -> Connection:
        if self._connection is None:
            at = self._place(self.shard)
            if at is None:
                raise TransportError("nobody knows where the shard is")
            connection = connect((at.host, at.port), self._secret)
            self._connection, self._at = connection, at
            self.connections += 1
            if self._bytes_per_s is not None:
                connection.pace(self._bytes_per_s)
            send(connection, self._meet)
        return self._connection
