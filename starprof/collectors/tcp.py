"""TCP sockets of the ranks: round trips, delivery rate, retransmissions, and what holds a sender back.

Every column of `tcp_sample` is a field of the kernel's answer to socket diagnosis (`starprof.collectors.inetdiag`
names each with its unit), at 1 Hz, or more seldom on a node with so many sockets that reading them all would take
more than 0.2 % of a core. Which rank a socket belongs to: the socket's inode, found in /proc/PID/fd of the ranks'
processes. That is looked up only when an unknown inode appears, and ever more seldom while it finds nothing.

Only this network namespace is seen; ranks in another one are reported as unavailable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from starprof.collectors.base import NodeContext, Rows, Unavailable
from starprof.collectors.inetdiag import DiagSocket, TcpSocket
from starprof.collectors.notes import Notes, Pace, stable_id
from starprof.model.tables.network import TCP, TCP_SAMPLE

MAX_OTHERS = 16
"""Sockets of no known rank are recorded (rank -1) only when there are at most this many."""

MAX_SOCKETS = 512
"""Sockets of ranks recorded at most in one tick."""

_SECOND_NS = 1_000_000_000
_SHARE = 0.002
_LONGEST_SEARCH_NS = 30 * _SECOND_NS


class Diag(Protocol):
    """What is asked of `inetdiag.DiagSocket`."""

    def established(self) -> Iterator[TcpSocket]:
        """All established TCP sockets."""
        ...

    def close(self) -> None:
        """Close."""
        ...


class TcpCollector:
    """Collects `tcp_sample` and `tcp`.

    Args:
        diag: opens the socket diagnosis; raises OSError where it is refused.
    """

    name = "tcp"
    dear = True

    def __init__(self, diag: Callable[[], Diag] = DiagSocket) -> None:
        self._open_diag = diag
        self._pace = Pace(0, _SHARE, time.thread_time_ns)  # the agent asks once a second
        self._ids: dict[tuple[bytes, int], int] = {}

    def open(self, context: NodeContext, rows: Rows) -> None:  # noqa: ARG002 - sockets are named when first seen
        """Open the socket diagnosis and try it once."""
        self._context = context
        self._notes = Notes(self.name, context.node)
        self._owners = _Owners(context, self._notes)
        try:
            self._diag = self._open_diag()
        except OSError as error:
            raise Unavailable(f"no socket diagnosis: {error.strerror or error}") from error
        try:
            for _ in self._diag.established():
                pass
        except OSError as error:
            self._diag.close()
            reason = f"TCP socket diagnosis refused: {error.strerror or error} (kernel module tcp_diag loaded?)"
            raise Unavailable(reason) from error

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append one row per socket of a rank."""
        if not self._context.tree or not self._pace.due(mono_ns):
            return
        try:
            sockets = list(self._diag.established())
        except OSError as error:
            self._notes.unavailable(rows, "dump", f"socket diagnosis failed: {error.strerror or error}")
            sockets = []
        self._owners.update(sockets, mono_ns, rows)
        owned = [(s, rank) for s in sockets if (rank := self._owners.rank(s.inode)) is not None]
        if len(sockets) - len(owned) <= MAX_OTHERS:
            owned += [(s, -1) for s in sockets if self._owners.rank(s.inode) is None]
        if len(owned) > MAX_SOCKETS:
            self._notes.unavailable(rows, "socket", f"{len(owned)} sockets, only {MAX_SOCKETS} are sampled")
        self._ids = {(s.cookie, rank): self._append(s, rank, mono_ns, rows) for s, rank in owned[:MAX_SOCKETS]}
        self._pace.done(mono_ns)

    def close(self) -> None:
        """Close the socket diagnosis."""
        self._diag.close()

    def _append(self, s: TcpSocket, rank: int, mono_ns: int, rows: Rows) -> int:
        node = self._context.node
        socket_id = self._ids.get((s.cookie, rank))
        if socket_id is None:
            local, remote = s.local, s.remote
            socket_id = stable_id("tcp", s.cookie, local, remote, rank)
            rows.add(TCP, [node, socket_id, rank, local, remote])
        i = s.info()
        row = [node, mono_ns, socket_id, rank, i.rtt_us, i.min_rtt_us, i.delivery_bytes_per_s]
        row += [i.acked_bytes, i.received_bytes, i.retransmits, i.busy_us, i.rwnd_limited_us, i.sndbuf_limited_us]
        rows.add(TCP_SAMPLE, [*row, i.unacked, s.send_queue_bytes])
        return socket_id


class _Owners:
    """Which rank holds which socket inode."""

    def __init__(self, context: NodeContext, notes: Notes) -> None:
        self._context = context
        self._notes = notes
        self._ranks: dict[int, int] = {}
        self._foreign: set[int] = set()
        self._searched_pids: frozenset[int] = frozenset()
        self._wait_ns = _SECOND_NS
        self._next_ns = 0
        self._own_namespace = self._namespace("self")

    def rank(self, inode: int) -> int | None:
        """Rank that holds the socket, None when no known rank does."""
        return self._ranks.get(inode)

    def update(self, sockets: Iterable[TcpSocket], mono_ns: int, rows: Rows) -> None:
        """Forget inodes that are gone, and search the ranks' descriptors when an unknown one appeared."""
        inodes = {s.inode for s in sockets if s.inode}
        self._ranks = {inode: rank for inode, rank in self._ranks.items() if inode in inodes}
        self._foreign &= inodes
        pids = frozenset(self._context.tree)
        if not pids <= self._searched_pids:  # new processes may hold inodes once taken for foreign
            self._foreign.clear()
            self._wait_ns = _SECOND_NS
            self._next_ns = mono_ns
        unknown = inodes - self._ranks.keys() - self._foreign
        if not unknown or mono_ns < self._next_ns:
            return
        self._searched_pids = pids
        found = self._search(unknown, rows)
        self._ranks.update(found)
        self._foreign |= unknown - found.keys()
        self._wait_ns = _SECOND_NS if found else min(2 * self._wait_ns, _LONGEST_SEARCH_NS)
        self._next_ns = mono_ns + self._wait_ns

    def _search(self, unknown: set[int], rows: Rows) -> dict[int, int]:
        """Ranks of the unknown inodes; a rank's own process comes before its children, which inherit sockets."""
        own = set(self._context.rank_pids.values())
        found: dict[int, int] = {}
        for pid, rank in sorted(self._context.tree.items(), key=lambda item: item[0] not in own):
            if len(found) == len(unknown):
                break
            try:
                inodes = self._inodes(pid)
            except PermissionError:
                reason = (
                    f"sockets of rank {rank} (pid {pid}) can't be attributed: /proc/{pid}/fd may be read by the same "
                    "user or with CAP_SYS_PTRACE only"
                )
                self._notes.unavailable(rows, f"rank {rank}", reason)
                continue
            except OSError:  # the process has just ended
                continue
            self._check_namespace(pid, rank, rows)
            found.update((inode, rank) for inode in inodes & unknown if inode not in found)
        return found

    def _inodes(self, pid: int) -> set[int]:
        folder = f"{self._context.proc}/{pid}/fd"
        found = set()
        for name in os.listdir(folder):  # noqa: PTH208 - half the time of Path.iterdir for hundreds of descriptors
            try:
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - likewise
            except OSError:  # closed meanwhile
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
        return found

    def _check_namespace(self, pid: int, rank: int, rows: Rows) -> None:
        theirs = self._namespace(str(pid))
        if self._own_namespace is not None and theirs is not None and theirs != self._own_namespace:
            reason = f"rank {rank} runs in another network namespace than the agent: its sockets are not seen"
            self._notes.unavailable(rows, f"rank {rank}", reason)

    def _namespace(self, pid: str) -> str | None:
        try:
            return os.readlink(f"{self._context.proc}/{pid}/ns/net")  # noqa: PTH115 - compared as text
        except OSError:
            return None
