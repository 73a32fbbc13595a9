"""The server's side: one thread, many connections, each with its own place for what comes."""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from starprof.errors import TransportError
from starprof.ps.wire.heads import SERVICE, Limits
from starprof.ps.wire.line import Line, Owner
from starprof.wire.channel import HANDSHAKE_S
from starprof.wire.frames import ServerProof, Service

BACKLOG = 256
LOOK_EVERY_S = 0.5
ACCEPT_AT_ONCE = 32


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket for a hub, listening.

    Raises:
        TransportError: the address can't be listened on.
    """
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise TransportError(f"can't listen on {host}:{port}: {error}") from error


class Hub:
    """Serves all clients of one shard. `call` and `stop` may be called from any thread, the rest from its own.

    Attributes:
        lines: that have proven themselves.
        refused: connections that did not, or had no place.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        owner: Owner,
        *,
        limits: Limits | None = None,
        service: Service = SERVICE,
    ) -> None:
        """Take over a listening socket; nobody is served before `run`."""
        self.lines: set[Line] = set()
        self.refused = 0
        self._listener = listener
        self._secret = secret
        self._owner = owner
        self._limits = limits or Limits()
        self._service = service
        self._strangers: dict[Line, None] = {}
        self._by_fd: dict[int, Line] = {}
        self._touched: set[Line] = set()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._stopping = threading.Event()
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        listener.setblocking(False)
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(self._bell, select.EPOLLIN)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def call(self, what: Callable[[], None]) -> None:
        """Have something done in the hub's thread, soon."""
        self._calls.append(what)
        self._ring()

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something done after a while."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._number), what))

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping.set()
        self._ring()

    def run(self) -> None:
        """Serve until `stop`; then all connections end, and nobody listens any more."""
        try:
            looked_s = time.monotonic()
            while not self._stopping.is_set():
                for fd, events in self._poll.poll(self._rest_s()):
                    self._happened(fd, events)
                if self._calls or self._timers:
                    self._do()
                if self._touched:
                    self._settle()
                now_s = time.monotonic()
                if now_s - looked_s >= LOOK_EVERY_S:
                    looked_s = now_s
                    self._look(now_s)
        finally:
            self._close()

    # Its parts.

    def _rest_s(self) -> float:
        if self._calls:
            return 0.0
        if not self._timers:
            return LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.eventfd_write(self._bell, 1)

    def _happened(self, fd: int, events: int) -> None:
        line = self._by_fd.get(fd)
        if line is None:
            if fd == self._bell:
                os.eventfd_read(fd)
            elif fd == self._listener.fileno():
                self._accept()
            return
        if events & select.EPOLLOUT:
            line.write()
        if events & ~select.EPOLLOUT and not line.lost:
            try:
                line.read()
            except TransportError as error:
                line.end(str(error))

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self.refused += 1  # it has gone again, or there are no more descriptors
                return
            try:
                proof = ServerProof(self._service, self._secret)
                line = Line(sock, proof, self._limits, self._owner, self._joined, self._touched)
            except OSError:
                sock.close()
                self.refused += 1
                continue
            self._by_fd[sock.fileno()] = line
            self._strangers[line] = None
            line.watched = select.EPOLLIN
            self._poll.register(sock, line.watched)
            if len(self._strangers) > self._limits.strangers:
                next(iter(self._strangers)).end("too many strangers")

    def _joined(self, line: Line) -> None:
        if len(self.lines) >= self._limits.lines:
            raise TransportError("there are too many connections")
        del self._strangers[line]
        self.lines.add(line)
        self._owner.joined(line)

    def _do(self) -> None:
        """What others asked for, and what it is time for."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _settle(self) -> None:
        """Lines that something was done with: they have ended, or wait for other events than before."""
        while self._touched:
            line = self._touched.pop()
            if line.lost:
                self._remove(line)
                continue
            wanted = select.EPOLLIN | (select.EPOLLOUT if line.waits else 0)
            if wanted != line.watched:
                line.watched = wanted
                self._poll.modify(line.socket, wanted)

    def _remove(self, line: Line) -> None:
        fd = line.socket.fileno()
        if fd < 0:
            return  # it was touched again after it had gone
        self._poll.unregister(fd)
        del self._by_fd[fd]
        line.free()
        if line in self.lines:
            self.lines.remove(line)
            self._owner.lost(line, line.lost)
        else:
            self._strangers.pop(line, None)
            self.refused += 1

    def _look(self, now_s: float) -> None:
        """Nobody may keep a place, or a thing half done, for ever."""
        for line in self._by_fd.values():
            if line in self._strangers:
                if now_s - line.since_s > HANDSHAKE_S:
                    line.end("it did not prove itself in time")
            elif line.stuck and now_s - line.moved_s > self._limits.stall_s:
                line.end("it stopped in the middle of a message")
        self._settle()

    def _close(self) -> None:
        for line in list(self._by_fd.values()):
            line.end("the server has stopped")
        self._settle()
        self._listener.close()
        self._poll.close()
        os.close(self._bell)
