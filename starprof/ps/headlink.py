"""The connection to the head, of a worker or a shard: kept open, and made again whenever it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from starprof.errors import TransportError
from starprof.ps.messages import Ping
from starprof.ps.speech import HEAD, PING_EVERY_S, SILENT_S, send, word
from starprof.ps.wire import Connection, connect
from starprof.wire.frames import RejectedError

AGAIN_S = 0.2


class HeadLink:
    """A thread of its own holds it. `say` may be called by any thread.

    Attributes:
        failing_since_s: since when there is no connection, CLOCK_MONOTONIC; None: there is one.
        rejected: why the head wants nothing of us; "" as long as it does.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        hello: Callable[[], Any],
        on_word: Callable[[Any, memoryview | None], None],
        before_hello: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is done before `start`.

        Args:
            address: of the head.
            secret: of the job.
            hello: what is said first on each connection.
            on_word: called with whatever the head says, and its payload.
            before_hello: called before it, with nothing held: what heads before have said is to be taken in.
        """
        self.failing_since_s: float | None = time.monotonic()
        self.rejected = ""
        self._address = address
        self._secret = secret
        self._hello = hello
        self._on_word = on_word
        self._before_hello = before_hello
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="starprof-ps-head", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def say(self, message: Any, payload: memoryview | None = None) -> bool:
        """Say something, if there is a connection; what is lost with it is said again by the next hello."""
        with self._lock:
            if self._connection is None:
                return False
            try:
                send(self._connection, message, payload)
            except TransportError:
                return False  # its own thread sees it too
            return True

    def close(self) -> None:
        """Hang up, for good."""
        self._over.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._over.is_set() and not self.rejected:
            try:
                connection = connect(self._address, self._secret, service=HEAD)
            except RejectedError as error:
                self.rejected = str(error)
                return
            except (TransportError, OSError):
                self._failed()
                continue
            try:
                self._serve(connection)
            except TransportError:
                self._failed()
            finally:
                with self._lock:
                    self._connection = None
                connection.close()

    def _failed(self) -> None:
        if self.failing_since_s is None:
            self.failing_since_s = time.monotonic()
        self._over.wait(AGAIN_S)

    def _serve(self, connection: Connection) -> None:
        self._before_hello()
        with self._lock:
            send(connection, self._hello())
            self._connection = connection
        self.failing_since_s = None
        heard_s = time.monotonic()
        pinged_s = heard_s
        while not self._over.is_set():
            now_s = time.monotonic()
            if now_s - pinged_s >= PING_EVERY_S:
                pinged_s = now_s
                self.say(Ping())
            if now_s - heard_s > SILENT_S:
                raise TransportError("the head is silent")
            if not connection.ready(PING_EVERY_S / 2):
                continue
            head = connection.receive(SILENT_S)
            payload = memoryview(bytearray(head.payload_bytes)) if head.payload_bytes else None
            if payload is not None:
                connection.receive_into(payload)
            heard_s = time.monotonic()
            self._on_word(word(head), payload)
