"""All connections to node 0 in one loop of one thread, the disk in others: a thousand nodes cost what they send.

What comes in waits in memory until it is written; where the disk is slower than the network nobody is read from any
more, so that the nodes keep their records in their own spools.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from starprof.errors import SpoolError, StarprofError, TransportError
from starprof.launch.inbox import Inbox
from starprof.launch.visitor import Host, Visitor
from starprof.wire.channel import hang_up, tune

MAX_UNPROVEN = 128
"""Connections that have not proven themselves; those beyond it wait in the kernel's queue."""

DAWDLES_S = 0.5
"""Who takes longer has to make room: a whole cluster may start at one moment, and strangers may keep coming."""

MAX_CONNECTIONS = 8192
MAX_NEW_PER_S = 2_000
"""New connections beyond that wait in the kernel's queue for the next second."""

MOST_WAITING_BYTES = 64 << 20
COMMIT_EVERY_S = 0.1
RETRY_S = 2.0
_TICK_S = 0.25
_READ_BYTES = 256 << 10
_BACKLOG = 1024


class Post:
    """Listens on one address for the nodes of one run or of many.

    Raises:
        TransportError: the address can't be listened on.
    """

    def __init__(self, host: Host, address: tuple[str, int], inboxes: Callable[[], list[Inbox]]) -> None:
        """`host` says who may come in; `inboxes` are where records go, and have to be brought to the disk."""
        self._host = host
        self._inboxes = inboxes
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            raise TransportError(f"can't listen on {address[0]}:{address[1]}: {error.strerror or error}") from error
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._alarm, self._bell = socket.socketpair()
        for sock in (self._alarm, self._bell):
            sock.setblocking(False)
        self._visitors: dict[socket.socket, Visitor] = {}
        self.unproven: dict[socket.socket, float] = {}
        self._rung: deque[Visitor] = deque()
        self._doomed: deque[socket.socket] = deque()
        self._sockets: dict[Visitor, socket.socket] = {}
        self._closing = threading.Event()
        self._second = self._new = 0
        self._full = False
        self._threads = [
            threading.Thread(target=self._loop, name="post", daemon=True),
            threading.Thread(target=self._at_the_disk, args=(Inbox.write,), name="write", daemon=True),
            threading.Thread(target=self._at_the_disk, args=(Inbox.sync,), name="sync", daemon=True),
        ]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it really listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Begin to accept nodes."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening and drop everybody; what has come is on the disk then, if the disk takes it."""
        self._closing.set()
        self._ring()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10.0)
        self._bell.close()
        for inbox in self._inboxes():
            with contextlib.suppress(SpoolError):  # a full disk: the nodes were not told that it is here
                inbox.close()

    # The loop.

    def _loop(self) -> None:
        select = self._selector
        select.register(self._listener, selectors.EVENT_READ)
        select.register(self._alarm, selectors.EVENT_READ)
        next_look_s = 0.0
        try:
            while not self._closing.is_set():
                for key, events in select.select(_TICK_S):
                    self._handle(key.fileobj, events)  # type: ignore[arg-type]
                self._tend()
                now_s = time.monotonic()
                if now_s >= next_look_s:
                    next_look_s = now_s + _TICK_S
                    self._look_around(now_s)
        finally:
            for sock in list(self._visitors):
                self._drop(sock)
            hang_up(self._listener)
            self._alarm.close()
            select.close()

    def _handle(self, sock: socket.socket, events: int) -> None:
        if sock is self._listener:
            self._accept()
        elif sock is self._alarm:
            with contextlib.suppress(OSError):
                self._alarm.recv(4096)
        elif sock in self._visitors:
            visitor = self._visitors[sock]
            try:
                if events & selectors.EVENT_READ:
                    self._receive(sock, visitor)
                self._send(sock, visitor)
            except (StarprofError, OSError):
                self._drop(sock)  # a node comes back and goes on where it was; a stranger gets nothing

    def _accept(self) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._new = second, 0
        while self._new < MAX_NEW_PER_S and len(self._visitors) < MAX_CONNECTIONS and self._room_for_unproven():
            try:
                sock, where = self._listener.accept()
            except OSError:
                return  # nobody else, or no descriptor is left
            self._new += 1
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                tune(sock)
            visitor = Visitor(self._host, str(where[0]), self._wake, lambda sock=sock: self._doom(sock))  # type: ignore[misc]
            self._visitors[sock], self._sockets[visitor] = visitor, sock
            self.unproven[sock] = time.monotonic()
            self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        time.sleep(0.001)  # the limit is reached: what waits in the kernel's queue must not keep this loop turning

    def _room_for_unproven(self) -> bool:
        """Whether one more may prove himself; who has dawdled makes room."""
        if len(self.unproven) < MAX_UNPROVEN:
            return True
        oldest, since_s = next(iter(self.unproven.items()))
        if time.monotonic() - since_s < DAWDLES_S:
            return False
        self._drop(oldest)
        return True

    def _receive(self, sock: socket.socket, visitor: Visitor) -> None:
        try:
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise TransportError("hung up")
        visitor.feed(data, time.monotonic_ns())
        if visitor.proven:
            self.unproven.pop(sock, None)

    def _send(self, sock: socket.socket, visitor: Visitor) -> None:
        if visitor.out:
            try:
                sent = sock.send(visitor.out)
            except BlockingIOError:
                sent = 0
            del visitor.out[:sent]
        if visitor.over:
            raise TransportError("everything was said")
        self._listen_to(sock, visitor)

    def _listen_to(self, sock: socket.socket, visitor: Visitor) -> None:
        """What to wait for on a connection: room for what is to be sent, and, while there is room here, its words."""
        read = 0 if self._full and visitor.streaming else selectors.EVENT_READ
        events = read | (selectors.EVENT_WRITE if visitor.out else 0)
        key = self._selector.get_map().get(sock)
        if key is None and events:
            self._selector.register(sock, events)
        elif key is not None and not events:
            self._selector.unregister(sock)
        elif key is not None and key.events != events:
            self._selector.modify(sock, events)

    def _tend(self) -> None:
        """What other threads wanted."""
        while self._doomed:
            self._drop(self._doomed.popleft())
        while self._rung:
            visitor = self._rung.popleft()
            sock = self._sockets.get(visitor)
            if sock is None:
                continue
            try:
                visitor.tend()
                self._send(sock, visitor)
            except (StarprofError, OSError):
                self._drop(sock)

    def _look_around(self, now_s: float) -> None:
        """Who is too slow has to go; whether there is room for more records."""
        for sock, visitor in list(self._visitors.items()):
            if now_s > visitor.deadline_s and not (self._full and visitor.streaming):
                self._drop(sock)
        full = sum(inbox.waiting_bytes for inbox in self._inboxes()) > MOST_WAITING_BYTES
        if full != self._full:
            self._full = full
            for sock, visitor in self._visitors.items():
                if not full and visitor.streaming:
                    visitor.deadline_s = max(visitor.deadline_s, now_s + 2 * _TICK_S)
                self._listen_to(sock, visitor)

    def _drop(self, sock: socket.socket) -> None:
        visitor = self._visitors.pop(sock, None)
        self.unproven.pop(sock, None)
        if visitor is None:
            return
        self._sockets.pop(visitor, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        hang_up(sock)
        visitor.end()

    # Other threads.

    def _at_the_disk(self, do: Callable[[Inbox], None]) -> None:
        """A thread of the disk: again and again for every run; one whose disk is full is left alone for a while."""
        retry_s: dict[Inbox, float] = {}
        while not self._closing.wait(COMMIT_EVERY_S):
            for inbox in self._inboxes():
                if time.monotonic() < retry_s.get(inbox, 0.0):
                    continue
                try:
                    do(inbox)
                    retry_s.pop(inbox, None)
                except SpoolError:
                    retry_s[inbox] = time.monotonic() + RETRY_S

    def _wake(self, visitor: Visitor) -> None:
        self._rung.append(visitor)
        self._ring()

    def _doom(self, sock: socket.socket) -> None:
        self._doomed.append(sock)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it rings already, or the loop has ended
            self._bell.send(b"!")
