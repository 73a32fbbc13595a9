"""Connections between ranks for what is too large for the coordinator: results of rounds, and whole states.

Every rank listens on a port and tells it in the job's store. A connection serves one direction and is made when first
needed. Who is there is proven on both sides, and so are the headers; the numbers themselves travel unsealed, as those
of the job's own collectives do.

    RESULT  the round's description, then the numbers
    FETCH   a round: send me its result
    PULL    a version: send me your state, of that version or newer
    STATE   version and size, then the state
    NUMBERS of a sum: what they are, then the numbers
    HERE    nothing: makes the connection before it is needed
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from starprof.control.engine.flat import Flat
from starprof.control.engine.jobstore import value_of
from starprof.control.engine.transit import Transit, reader
from starprof.errors import TransportError
from starprof.sync.transfers import Sent
from starprof.wire.channel import dial, hang_up, tune
from starprof.wire.frames import ANSWER_BYTES, TAG_BYTES, Frames, ServerProof, Service

SERVICE = Service(b"SPR1", "a rank of this job")
RESULT, FETCH, PULL, STATE, RANK, NUMBERS, HERE = range(1, 8)
QUEUED = 64
"""Messages that wait for one rank; beyond it the oldest are forgotten, and that rank has to ask for what it misses."""
MIN_QUEUED = 8
CONNECT_S = 5.0
IDLE_S = 1.0
WRITE_S = 30.0
MAX_STATE_BYTES = 1 << 40
_FRAME_HEAD_BYTES = 5


class Owner(Protocol):
    """Who the messages are for; called from threads of this module."""

    def buffer(self, header: bytes) -> Flat:
        """Where the numbers of the result go that has this description."""
        ...

    def result_came(self, header: bytes, flat: Flat) -> None:
        """A result is here, in what `buffer` gave."""
        ...

    def result_failed(self, flat: Flat) -> None:
        """It broke off."""
        ...

    def asked_for_result(self, rank: int, number: int) -> None:
        """A rank wants a round's result."""
        ...

    def asked_for_state(self, rank: int, version: int) -> None:
        """A rank wants the state."""
        ...

    def state_came(self, rank: int, version: int, state: bytearray) -> None:
        """Another rank's state is here."""
        ...


class Sums(Protocol):
    """Who adds up numbers of other ranks; called from threads of this module."""

    def room(self, header: bytes) -> torch.Tensor:
        """Where the numbers go that have this header."""
        ...

    def came(self, rank: int, header: bytes, numbers: torch.Tensor) -> None:
        """They are in what `room` gave."""
        ...

    def give(self, numbers: torch.Tensor) -> None:
        """They broke off."""
        ...


@dataclass(slots=True)
class _Message:
    """What waits to be sent; `done` is called whether it was or not.

    How long it is on its way tells, where it is `timed`, how slow an interface is.
    """

    kind: int
    header: bytes
    numbers: memoryview | None = None
    done: Callable[[], None] = field(default=lambda: None)
    timed: bool = False


class Peers:
    """All connections of one rank.

    Attributes:
        sums: who adds up; None as long as nobody does.
    """

    def __init__(
        self, store: Any, rank: int, secret: bytes, owner: Owner, host: str = "127.0.0.1", queued: int = QUEUED
    ) -> None:
        """Listen.

        Args:
            store: the job's, or a prefix of it.
            rank: of this process.
            secret: that all ranks know.
            owner: whom to tell.
            host: address of this machine that the others can reach.
            queued: messages that may wait for one rank.
        """
        self.sums: Sums | None = None
        self._store = store
        self._rank = rank
        self._secret = secret
        self._owner = owner
        self._queued = max(MIN_QUEUED, min(queued, QUEUED))
        self._queues: dict[int, queue.Queue[_Message]] = {}
        self._queueing = threading.Lock()
        self._read = reader()
        self._transits: dict[int, Transit] = {}
        self._measuring = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.create_server((host, 0), backlog=128)
        self._listener.settimeout(IDLE_S)
        self._address = f"{host}:{self._listener.getsockname()[1]}"
        self._told = False
        self._known: dict[int, str] = {}
        self._start(self._listen, "starprof-peers")

    def tell(self) -> None:
        """Tell the others where this rank listens, before any of them is to send something; once is enough.

        Raises:
            TransportError: the job's store is gone.
        """
        if self._told:
            return
        try:
            self._store.set(f"peer/{self._rank}", self._address)
            self._told = True
        except RuntimeError as error:  # torch's stores have no narrower type
            raise TransportError(f"the job's store is gone: {error}") from error

    def know(self, ranks: Iterable[int]) -> None:
        """Look up where these ranks listen, all of which have told: later the store may keep whoever asks waiting."""
        others = [rank for rank in ranks if rank not in self._known]
        with contextlib.suppress(RuntimeError):  # who isn't known is asked for when it is needed
            keys = [f"peer/{rank}" for rank in others]
            if others and self._store.check(keys):
                self._known.update(zip(others, (value.decode() for value in self._store.multi_get(keys)), strict=True))

    def send_result(self, to: int, header: bytes, flat: Flat, done: Callable[[], None], *, timed: bool = False) -> None:
        """Send a round's result; returns at once.

        Args:
            to: which rank.
            header: description of the round.
            flat: its numbers; must not be touched before `done`.
            done: called once, from another thread or this one.
            timed: others wait for it as for a sum: how long it is on its way is told with `sent`.
        """
        self._enqueue(to, _Message(RESULT, header, bytes_of(flat.tensor), done, timed))

    def send_numbers(self, to: int, header: bytes, numbers: torch.Tensor, done: Callable[[], None]) -> None:
        """Send numbers of a sum; returns at once, and calls `done` as `send_result` does."""
        self._enqueue(to, _Message(NUMBERS, header, bytes_of(numbers), done, timed=True))

    def sent(self) -> tuple[Sent, ...]:
        """For how long what others wait for (see `timed`) was on its way to them since this was last asked."""
        with self._measuring:
            return tuple(sent for transit in self._transits.values() if (sent := transit.sent()) is not None)

    def reach(self, to: int) -> None:
        """Connect to a rank that will be needed soon, if this rank has never spoken to it."""
        if to not in self._queues:
            self._enqueue(to, _Message(HERE, b""))

    def fetch(self, holder: int, number: int) -> None:
        """Ask for a round's result."""
        self._enqueue(holder, _Message(FETCH, str(number).encode()))

    def pull(self, holder: int, version: int) -> None:
        """Ask for a state."""
        self._enqueue(holder, _Message(PULL, str(version).encode()))

    def send_state(self, to: int, version: int, state: bytes) -> None:
        """Send the state of a version."""
        self._enqueue(to, _Message(STATE, f"{version} {len(state)}".encode(), memoryview(state)))

    def close(self) -> None:
        """End all connections; what waits is not sent any more."""
        self._closing.set()
        hang_up(self._listener)

    def _start(self, target: Callable[..., None], name: str, *args: Any) -> None:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    # Sending: one thread and one queue for each rank, so that a slow one keeps nobody else waiting.

    def _enqueue(self, to: int, message: _Message) -> None:
        with self._queueing:
            waiting = self._queues.get(to)
            if waiting is None:
                waiting = self._queues[to] = queue.Queue(self._queued)
                self._start(self._send_all, f"starprof-to-{to}", to, waiting)
        while True:
            try:
                waiting.put_nowait(message)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    waiting.get_nowait().done()

    def _send_all(self, to: int, waiting: queue.Queue[_Message]) -> None:
        line: tuple[socket.socket, Frames] | None = None
        while not self._closing.is_set():
            try:
                message = waiting.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            # A connection that the other side has closed shows only when something is sent: one more try.
            for _ in range(2):
                try:
                    line = line or self._dial(to)
                    self._measure(to, message)
                    self._send(line, message)
                    break
                except (OSError, TransportError):
                    if line is not None:
                        hang_up(line[0])
                    line = None
            message.done()
        if line is not None:
            hang_up(line[0])

    def _dial(self, to: int) -> tuple[socket.socket, Frames]:
        host, _, port = (self._known.get(to) or value_of(self._store, f"peer/{to}", CONNECT_S)).rpartition(":")
        sock, frames = dial((host, int(port)), SERVICE, self._secret, CONNECT_S)
        sock.settimeout(WRITE_S)
        sock.sendall(frames.seal(RANK, str(self._rank).encode()))
        with self._measuring:
            self._transits[to] = Transit(to, [sock.fileno()], self._read)
        return sock, frames

    def _measure(self, to: int, message: _Message) -> None:
        if message.timed and message.numbers is not None:
            with self._measuring:
                self._transits[to].reduced(message.numbers.nbytes)

    @staticmethod
    def _send(line: tuple[socket.socket, Frames], message: _Message) -> None:
        sock, frames = line
        sock.sendall(frames.seal(message.kind, message.header))
        if message.numbers is not None:
            sock.sendall(message.numbers)

    # Receiving: one thread for each rank that has connected.

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._start(self._receive_all, "starprof-from", sock)

    def _receive_all(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            sock.settimeout(CONNECT_S)
            proof = ServerProof(SERVICE, self._secret)
            sock.sendall(proof.greeting)
            answer, frames = proof.admit(_exactly(sock, ANSWER_BYTES))
            sock.sendall(answer)
            kind, payload = _frame(sock, frames)
            if kind != RANK:
                raise TransportError("a rank did not say which one it is")
            sock.settimeout(None)
            while not self._closing.is_set():
                self._received(sock, int(payload), *_frame(sock, frames))
        except (OSError, TransportError, ValueError):
            pass  # whoever it was connects again when it has something to say
        finally:
            hang_up(sock)

    def _received(self, sock: socket.socket, rank: int, kind: int, header: bytes) -> None:
        if kind == RESULT:
            self._receive_result(sock, header)
        elif kind == NUMBERS and self.sums is not None:
            self._receive_numbers(sock, rank, header, self.sums)
        elif kind == FETCH:
            self._owner.asked_for_result(rank, int(header))
        elif kind == PULL:
            self._owner.asked_for_state(rank, int(header))
        elif kind == STATE:
            version, size = map(int, header.split())
            if not 0 <= size <= MAX_STATE_BYTES:
                raise TransportError("a state of an impossible size")
            state = bytearray(size)
            _into(sock, memoryview(state))
            self._owner.state_came(rank, version, state)
        elif kind != HERE:
            raise TransportError("a rank said something that is no message")

    def _receive_result(self, sock: socket.socket, header: bytes) -> None:
        flat = self._owner.buffer(header)
        try:
            _into(sock, bytes_of(flat.tensor))
        except BaseException:
            self._owner.result_failed(flat)
            raise
        self._owner.result_came(header, flat)

    @staticmethod
    def _receive_numbers(sock: socket.socket, rank: int, header: bytes, sums: Sums) -> None:
        numbers = sums.room(header)
        try:
            _into(sock, bytes_of(numbers))
        except BaseException:
            sums.give(numbers)
            raise
        sums.came(rank, header, numbers)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU; the caller keeps the tensor."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _frame(sock: socket.socket, frames: Frames) -> tuple[int, bytes]:
    """The next frame, and not a byte more: what follows may be numbers."""
    head = _exactly(sock, _FRAME_HEAD_BYTES)
    frames.feed(head)
    frame = frames.next()
    if frame is None:
        frames.feed(_exactly(sock, int.from_bytes(head[:4], "little") + TAG_BYTES))
        frame = frames.next()
    if frame is None:
        raise TransportError("a frame broke off")
    return frame


def _exactly(sock: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    _into(sock, memoryview(data))
    return data


def _into(sock: socket.socket, target: memoryview) -> None:
    while target:
        count = sock.recv_into(target, 0, socket.MSG_WAITALL)  # the kernel waits: not a turn of Python's for each piece
        if not count:
            raise TransportError("the other side closed the connection")
        target = target[count:]
