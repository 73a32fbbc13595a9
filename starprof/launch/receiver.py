"""Node 0's side of the link: takes in the records of other nodes and answers for the time.

After the handshake a node sends JOIN and gets WELCOME (its id, the run's id) or REFUSED (why). Then, one at a time:
PING is answered by PONG; OFFER (a file) by WANT (how much of it is here already) or STORED; CHUNKs follow, and DONE
(SHA-256 of the whole) is answered by STORED once the file is synced and in place, or by BAD; BYE by FAREWELL.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from starprof.errors import TransportError
from starprof.launch import clock, kinds
from starprof.launch.incoming import Incoming
from starprof.launch.journal import Journal
from starprof.launch.plan import Plan
from starprof.wire.channel import HANDSHAKE_S, Channel, accept, as_object, hang_up, tune

MAX_UNPROVEN = 16
"""Connections that have not proven themselves; the oldest makes room for a new one."""

MAX_NODES = 4096
IDLE_S = 45.0
"""A node pings every few seconds; after this silence its connection is dropped and it has to come back."""

MISSING_PATIENCE_S = 15.0
BUSY_PATIENCE_S = 60.0


@dataclass
class Peer:
    """Another node of this run."""

    node: int
    host: str
    recorder: str
    channel: Channel | None = None
    done: bool = False
    seen_s: float = field(default_factory=time.monotonic)


class Receiver:
    """Listens for the other nodes, one thread for each of them (and no more of them than MAX_NODES).

    Raises:
        TransportError: the address can't be listened on.
    """

    node = 0
    holds_run_file = True

    def __init__(self, plan: Plan, address: tuple[str, int], secret: bytes) -> None:
        self.run_id = plan.run_id
        self._spool = plan.spool
        self._secret = secret
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._unproven: list[socket.socket] = []
        self._ended_s: float | None = None
        try:
            self._listener = socket.create_server(address, family=_family(address[0]))
        except OSError as error:
            raise TransportError(f"can't listen on {address[0]}:{address[1]}: {error.strerror or error}") from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it really listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self, journal: Journal) -> None:  # noqa: ARG002 - the nodes that join measure the clocks
        """Begin to accept nodes."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def begin_end(self, *, drained: bool) -> None:  # noqa: ARG002 - our own rings are read in place
        """From now on the others have a bounded time to deliver the rest."""
        self._ended_s = time.monotonic()

    def busy(self) -> bool:
        """Whether a node that joined may still deliver."""
        now_s = time.monotonic()
        ended_s = self._ended_s or now_s
        with self._lock:
            for peer in self._peers.values():
                patience_s = MISSING_PATIENCE_S if peer.channel is None else BUSY_PATIENCE_S
                if (
                    not peer.done
                    and now_s - max(ended_s, peer.seen_s) < patience_s
                    and now_s - ended_s < BUSY_PATIENCE_S
                ):
                    return True
        return False

    def complete(self) -> bool:
        """Whether every node that joined said that it delivered everything."""
        with self._lock:
            return all(peer.done for peer in self._peers.values())

    def remarks(self) -> list[str]:
        """Nodes whose records are not complete here."""
        with self._lock:
            return [
                f"node {p.node} ({p.host}) has not delivered everything: what is missing stays in its own spool there; "
                "add it with `starprof merge`"
                for p in self._peers.values()
                if not p.done
            ]

    def close(self) -> None:
        """Stop listening and drop all nodes."""
        hang_up(self._listener)
        with self._lock:
            channels = [p.channel for p in self._peers.values() if p.channel is not None]
        for channel in channels:
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors, or the client is gone already
                continue
            with self._lock:
                self._unproven.append(sock)
                oldest = self._unproven.pop(0) if len(self._unproven) > MAX_UNPROVEN else None
            if oldest is not None:
                hang_up(oldest)
            threading.Thread(target=self._serve, args=(sock,), name="node", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """One connection from its first to its last byte; whatever goes wrong ends only this connection."""
        peer: Peer | None = None
        channel: Channel | None = None
        try:
            tune(sock)
            channel = accept(sock, kinds.NODE_0, self._secret)
            self._proven(sock)
            peer = self._admit(channel)
            if peer is not None:
                self._converse(peer, channel)
        except (TransportError, OSError):
            pass  # the node comes back and goes on where it was; a stranger gets nothing
        finally:
            self._proven(sock)
            hang_up(sock)
            with self._lock:
                if peer is not None and peer.channel is channel:
                    peer.channel = None

    def _proven(self, sock: socket.socket) -> None:
        with self._lock:
            if sock in self._unproven:
                self._unproven.remove(sock)

    def _admit(self, channel: Channel) -> Peer | None:
        kind, wish = channel.receive_json(HANDSHAKE_S)
        if kind != kinds.JOIN:
            raise TransportError("a node did not say who it is")
        with self._lock:
            found = self._place(wish)
            former = None
            if isinstance(found, Peer):
                former, found.channel = found.channel, channel
                found.seen_s = time.monotonic()
        if isinstance(found, str):
            channel.send_json(kinds.REFUSED, reason=found)
            return None
        if former is not None:
            former.close()  # the node lost its connection and we had not noticed yet
        channel.send_json(kinds.WELCOME, node=found.node, run_id=self.run_id)
        return found

    def _place(self, wish: dict[str, Any]) -> Peer | str:
        """The peer that asks to come in, or why it may not."""
        recorder, host = str(wish.get("recorder", ""))[:64], str(wish.get("host", ""))[:255]
        for peer in self._peers.values():
            if peer.recorder == recorder:
                return peer
        wanted = wish.get("node")
        if len(self._peers) >= MAX_NODES:
            return f"this run has {MAX_NODES} nodes already"
        if wanted is None:
            wanted = next(n for n in range(1, MAX_NODES + 2) if n not in self._peers)
        if not isinstance(wanted, int) or wanted < 1:
            return "a node that joins has an id from 1 on"
        taken = self._peers.get(wanted)
        if taken is not None and (taken.channel is not None or taken.host != host):
            return f"node {wanted} is recorded by {taken.host} already: give another --node-rank, or none"
        self._peers[wanted] = Peer(wanted, host, recorder)
        return self._peers[wanted]

    def _converse(self, peer: Peer, channel: Channel) -> None:
        incoming = Incoming(self._spool, peer.node)
        while True:
            kind, payload = channel.receive(IDLE_S)
            peer.seen_s = time.monotonic()
            if kind == kinds.PING:
                clock.answer(channel)
            elif kind == kinds.OFFER:
                have = incoming.offer(as_object(payload))
                if have is None:
                    channel.send(kinds.STORED)
                else:
                    channel.send_json(kinds.WANT, offset=have)
            elif kind == kinds.CHUNK:
                incoming.append(payload)
            elif kind == kinds.DONE:
                channel.send(kinds.STORED if incoming.finish(payload) else kinds.BAD)
            elif kind == kinds.BYE:
                peer.done = True
                channel.send(kinds.FAREWELL)
                return
            else:
                raise TransportError(f"a node sent a message of the unknown kind {kind}")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
