"""The side of a node that joins: streams its records to node 0, measures the clock, and survives a cut connection.

Records leave while their segment is still written, so that node 0 sees a step a moment after it was made. A segment is
deleted here only after node 0 has said that all of it is on its disk. While node 0 can't be reached everything waits in
this node's own spool, up to a size (see `outbox`).
"""

from __future__ import annotations

import hashlib
import shlex
import socket
import struct
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError, TransportError
from starprof.launch import clock, kinds
from starprof.launch.journal import Journal
from starprof.launch.outbox import Outbox
from starprof.launch.plan import Plan
from starprof.model import events
from starprof.spool.segment import SegmentWriter, list_segments
from starprof.wire.channel import Channel, as_object, connect
from starprof.wire.frames import RejectedError

OPEN_S = 30.0
"""Node 0 may start this much later than we do."""

CONNECT_S = 3.0
REPLY_S = 15.0
LOOK_EVERY_S = 0.2
HURRY_S = 0.02
PING_EVERY_S = 10.0
FIRST_DELAY_S = 0.25
MAX_DELAY_S = 5.0
LAST_PATIENCE_S = 30.0
"""At the end: how long to go on without any progress while node 0 can't be reached."""

GONE_PATIENCE_S = 3.0
"""At the end, when node 0's machine answers that nothing listens there any more."""

_CHUNK_BYTES = 256 << 10
_COUNT = struct.Struct("<Q")


class Sender:
    """The link of a node that joined; one thread does all of its work."""

    holds_run_file = False

    def __init__(self, plan: Plan, address: tuple[str, int], secret: bytes) -> None:
        self.node = plan.node or 0
        self.run_id = plan.run_id
        self._wanted = plan.node
        self._job = plan.job
        self._command = shlex.join(plan.command)[:10_000]
        self._address = address
        self._secret = secret
        self._spool = plan.spool
        self._recorder = uuid.uuid4().hex
        self._channel: Channel | None = None
        self._journal: Journal | None = None
        self._ending = threading.Event()
        self._rings_too = False
        self._done = False
        self._refused = ""
        self._gone = False
        self._progress_s = 0.0
        self._sent_bytes = 0
        self._dropped = 0
        self._buffer_bytes = plan.buffer_bytes
        self._outbox = Outbox(plan.spool.segments, self.node)
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)

    @classmethod
    def join(cls, plan: Plan, address: tuple[str, int], secret: bytes) -> Sender:
        """Connect to node 0 and get this node's id and the run's id, before the job starts.

        Raises:
            TransportError: node 0 refuses us, or can't be reached for OPEN_S seconds.
        """
        sender = cls(plan, address, secret)
        deadline_s = time.monotonic() + OPEN_S
        while sender._channel is None:
            try:
                sender._channel = sender._connect()
            except RejectedError:
                raise
            except (TransportError, OSError) as error:
                if time.monotonic() > deadline_s:
                    raise TransportError(
                        f"node 0 can't be reached at {plan.join} ({error}): start its recorder first, "
                        "or record without --join and use `starprof merge` later"
                    ) from error
                time.sleep(FIRST_DELAY_S)
        return sender

    def start(self, journal: Journal) -> None:
        """Begin to stream."""
        self._journal = journal
        self._outbox = Outbox(self._spool.segments, self.node)
        self._thread.start()

    def begin_end(self, *, drained: bool) -> None:
        """Send the rest, then say good-bye; rings that the agent did not empty go along as they are."""
        for source in {s.source for s in list_segments(self._spool.segments) if not s.sealed}:
            SegmentWriter(self._spool.segments, source).close()  # seals what a killed writer left
        self._rings_too = not drained
        self._progress_s = time.monotonic()
        self._ending.set()

    def busy(self) -> bool:
        """Whether the rest is still on its way and there is hope."""
        if self._done or self._refused or not self._thread.is_alive():
            return False
        return time.monotonic() - self._progress_s < (GONE_PATIENCE_S if self._gone else LAST_PATIENCE_S)

    def complete(self) -> bool:
        """Whether node 0 has everything."""
        return self._done

    def remarks(self) -> list[str]:
        """Where the records are now."""
        lost = f"{self._dropped} records were dropped while node 0 was away: more than --buffer holds"
        told = [lost] if self._dropped else []
        if self._done:
            sent = f"sent {self._sent_bytes / 1e6:.1f} MB of node {self.node} to node 0, which writes the run file"
            return [sent, *told]
        why = self._refused or "node 0 can't be reached any more"
        return [f"{why}: the records of node {self.node} stay on this machine", *told]

    def close(self) -> None:
        """Drop the connection."""
        channel = self._channel
        if channel is not None:
            channel.close()

    def _connect(self) -> Channel:
        channel = connect(self._address, kinds.NODE_0, self._secret, CONNECT_S)
        try:
            channel.send_json(
                kinds.JOIN,
                node=self._wanted,
                host=socket.gethostname(),
                recorder=self._recorder,
                job=self._job,
                command=self._command,
            )
            kind, reply = channel.receive_json(REPLY_S)
            if kind == kinds.REFUSED:
                raise RejectedError(f"node 0 refused this node: {reply.get('reason')}")
            self._settle(kind, reply)
        except BaseException:
            channel.close()
            raise
        return channel

    def _settle(self, kind: int, reply: dict[str, Any]) -> None:
        node, run_id = reply.get("node"), reply.get("run_id")
        if kind != kinds.WELCOME or not isinstance(node, int) or not isinstance(run_id, str):
            raise TransportError("node 0 did not say which node we are")
        self.node = self._wanted = node
        self.run_id = run_id

    def _work(self) -> None:
        delay_s = FIRST_DELAY_S
        while not self._done:
            try:
                if self._channel is None:
                    self._channel = self._connect()
                self._gone = False
                delay_s = FIRST_DELAY_S
                self._session(self._channel)
            except RejectedError as error:
                self._refused = str(error)
                return
            except (TransportError, OSError) as error:
                self._gone = isinstance(error, ConnectionRefusedError)
                if self._channel is not None:
                    self._channel.close()
                    self._channel = None
                self._make_room()
                time.sleep(delay_s)
                delay_s = min(MAX_DELAY_S, 2 * delay_s)

    def _make_room(self) -> None:
        """Node 0 is away: keep what waits for it below the size that it may have."""
        assert self._journal is not None
        self._outbox.rewind()
        try:
            self._outbox.look()
            dropped = self._outbox.shrink(self._buffer_bytes)
        except OSError:
            return
        if dropped:
            self._dropped += dropped
            detail = f"node 0 could not be reached, and {self._buffer_bytes >> 20} MB of records waited for it"
            self._journal.event(events.BUFFER_FULL, value=dropped, detail=detail)

    def _session(self, channel: Channel) -> None:
        """Stream and measure until the end or until the connection breaks."""
        assert self._journal is not None
        self._outbox.rewind()
        next_ping_s = 0.0
        while True:
            if time.monotonic() >= next_ping_s:
                self._measure(channel)
                next_ping_s = time.monotonic() + PING_EVERY_S
            ending = self._ending.is_set()  # asked before the look: what is there then is all there will be
            self._stream(channel)
            if ending and self._outbox.empty:
                for path in sorted(self._spool.rings.glob("*.ring")) if self._rings_too else ():
                    self._ship(channel, path)
                self._say_bye(channel)
                return
            self._wait(channel)

    def _measure(self, channel: Channel) -> None:
        """The clock; node 0 may say meanwhile that it has taken something."""
        assert self._journal is not None
        offset = clock.measure(channel, REPLY_S, self._hear)
        self._journal.clock(offset.offset_ns, offset.error_ns, "ping")

    def _stream(self, channel: Channel) -> None:
        """Send what is new, and what node 0 has to get as a file; remove what it has."""
        box = self._outbox
        box.look()
        for data in box.pieces():
            channel.send(kinds.STREAM, data)
            self._sent_bytes += len(data)
            self._progress_s = time.monotonic()
        for path in box.files():
            self._ship(channel, path)
        box.clear()

    def _wait(self, channel: Channel) -> None:
        """Hear what node 0 has taken; until it is time to look again."""
        until_s = time.monotonic() + (HURRY_S if self._ending.is_set() else LOOK_EVERY_S)
        while (left_s := until_s - time.monotonic()) > 0:
            heard = channel.poll(left_s)
            if heard is not None:
                self._hear(*heard)
                if self._ending.is_set() or self._outbox.backlog:
                    return

    def _hear(self, kind: int, payload: bytes) -> bool:
        """Take in what node 0 says of its own; whether it was that."""
        if kind != kinds.TAKEN:
            return False
        if len(payload) != _COUNT.size:
            raise TransportError("node 0 did not say what it has taken")
        self._outbox.taken(*_COUNT.unpack(payload))
        self._progress_s = time.monotonic()
        return True

    def _reply(self, channel: Channel) -> tuple[int, bytes]:
        """The answer to what was just said."""
        while True:
            kind, payload = channel.receive(REPLY_S)
            if not self._hear(kind, payload):
                return kind, payload

    def _ship(self, channel: Channel, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SpoolError(f"can't read {path}: {error.strerror}") from error
        channel.send_json(kinds.OFFER, name=path.name, size=len(data))
        kind, reply = self._reply(channel)
        if kind == kinds.WANT:
            offset = as_object(reply).get("offset")
            if not isinstance(offset, int) or not 0 <= offset <= len(data):
                raise TransportError("node 0 wants a part of a file that does not exist")
            for at in range(offset, len(data), _CHUNK_BYTES):
                channel.send(kinds.CHUNK, data[at : at + _CHUNK_BYTES])
                self._progress_s = time.monotonic()
            channel.send(kinds.DONE, hashlib.sha256(data).digest())
            kind, _ = self._reply(channel)
            self._sent_bytes += len(data) - offset
        if kind != kinds.STORED:
            raise TransportError("node 0 could not store a file")
        self._progress_s = time.monotonic()
        path.unlink()

    def _say_bye(self, channel: Channel) -> None:
        channel.send(kinds.BYE)
        kind, _ = self._reply(channel)
        if kind != kinds.FAREWELL:
            raise TransportError("node 0 did not take the good-bye")
        self._done = True
