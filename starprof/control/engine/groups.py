"""Reductions among any set of ranks: raw gloo groups, made at a set's first reduction, or before, and kept.

`torch.distributed.new_group` needs all ranks, or hangs for overlapping sets; a raw group over a prefix of the job's
store needs its members only. Members make and use their groups in the order of rounds, so they never wait for each
other in a circle. A group in which anything failed is never used again: its sockets may hold parts of what failed.

A group that is destroyed waits for its own threads, and ends the process when it is one of them that destroys it. So
what those threads call holds no group, and groups are given up in a thread that has nothing else to do.

Python ends a thread that comes back to it from C++ while the process is ending, and that aborts the process. So whoever
ends a process waits for those threads first (`settle`), and a group is made only once all its members have come: gloo
would wait for a lost one for as long as it may.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from starprof.control.engine.jobstore import OwnClient
from starprof.control.engine.transit import Transit, in_ring, reader, sockets
from starprof.sync.transfers import Sent

MAKE_S = 5.0
"""Time in which all members must have come to make a group at the first attempt; doubles with every further one."""
MAX_MAKE_S = 60.0
REDUCE_S = 30.0
"""Time after which a reduction that does not move on has failed; a lost member is told of by the coordinator before."""

ONLY_OURS = 2
"""References that Python counts of an object that one list holds, and the call that asks."""
LOOK_EVERY_S = 0.05
SETTLE_S = 2.0
"""The end of a process waits so long for threads of ours, and once more when those that wait were told to end."""
MEET_EVERY_S = 0.01

Members = tuple[int, ...]
Done = Callable[[bool], None]
_Job = tuple[Members, str, int, torch.Tensor | None, Done]


class Groups:
    """All groups that one rank is a member of; one thread makes them."""

    def __init__(self, store: Any, rank: int, on_hopeless: Callable[[str], None] = lambda _why: None) -> None:
        """Begin with none.

        Args:
            store: the job's; groups are made by a client of their own, since one that waits keeps others waiting.
            rank: of this process.
            on_hopeless: called when the store is gone, and with it the way to a group that is needed.
        """
        self._on_hopeless = on_hopeless
        self._store = store
        self._own = OwnClient(store)
        self._rank = rank
        self._made: dict[Members, Any] = {}
        self._transit: dict[Members, Transit] = {}
        self._read = reader()
        self._broken: set[Members] = set()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._queued = 0
        self._busy = 0
        self._apart: list[Groups] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def reduce(self, members: Members, name: str, attempt: int, tensor: torch.Tensor, done: Done) -> None:
        """Sum a tensor of all members in place; returns at once.

        Args:
            members: who takes part, in order; they call this in the same order of rounds.
            name: of this attempt, the same on all members and unique in the job.
            attempt: 0 the first time; later ones use a new group.
            tensor: contiguous, on the CPU; must not be touched before `done`.
            done: called once, from any thread, with whether it has the sum.
        """
        with self._lock:
            group = self._made.get(members) if attempt == 0 and not self._queued else None
            if group is None:
                self._queued += 1
        if group is not None:
            self._issue(group, members, tensor, done)
        else:
            self._put((members, name, attempt, tensor, done))

    def prepare(self, sets: Iterable[Members]) -> None:
        """Make groups that will be needed: all their members call this with the same sets, and before they reduce."""
        for members in sets:
            with self._lock:
                self._queued += 1
            self._put((members, "", 0, None, lambda _complete: None))

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_all, name="starprof-groups", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def abandon(self, members: Members) -> None:
        """A member is lost: whatever runs among them fails now."""
        with self._lock:
            self._give_up(members)

    def sent(self) -> tuple[Sent, ...]:
        """For how long this rank's data was on its way in the reductions since this was last asked, group by group."""
        with self._lock:
            return tuple(sent for transit in self._transit.values() if (sent := transit.sent()) is not None)

    def apart(self, name: str) -> Groups:
        """Groups of the same ranks that have nothing to do with these."""
        other = Groups(dist.PrefixStore(name, self._store), self._rank, self._on_hopeless)
        self._apart.append(other)
        return other

    def settle(self, within_s: float = SETTLE_S) -> None:
        """Nothing is begun any more: wait, not without end, until no thread is on its way back into Python.

        A member that has not come in this time is not waited for any more.
        """
        with self._lock:
            unused = not self._made and not self._broken and not self._queued
        until_s = time.monotonic() + within_s
        self._wait_for_threads(unused, until_s)
        self._over.set()
        self._wait_for_threads(unused, until_s + SETTLE_S)
        if not unused:
            time.sleep(LOOK_EVERY_S)  # for the last steps of each, which nobody can see
        for other in self._apart:
            other.settle(max(0.0, until_s - time.monotonic()))

    def _wait_for_threads(self, unused: bool, until_s: float) -> None:
        while not unused and (self._busy or self._queued) and time.monotonic() < until_s:
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        """End the thread and all groups."""
        self._over.set()
        self._jobs.put(None)
        with self._lock:
            for members in list(self._made):
                self._give_up(members)

    def _make_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            members, name, attempt, tensor, done = job
            group = self._group(members, name, attempt)
            if group is None:
                done(False)
            elif tensor is not None:
                self._issue(group, members, tensor, done)
            del group, done, tensor  # while this thread waits, none of them must live by it
            with self._lock:
                self._queued -= 1

    def _group(self, members: Members, name: str, attempt: int) -> Any:
        """The group of these members, None if it can't be had."""
        with self._lock:
            if attempt == 0 and members in self._made:
                return self._made[members]
            if attempt == 0 and members in self._broken:
                return None  # its name in the store is used up; the next attempt has one of its own
            self._give_up(members)
        within_s = min(MAX_MAKE_S, MAKE_S * 2**attempt)
        path = f"{'_'.join(map(str, members))}/{name if attempt else 'first'}"
        try:
            client = self._own.get(within_s)
            if client is None:
                raise RuntimeError("no connection to the job's store")
            store = dist.PrefixStore(f"groups/{path}", client)
            store.set_timeout(timedelta(seconds=within_s))
            if not self._all_come(store, members, within_s):
                raise RuntimeError("a member of the group has not come")
            before = sockets()
            group = dist.ProcessGroupGloo(
                store, members.index(self._rank), len(members), timeout=timedelta(seconds=within_s)
            )
            group.set_timeout(timedelta(seconds=REDUCE_S))
        except RuntimeError:  # a member did not come, or went away: gloo and the store have no narrower type
            with self._lock:
                self._broken.add(members)
            self._look_at_store()
            return None
        new = [fd for fd, _ in sockets() - before]
        with self._lock:
            self._made[members] = group
            self._transit[members] = in_ring(members, self._rank, new, self._read)
        return group

    def _all_come(self, store: Any, members: Members, within_s: float) -> bool:
        """Whether all members are about to make the group; waits for them in Python, where it can be told to end."""
        store.set(f"here/{self._rank}", "")
        wanted, until_s = [f"here/{member}" for member in members], time.monotonic() + within_s
        while not store.check(wanted):
            if self._over.wait(MEET_EVERY_S) or time.monotonic() > until_s:
                return False
        return True

    def _look_at_store(self) -> None:
        """A store that is gone stays so: clients do not connect again."""
        try:
            self._store.check(["there"])
        except RuntimeError as error:
            self._on_hopeless(f"the job's store is gone, and ranks that are to reduce don't find each other: {error}")

    def _issue(self, group: Any, members: Members, tensor: torch.Tensor, done: Done) -> None:
        which = id(group)

        def finished(future: Any) -> None:
            try:
                future.wait()
            except RuntimeError:  # see above
                with self._lock:
                    if id(self._made.get(members)) == which:
                        self._give_up(members)
                done(False)
            else:
                done(True)
            finally:
                self._count(-1)

        with self._lock:
            self._busy += 1
            if members in self._transit:
                self._transit[members].reduced(tensor.nbytes)
        try:
            future = group.allreduce([tensor]).get_future()
        except RuntimeError:
            self.abandon(members)
            self._count(-1)
            done(False)
            return
        future.add_done_callback(finished)

    def _count(self, more: int) -> None:
        with self._lock:
            self._busy += more

    def _give_up(self, members: Members) -> None:
        self._broken.add(members)
        self._transit.pop(members, None)
        last = [self._made.pop(members, None)]
        if last[0] is not None:
            self._busy += 1
            threading.Thread(target=self._destroy, args=(last,), name="starprof-groups-end", daemon=True).start()

    def _destroy(self, last: list[Any]) -> None:
        """See the module. Whoever else is just using it lets go of it first; who never does keeps it."""
        with contextlib.suppress(RuntimeError):  # it has failed already
            last[0].abort()
        while sys.getrefcount(last[0]) > ONLY_OURS:
            time.sleep(LOOK_EVERY_S)
        last.clear()
        self._count(-1)
