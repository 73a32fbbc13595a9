"""Which processes belong to which rank: refreshed at 1 Hz at most, from the pids that are new since the last time.

A process belongs to its nearest ancestor that is a rank, so a launcher above several ranks belongs to none, and a
rank below another rank is counted once. It stays with that rank when its parent dies and init adopts it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from starprof.collectors.procfile import read_once
from starprof.collectors.procstat import parse_stat

_INIT = 1
_KTHREADD = 2
_DEEPEST = 100
"""A longer line of ancestors is a loop of pids that were used again."""


class ProcessTree:
    """All visible processes, their parents, and the rank that each belongs to.

    Attributes:
        parents: pid -> pid of its parent, for everything below.
        processes, kernel_threads: pids of both sorts.
        rank_of: pid -> rank, for the processes in a rank's tree.
    """

    def __init__(self, proc: str) -> None:
        """`proc`: root of procfs."""
        self._proc = proc
        self.parents: dict[int, int] = {}
        self.processes: set[int] = set()
        self.kernel_threads: set[int] = set()
        self.rank_of: dict[int, int] = {}
        self._ranks: dict[int, int] = {}

    def refresh(self, rank_pids: Mapping[int, int]) -> bool:
        """Look at what started and ended since the last time; returns whether `rank_of` changed.

        Raises:
            OSError: procfs can't be listed.
        """
        alive = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}  # noqa: PTH208 - hot path
        gone = self.parents.keys() - alive
        if gone:
            self._orphan(gone)
        new = alive - self.parents.keys()
        for pid in new:
            self._learn(pid)
        ranks = {pid: rank for rank, pid in rank_pids.items()}
        if ranks != self._ranks:
            self._ranks = ranks
            new = alive
        return self._assign(new) or bool(gone)

    def forget(self, pid: int) -> None:
        """The process ended (its pid may be in use again: the next refresh treats it as new)."""
        self.parents.pop(pid, None)
        self.rank_of.pop(pid, None)
        self.processes.discard(pid)
        self.kernel_threads.discard(pid)

    def _orphan(self, gone: set[int]) -> None:
        for pid in gone:
            self.forget(pid)
        for pid, parent in self.parents.items():
            if parent in gone:
                self.parents[pid] = _INIT

    def _learn(self, pid: int) -> None:
        try:
            parent = parse_stat(read_once(f"{self._proc}/{pid}/stat")).parent_pid
        except (ProcessLookupError, FileNotFoundError):
            return
        except (OSError, ValueError, IndexError):  # hidepid, or not a process: never looked at again
            parent = 0
        self.parents[pid] = parent
        kin = self.kernel_threads if _KTHREADD in (pid, parent) else self.processes
        kin.add(pid)

    def _assign(self, pids: Iterable[int]) -> bool:
        changed = False
        for pid in pids:
            rank = self._nearest_rank(pid)
            if rank is not None and self.rank_of.get(pid) != rank:
                self.rank_of[pid] = rank
                changed = True
        return changed

    def _lineage(self, pid: int) -> Iterator[int]:
        """The process and its ancestors below init, nearest first."""
        for _ in range(_DEEPEST):
            if pid <= _INIT:
                return
            yield pid
            pid = self.parents.get(pid, 0)

    def _nearest_rank(self, pid: int) -> int | None:
        for ancestor in self._lineage(pid):
            rank = self._ranks.get(ancestor)
            if rank is not None:
                return rank
        return None

    def job_roots(self, supervisor_pid: int) -> set[int]:
        """Children of the supervisor with a rank below them: the job's first process, normally one."""
        return {
            pid
            for rank_pid in self._ranks
            for pid in self._lineage(rank_pid)
            if self.parents.get(pid) == supervisor_pid
        }

    def children(self, pid: int) -> set[int]:
        """Direct children of a process."""
        return {child for child, parent in self.parents.items() if parent == pid}

    def below(self, pid: int, roots: set[int]) -> bool:
        """Whether `pid` is one of `roots` or a descendant of one."""
        return any(ancestor in roots for ancestor in self._lineage(pid))
