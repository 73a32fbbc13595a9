"""A shard at work: workers on one side, the head on the other, the core in between, all in the hub's one thread."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

from starprof.errors import StarprofError, TransportError
from starprof.ps.headlink import HeadLink
from starprof.ps.messages import (
    KIND,
    WORDS,
    Await,
    Dismissed,
    Done,
    Entry,
    Factor,
    First,
    GaveUp,
    Give,
    Held,
    Inherit,
    Inherited,
    Keep,
    Meet,
    Named,
    Norm,
    Parameters,
    Ping,
    Push,
    Ready,
    Refused,
    Report,
    Stay,
    Took,
)
from starprof.ps.shard.core import Core, Outcome
from starprof.ps.shard.handover import Heir, give
from starprof.ps.shard.settings import Settings
from starprof.ps.spec import Spec
from starprof.ps.speech import word
from starprof.ps.wire import Head, Hub, Line

IDENTITY = "shard.json"
"""In a shard's folder: which one it is, and the model."""

HELLO_S = 60.0
FIRST = -1
"""Stands for the initial parameters, among the numbers of gradients."""


class Shard:
    """One process's. Everything but `heard` happens in the hub's thread."""

    def __init__(self, settings: Settings, secret: bytes, listener: socket.socket) -> None:
        """Go on from what is in the folder; nobody is served before `run`."""
        self.settings = settings
        self.why_over = ""
        self.core: Core | None = None
        self.hub = Hub(listener, secret, self)
        self._secret = secret
        self._run = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._lines: dict[int, Line] = {}
        self._giving = False
        self._lock = threading.Lock()
        self._for_head: deque[Any] = deque()
        self._heir = Heir(settings.folder)
        self._recover()
        self.link = HeadLink(settings.head, secret, self._hello, self.heard, self._drained)

    def run(self) -> None:
        """Serve until it is dismissed or the head is gone for good."""
        self.link.start()
        self._watch()
        try:
            self.hub.run()
        finally:
            self.link.close()

    def _watch(self) -> None:
        if self.link.rejected:
            self._end(self.link.rejected)
        self.hub.later(1.0, self._watch)

    def _end(self, why: str) -> None:
        self.why_over = why
        self.hub.stop()

    # What it is.

    def _recover(self) -> None:
        try:
            told = json.loads((self.settings.folder / IDENTITY).read_text())
            spec = Spec.of(json.dumps(told["spec"]).encode())
            self.core = self._core(spec, int(told["shard"]), int(told["shards"]))
        except FileNotFoundError:
            return

    def _core(self, spec: Spec, shard: int, shards: int) -> Core:
        return Core(self.settings.folder, spec, shard, shards, to_disk=self.settings.to_disk)

    def _keep(self, keep: Keep, payload: memoryview | None) -> None:
        """The head says which shard this is."""
        if self.core is not None:
            return
        spec = Spec.of(payload if payload is not None else b"")
        told = {"spec": json.loads(spec.to_json()), "shard": keep.shard, "shards": keep.shards}
        self.settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.settings.folder / f"{IDENTITY}.part"
        part.write_text(json.dumps(told))
        part.rename(self.settings.folder / IDENTITY)
        self.core = self._core(spec, keep.shard, keep.shards)
        self._for_head.append(self._report())

    def _drained(self) -> None:
        """Wait until all is taken in that a head before has said; called in the connection's thread.

        Raises:
            TransportError: the hub has no time for it.
        """
        done = threading.Event()
        self.hub.call(done.set)
        if not done.wait(HELLO_S):
            raise TransportError("this shard is too busy to say what it is")

    def _hello(self) -> Report:
        with self._lock:
            return self._report()

    def _flush(self) -> None:
        """Tell the head what has come up; with nothing held, since its connection's thread asks for a report."""
        while self._for_head:
            self.link.say(self._for_head.popleft())

    def _report(self) -> Report:
        host, port = self.hub.address
        core = self.core
        if core is None:
            return Report(-1, self._run, host, port)
        return Report(
            core.shard,
            self._run,
            host,
            port,
            core.next,
            core.version,
            core.holds,
            tuple(Named(worker, number) for worker, number in sorted(core.released.items())),
            tuple(Named(worker, number) for worker, number in sorted(core.settled.items())),
            tuple(core.tail[serial] for serial in sorted(core.tail)),
            core.spec.digest,
            core.ready,
        )

    # The head.

    def heard(self, message: Any, payload: memoryview | None) -> None:
        """The head has said something; called in its connection's thread."""

        def take_in() -> None:
            with self._lock:
                self._told(message, payload)
            self._flush()

        self.hub.call(take_in)

    def _told(self, message: Any, payload: memoryview | None) -> None:
        match message:
            case Ping():
                return
            case Keep():
                self._keep(message, payload)
            case Entry():
                self._entry(message)
            case Factor(serial=serial, factor=factor):
                outcome = self.core.factor(serial, factor) if self.core is not None else None
                if outcome is not None:
                    self._came_of(outcome)
                    self._advance()
            case Give(host=host, port=port):
                self._give(host, port)
            case Stay():
                self._giving = False
                self._advance()
            case Dismissed():
                shutil.rmtree(self.settings.folder, ignore_errors=True)
                self._end("nobody needs what it has any more")
            case Refused(reason=reason):
                self._end(reason)

    def _entry(self, entry: Entry) -> None:
        if self.core is None:
            return
        self.core.add(entry)
        self._advance()
        asked = self.core.asked_square()
        if asked is not None and asked[0] == entry.serial:
            self._for_head.append(Norm(*asked))

    def _advance(self) -> None:
        if self.core is None or self._giving:
            return
        for outcome in self.core.advance():
            self._came_of(outcome)

    def _came_of(self, outcome: Outcome) -> None:
        entry = outcome.entry
        if outcome.square is not None:
            return  # told after the entry, which may have been told twice
        self._for_head.append(Done(entry.serial))
        for one in entry.release:
            self._release(one.worker, one.number)

    def _release(self, worker: int, number: int) -> None:
        """Give a worker the parameters as they are now."""
        line = self._lines.get(worker)
        if line is None or self.core is None:
            return
        memory, back = self.core.lend()
        line.send(KIND, WORDS.encode(Parameters(number, self.core.version)), memory, back)

    # Workers, and a shard that hands over to this one; see `wire.line.Owner`.

    def joined(self, line: Line) -> None:
        """Somebody has connected."""

    def room(self, line: Line, head: Head) -> memoryview | None:
        """Where what comes goes."""
        with self._lock:
            return self._room(line, head)

    def _room(self, line: Line, head: Head) -> memoryview | None:
        message = word(head)
        match message:
            case Push(gradient=gradient):
                if self._giving:
                    raise TransportError("this shard is being handed over")
                if self.core is None or gradient.worker != self._rank(line):
                    raise TransportError("a gradient of somebody else")
                return self.core.room(message, head.payload_bytes)
            case First():
                if self.core is None or head.payload_bytes != self.core.size_bytes:
                    raise TransportError("the initial parameters don't fit")
                return None if self.core.ready else self.core.first()
            case Inherit():
                return self._heir.room(message, head.payload_bytes)
        raise TransportError("bytes that nobody wants")

    def came(self, line: Line, head: Head, payload: memoryview | None) -> None:
        """A message is here."""
        with self._lock:
            self._came(line, head, payload)
        self._flush()

    def _came(self, line: Line, head: Head, payload: memoryview | None) -> None:
        message = word(head)
        match message:
            case Meet(rank=rank):
                self._met(line, rank)
            case Push(gradient=gradient):
                if payload is not None and self.core is not None:
                    self.core.came(message)
                self._say(line, Held(gradient.number))
                self._advance()
            case First():
                self._begin(line)
            case Await(number=number):
                if self.core is not None and self.core.released.get(self._rank(line), -1) >= number:
                    self._release(self._rank(line), number)
            case Inherit():
                if payload is None:
                    self._heir.empty(message)
            case Inherited():
                self._inherited(line, message)
            case _:
                raise TransportError("a worker said what no worker says")

    def lost(self, line: Line, why: str) -> None:  # noqa: ARG002
        """A connection has ended."""
        rank = line.data
        if isinstance(rank, int) and self._lines.get(rank) is line:
            del self._lines[rank]
            if self.core is not None:
                with self._lock:
                    self.core.broke_off(rank)

    def _met(self, line: Line, rank: int) -> None:
        former = self._lines.get(rank)
        if former is not None:
            former.data = None
            former.end("its worker has connected anew")
            if self.core is not None:
                self.core.broke_off(rank)
        line.data = rank
        self._lines[rank] = line

    def _rank(self, line: Line) -> int:
        if not isinstance(line.data, int):
            raise TransportError("a worker did not say who it is")
        return line.data

    def _begin(self, line: Line) -> None:
        if self.core is None:
            raise TransportError("there is no model yet")
        if not self.core.ready:
            self.core.begin()
        self._say(line, Held(FIRST))
        self._for_head.append(Ready())

    def _say(self, line: Line, message: Any) -> None:
        line.send(KIND, WORDS.encode(message))

    # Handing over.

    def _give(self, host: str, port: int) -> None:
        """Another process gets all that is here; until the head decides whose it is, nothing more is done."""
        if self.core is None:
            return
        self._giving = True
        try:
            files = self.core.hand_over()
            give(files, self.core.shard, (host, port), self._secret)
        except StarprofError as error:
            self._giving = False
            self._for_head.append(GaveUp(str(error)))
            self._advance()

    def _inherited(self, line: Line, message: Inherited) -> None:
        if message.files == 0:
            self._heir.begin(self.core is None)
        else:
            self._heir.complete(message.files)
            self._recover()
            self._for_head.append(Took(self._report()))
        self._say(line, message)


def say(text: str) -> None:
    """One line for whoever looks into the log."""
    sys.stderr.write(f"starprof shard: {text}\n")


def folder_of(state: Path, number: int) -> Path:
    """Where the files of the `number`-th shard process of a node are."""
    return state / f"shard-{number}"
