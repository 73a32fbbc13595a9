"""A rank's connection to the coordinator: made and kept by one thread, used by any.

Started only when control was asked for; in a forked child it is deaf and dumb. What can't be sent at once is not kept:
the connection is dropped, and the next one's hello says it all.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable

from starprof.control.codec import decode, encode, encode_briefly
from starprof.control.speech import COORDINATOR, MAX_FRAME_BYTES, MESSAGE, PING, PING_EVERY_S, PONG
from starprof.errors import TransportError
from starprof.sync.protocol.messages import Hello, Objects, ToCoordinator, ToRank
from starprof.wire.channel import dial, hang_up
from starprof.wire.frames import Frames

CONNECT_S = 2.0
SEND_S = 0.05
"""A training thread may stand this long for a connection that takes nothing."""

HELLO_S = 1.0
"""A hello may be long, and is sent by our own thread."""

SILENT_S = 5.0
"""The coordinator answers pings; after this silence it is taken for gone."""

CLOSE_S = 1.0
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 1.0
STEADY_S = 2.0
"""A connection that held this long was a good one: the next is made without delay."""

_LOOK_EVERY_S = 0.25
_READ_BYTES = 1 << 16
_TIMEVAL = struct.Struct("@ll")
_links: weakref.WeakSet[CoordinatorLink] = weakref.WeakSet()
_hooked = threading.Lock()
_fork_is_hooked = False


class CoordinatorLink:
    """One rank's.

    Attributes:
        connected: whether the coordinator is there, as far as is known.
        errors: what went wrong here other than in the network, swallowed.
        last_error: the newest of it, or why there is no connection.
    """

    def __init__(
        self,
        address_of: Callable[[], tuple[str, int]],
        secret: bytes,
        rank: int,
        *,
        hello: Callable[[], Hello | Objects],
        on_message: Callable[[ToRank], None],
        on_lost: Callable[[], None],
        lock: threading.RLock,
        on_dialled: Callable[[Exception | None], None] = lambda _error: None,
    ) -> None:
        """Prepare; nothing happens before `start`.

        Args:
            address_of: where the coordinator listens, asked anew for every connection; may raise OSError.
            secret: of the job.
            rank: of this process.
            hello: what to say first on a new connection; called with `lock` held.
            on_message: called in our thread with what the coordinator says.
            on_lost: called in our thread when a connection is gone.
            lock: held around `hello` and its sending; whoever asks the member for what is to be sent holds it until
                that is sent, so that the coordinator hears all in one order.
            on_dialled: called in our thread after every try to connect, with what prevented it.
        """
        self.connected = False
        self.errors = 0
        self.last_error = ""
        self._address_of = address_of
        self._secret = secret
        self._rank = rank
        self._hello = hello
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_dialled = on_dialled
        self._lock = lock
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._frames: Frames | None = None
        self._sent_s = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to connect, in a thread of our own."""
        _hook_fork()
        _links.add(self)
        self._thread = threading.Thread(target=self._work, name=f"starprof-link-{self._rank}", daemon=True)
        self._thread.start()

    def send(self, message: ToCoordinator) -> None:
        """Say something; nothing happens while there is no connection."""
        if self._frames is None:
            return
        try:
            data = encode_briefly(message)
        except TransportError as error:
            self._swallow(error)
            return
        self._send(MESSAGE, data)

    def close(self) -> None:
        """Hang up, for good; what was said before still arrives."""
        self._closing.set()
        with self._sending:
            if self._socket is not None:
                _shut(self._socket, socket.SHUT_WR)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)
        self._drop()

    def go_deaf(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._closing = threading.Event()  # the old one's lock may be held for ever
        self._closing.set()
        self._sending = threading.Lock()
        self._frames = None
        self._thread = None
        self.connected = False
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()  # not shut down: that would end the parent's connection

    # Our thread.

    def _work(self) -> None:
        delay_s = 0.0
        while not self._closing.wait(delay_s):
            begun_s = time.monotonic()
            try:
                self._converse(*self._connect())
            except (OSError, TransportError) as error:
                self.last_error = str(error)
            except Exception as error:  # noqa: BLE001 - the boundary: the callbacks are not ours, and the job goes on
                self._swallow(error)
            self._end()
            steady = time.monotonic() - begun_s > STEADY_S
            delay_s = FIRST_DELAY_S if steady else min(MAX_DELAY_S, max(FIRST_DELAY_S, 2 * delay_s))

    def _connect(self) -> tuple[socket.socket, Frames]:
        address = self._address_of()
        try:
            sock, frames = dial(address, COORDINATOR, self._secret, CONNECT_S)
        except (OSError, TransportError) as error:
            self._on_dialled(error)
            raise
        self._on_dialled(None)
        frames.most_bytes = MAX_FRAME_BYTES
        sock.settimeout(None)
        # The kernel keeps the time: a socket with a time limit of Python's own costs three system calls more a message.
        _limit(sock, socket.SO_RCVTIMEO, _LOOK_EVERY_S)
        _limit(sock, socket.SO_SNDTIMEO, HELLO_S)
        with self._lock:
            try:
                sock.sendall(frames.seal(MESSAGE, encode(self._hello())))
                _limit(sock, socket.SO_SNDTIMEO, SEND_S)
            except BaseException:
                hang_up(sock)
                raise
            self._socket, self._frames = sock, frames
            self._sent_s = time.monotonic()
            self.connected = True
        if self._closing.is_set():
            raise TransportError("closed")
        return sock, frames

    def _converse(self, sock: socket.socket, frames: Frames) -> None:
        heard_s = time.monotonic()
        buffer = memoryview(bytearray(_READ_BYTES))
        while not self._closing.is_set():
            try:
                count = sock.recv_into(buffer)
            except BlockingIOError:
                count = None
            now_s = time.monotonic()
            if count:
                heard_s = now_s
                frames.feed(buffer[:count])
                while (frame := frames.next()) is not None:
                    self._take(*frame)
            elif count is not None:
                raise TransportError("the coordinator has hung up")
            elif now_s - heard_s > SILENT_S:
                raise TransportError("the coordinator is silent")
            if now_s - self._sent_s >= PING_EVERY_S:
                self._send(PING, b"")

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == MESSAGE:
            self._on_message(decode(payload))  # type: ignore[arg-type]
        elif kind != PONG:
            raise TransportError(f"the coordinator sent a frame of the unknown kind {kind}")

    def _end(self) -> None:
        """No connection any more."""
        was, self.connected = self.connected, False
        self._drop()
        if was:
            try:
                self._on_lost()
            except Exception as error:  # noqa: BLE001 - the boundary
                self._swallow(error)

    # Any thread.

    def _send(self, kind: int, payload: bytes) -> None:
        with self._sending:
            sock, frames = self._socket, self._frames
            if sock is None or frames is None:
                return
            try:
                sock.sendall(frames.seal(kind, payload))
                self._sent_s = time.monotonic()
            except OSError as error:  # also BlockingIOError: part of it may be sent
                self.last_error = str(error)
                self._frames = None
                _shut(sock, socket.SHUT_RDWR)  # wakes our thread, which closes it

    def _drop(self) -> None:
        with self._sending:
            sock, self._socket, self._frames = self._socket, None, None
        if sock is not None:
            hang_up(sock)

    def _swallow(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:
        return  # it was not connected any more


def _limit(sock: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(whole, round((seconds - whole) * 1e6)))


def _hook_fork() -> None:
    global _fork_is_hooked  # hooks of fork can't be taken back: one for all links, once
    with _hooked:
        if not _fork_is_hooked:
            os.register_at_fork(after_in_child=_go_deaf)
            _fork_is_hooked = True


def _go_deaf() -> None:
    for link in list(_links):
        link.go_deaf()
