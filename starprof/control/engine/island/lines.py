"""The lines inside of an island: one between its leader and each follower, for words in both directions.

Who is there is proven first, and every word after that. A line that ends without a farewell tells that the rank at its
other end is gone, so forked children must not hold it open.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from starprof.control.engine.jobstore import value_of
from starprof.errors import TransportError
from starprof.hook.boundary import describe_error
from starprof.wire.channel import as_object, dial, hang_up, tune
from starprof.wire.frames import ANSWER_BYTES, Frames, ServerProof, Service

SERVICE = Service(b"SPI1", "the leader of this rank's island")
JOIN_S = 20.0
"""Time in which all followers must have come; they do so at the end of the same step."""
DIAL_S = 5.0
WRITE_S = 10.0
"""The other side must take a word within this time; its reader does nothing that takes long."""
WORD = 1
_READ_BYTES = 1 << 16
_lines: weakref.WeakSet[Line] = weakref.WeakSet()
_hooked = threading.Lock()
_fork_is_hooked = False

Word = dict[str, Any]


class Line:
    """One end of a line.

    Attributes:
        ended: nothing comes from the other side any more.
    """

    def __init__(self, sock: socket.socket, frames: Frames, first: list[Word] | None = None) -> None:
        """Take over a connection whose handshake is done; `first`: words that have come with it."""
        self.ended = False
        self._socket = sock
        self._frames = frames
        self._first = first or []
        self._sending = threading.Lock()
        self._closing = False
        sock.settimeout(WRITE_S)
        _hook_fork()
        _lines.add(self)

    def start(self, name: str, on_word: Callable[[Word], None], on_end: Callable[[str], None]) -> None:
        """Hear the other side from now on, in a thread of our own.

        Args:
            name: of the thread.
            on_word: called with each word, in order.
            on_end: called once, with the reason, when nothing more can come, unless this side has hung up.
        """
        threading.Thread(target=self._hear, args=(on_word, on_end), name=name, daemon=True).start()

    def say(self, word: Word) -> None:
        """Send a word. A line that has failed ends, and `on_end` is called: nothing is raised here."""
        with self._sending:
            if self.ended:
                return
            try:
                self._socket.sendall(self._frames.seal(WORD, json.dumps(word, separators=(",", ":")).encode()))
            except OSError:
                self.ended = True
        if self.ended:
            hang_up(self._socket)  # the reader wakes up by it

    def close(self) -> None:
        """Hang up."""
        self._closing = True
        hang_up(self._socket)

    def heard(self, within_s: float) -> Word:
        """The next word; for use before `start`.

        Raises:
            TransportError: none has come in time.
        """
        deadline_s = time.monotonic() + within_s
        while not self._first:
            if time.monotonic() > deadline_s:
                raise TransportError("a rank of this island says nothing")
            self._first += self._read()
        return self._first.pop(0)

    def go_deaf(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._socket.close()

    def _hear(self, on_word: Callable[[Word], None], on_end: Callable[[str], None]) -> None:
        reason = "it is gone"
        try:
            while True:
                words, self._first = self._first, []
                for word in words:
                    on_word(word)
                self._first += self._read()
        except (OSError, TransportError):
            pass
        except Exception as error:  # noqa: BLE001 - the boundary: what is raised in this thread would reach nobody
            reason = f"what it said could not be done: {describe_error(error)}"
        self.ended = True
        hang_up(self._socket)
        if not self._closing:
            on_end(reason)

    def _read(self) -> list[Word]:
        """Words that are here as a whole; may be none."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return []
        if not data:
            raise TransportError("the line has ended")
        self._frames.feed(data)
        words = []
        while (frame := self._frames.next()) is not None:
            words.append(as_object(frame[1]))
        return words


class Lobby:
    """Where a leader waits for its followers."""

    def __init__(self, store: Any, key: str, host: str, secret: bytes) -> None:
        """Listen, and tell where by the job's store."""
        self._secret = secret
        self._listener = socket.create_server((host, 0))
        store.set(key, f"{host}:{self._listener.getsockname()[1]}")

    def gathered(self, followers: tuple[int, ...]) -> dict[int, Line]:
        """A line to each of them.

        Raises:
            TransportError: not all have come in time.
        """
        lines: dict[int, Line] = {}
        deadline_s = time.monotonic() + JOIN_S
        try:
            while missing := set(followers) - set(lines):
                self._listener.settimeout(max(0.01, deadline_s - time.monotonic()))
                try:
                    sock, _ = self._listener.accept()
                except OSError:
                    for line in lines.values():
                        line.close()
                    told = ", ".join(map(str, sorted(missing)))
                    raise TransportError(f"ranks of this island did not come: {told}") from None
                rank, admitted = self._admitted(sock)
                if admitted is not None and rank in missing:
                    lines[rank] = admitted
        finally:
            self._listener.close()
        return lines

    def _admitted(self, sock: socket.socket) -> tuple[int, Line | None]:
        """Who has come, None if it could not prove itself."""
        try:
            tune(sock)
            sock.settimeout(DIAL_S)
            proof = ServerProof(SERVICE, self._secret)
            sock.sendall(proof.greeting)
            answer, frames = proof.admit(_exactly(sock, ANSWER_BYTES))
            sock.sendall(answer)
            line = Line(sock, frames)
            return int(line.heard(DIAL_S)["rank"]), line
        except (OSError, TransportError, KeyError, TypeError, ValueError):
            hang_up(sock)
            return -1, None


def joined(store: Any, key: str, rank: int, secret: bytes) -> Line:
    """A follower's line to the leader of its island.

    Raises:
        TransportError: the leader is not there.
    """
    try:
        host, _, port = value_of(store, key, JOIN_S).rpartition(":")
        line = Line(*dial((host, int(port)), SERVICE, secret, DIAL_S))
    except (TransportError, OSError) as error:
        raise TransportError(f"the leader of this rank's island is not there: {error}") from error
    line.say({"rank": rank})
    return line


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise TransportError("the other side closed the connection")
        data += more
    return data


def _hook_fork() -> None:
    global _fork_is_hooked
    with _hooked:
        if not _fork_is_hooked:
            _fork_is_hooked = True
            os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for line in list(_lines):
        line.go_deaf()
