"""One connection to node 0, as the loop of all connections sees it: proof first, then a conversation.

After the handshake a node sends JOIN and gets WELCOME (its id, the run's id) or REFUSED (why). Then

    PING     answered by PONG
    STREAM   bytes of whole frames, one after the other; answered now and then by TAKEN: how many of this connection's
             are on the disk
    OFFER    a file, for what is no run of whole frames: answered by WANT (how much of it is here already) or STORED;
             CHUNKs follow, and DONE (SHA-256 of the whole) is answered by STORED once it is in place, or by BAD
    BYE      everything was delivered: FAREWELL

Instead of JOIN somebody who only wants to know something may ASK: the answer is PARTs and an ANSWER, as often as he
likes. Whoever has not proven himself gets a nonce, and costs a hundred bytes for a few seconds.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Protocol

from starprof.errors import SpoolError, TransportError
from starprof.launch import clock, kinds
from starprof.launch.inbox import Inbox, Peer
from starprof.launch.incoming import Incoming
from starprof.spool.frame import STREAMED_BYTES, whole_frames
from starprof.wire import channel
from starprof.wire.channel import as_object
from starprof.wire.frames import ANSWER_BYTES, MAX_PAYLOAD_BYTES, Frames, ServerProof

IDLE_S = 45.0
"""A node pings every few seconds; after this silence its connection is dropped and it has to come back."""

MAX_MESSAGES_PER_S = 5_000
"""Of one connection; a node sends a few in a second, or a hundred when it has much to catch up with."""

MAX_WAITING_BYTES = 8 << 20
"""What may wait for a client that does not read."""

_COUNT = struct.Struct("<Q")
_MOST_PARTIAL_BYTES = STREAMED_BYTES + (1 << 16)


class Host(Protocol):
    """What a visitor needs of the house."""

    def secrets(self) -> list[bytes]:
        """The secrets of all jobs."""
        ...

    def inbox(self, secret: bytes, wish: dict[str, object]) -> Inbox | str:
        """The run that a node of this secret wants to join, or why it may not."""
        ...

    def ask(self, secret: bytes, question: dict[str, object], answer: Callable[[bytes], None]) -> None:
        """Answer a question of somebody with this secret, from any thread, soon."""
        ...

    def note(self, action: str, **fields: object) -> None:
        """Something that belongs into the audit log."""
        ...


class Visitor:
    """One connection.

    Attributes:
        out: what is to be sent.
        deadline_s: when to hang up, if nothing comes until then.
        proven: it knows a secret.
    """

    def __init__(self, host: Host, where: str, wake: Callable[[Visitor], None], hang_up: Callable[[], None]) -> None:
        """`where` it comes from; `wake` has this visitor's `tend` called by the loop; `hang_up` ends it."""
        self._host = host
        self._where = where
        self._wake = wake
        self._hang_up = hang_up
        self._proof = ServerProof(kinds.NODE_0, b"")
        self.out = bytearray(self._proof.greeting)
        self.deadline_s = time.monotonic() + channel.HANDSHAKE_S
        self.proven = False
        self.peer: Peer | None = None
        self._secret = b""
        self._handshake = bytearray()
        self._frames: Frames | None = None
        self._inbox: Inbox | None = None
        self._incoming: Incoming | None = None
        self._partial = bytearray()
        self._streamed = 0
        self._taken = self._told = 0
        self._answers: list[bytes] = []
        self._second = 0
        self._messages = 0
        self._closing = False

    @property
    def streaming(self) -> bool:
        """Whether it brings records, for which there must be room."""
        return self._inbox is not None

    @property
    def over(self) -> bool:
        """Whether everything was said."""
        return self._closing and not self.out

    def feed(self, data: bytes, arrived_ns: int) -> None:
        """Bytes have come in.

        Raises:
            TransportError: it is not to be talked to any more.
            OSError: the spool can't be written.
        """
        if self._frames is None:
            self._handshake += data
            if len(self._handshake) < ANSWER_BYTES:
                return
            self._prove()
            data = bytes(self._handshake[ANSWER_BYTES:])
            self._handshake.clear()
        assert self._frames is not None
        self._frames.feed(data)
        while not self._closing and (frame := self._frames.next()) is not None:
            self._limit()
            self._take(*frame, arrived_ns)

    def tend(self) -> None:
        """Say what other threads have left to say."""
        if self._taken > self._told and self._frames is not None:
            self._told = self._taken
            self._say(kinds.TAKEN, _COUNT.pack(self._told))
        while self._answers and self._frames is not None:
            answer = self._answers.pop(0)
            while len(answer) > MAX_PAYLOAD_BYTES:
                self._say(kinds.PART, answer[:MAX_PAYLOAD_BYTES])
                answer = answer[MAX_PAYLOAD_BYTES:]
            self._say(kinds.ANSWER, answer)

    def end(self) -> None:
        """The connection is over."""
        if self.peer is not None and self._inbox is not None:
            self._inbox.left(self.peer, self._hang_up)
            self._host.note("node-left", node=self.peer.node, host=self.peer.host, run=self._inbox.run_id)

    def _prove(self) -> None:
        answer = bytes(self._handshake[:ANSWER_BYTES])
        secrets = self._host.secrets()
        try:
            number, reply, self._frames = self._proof.admit_any(answer, secrets)
        except TransportError:
            self._host.note("stranger", where=self._where)
            raise
        self._secret = secrets[number]
        self.out += reply
        self.proven = True

    def _limit(self) -> None:
        second = int(time.monotonic())
        self._messages = self._messages + 1 if second == self._second else 1
        self._second = second
        if self._messages > MAX_MESSAGES_PER_S:
            raise TransportError("a client says too much")

    def _say(self, kind: int, payload: bytes = b"") -> None:
        assert self._frames is not None
        self.out += self._frames.seal(kind, payload)
        if len(self.out) > MAX_WAITING_BYTES:
            raise TransportError("a client does not read")

    def _take(self, kind: int, payload: bytes, arrived_ns: int) -> None:
        if kind == kinds.ASK:
            self.deadline_s = time.monotonic() + IDLE_S
            self._host.ask(self._secret, as_object(payload), self._answer)
            return
        if self.peer is None:
            self._join(kind, payload)
            return
        self.peer.seen_s = time.monotonic()
        self.deadline_s = self.peer.seen_s + IDLE_S
        if kind == kinds.PING:
            self._say(kinds.PONG, clock.stamps(arrived_ns))
        elif kind == kinds.STREAM:
            self._stream(payload)
        elif kind == kinds.BYE:
            self.peer.done = True
            self._say(kinds.FAREWELL)
            self._closing = True
        else:
            self._take_file(kind, payload)

    def _join(self, kind: int, payload: bytes) -> None:
        if kind != kinds.JOIN:
            raise TransportError("a node did not say who it is")
        wish = as_object(payload)
        inbox = self._host.inbox(self._secret, wish)
        found = inbox if isinstance(inbox, str) else inbox.place(wish, self._hang_up)
        if isinstance(inbox, str) or isinstance(found, str):
            self._say(kinds.REFUSED, json.dumps({"reason": found}).encode())
            self._host.note("refused", where=self._where, host=str(wish.get("host", ""))[:255], why=str(found))
            self._closing = True
            return
        self.peer, self._inbox = found, inbox
        self._incoming = Incoming(inbox, found)
        self.deadline_s = time.monotonic() + IDLE_S
        self._say(kinds.WELCOME, json.dumps({"node": found.node, "run_id": inbox.run_id}).encode())
        self._host.note("node-joined", node=found.node, host=found.host, run=inbox.run_id, where=self._where)

    def _stream(self, payload: bytes) -> None:
        assert self._inbox is not None
        assert self.peer is not None
        self._partial += payload
        self._streamed += len(payload)
        try:
            end, rows = whole_frames(self._partial, b"n%d-" % self.peer.node)
        except SpoolError as error:
            raise TransportError(f"a node streamed something else than its records: {error}") from error
        if end:
            whole = bytes(self._partial[:end])
            del self._partial[:end]
            self._inbox.add(whole, rows, self._streamed - len(self._partial), self._on_disk)
        if len(self._partial) > _MOST_PARTIAL_BYTES:
            raise TransportError("a node streamed a frame that is too long")

    def _take_file(self, kind: int, payload: bytes) -> None:
        assert self._incoming is not None
        if kind == kinds.OFFER:
            have = self._incoming.offer(as_object(payload))
            if have is None:
                self._say(kinds.STORED)
            else:
                self._say(kinds.WANT, json.dumps({"offset": have}).encode())
        elif kind == kinds.CHUNK:
            self._incoming.append(payload)
        elif kind == kinds.DONE:
            self._say(kinds.STORED if self._incoming.finish(payload) else kinds.BAD)
        else:
            raise TransportError(f"a node sent a message of the unknown kind {kind}")

    # Called by other threads.

    def _on_disk(self, upto: int) -> None:
        self._taken = upto
        self._wake(self)

    def _answer(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._wake(self)
