"""Reductions among any set of ranks: raw gloo groups, made at a set's first reduction and kept.

`torch.distributed.new_group` needs all ranks, or hangs for overlapping sets; a raw group over a prefix of the job's
store needs its members only. Members make and use their groups in the order of rounds, so they never wait for each
other in a circle. A group in which anything failed is never used again: its sockets may hold parts of what failed.

A group that is destroyed waits for its own threads, and ends the process when it is one of them that destroys it. So
what those threads call holds no group, and groups are given up in a thread that has nothing else to do.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

MAKE_S = 5.0
"""Time in which all members must have come to make a group at the first attempt; doubles with every further one."""
MAX_MAKE_S = 60.0
REDUCE_S = 30.0
"""Time after which a reduction that does not move on has failed; a lost member is told of by the coordinator before."""

ONLY_OURS = 2
"""References that Python counts of an object that one list holds, and the call that asks."""
LOOK_EVERY_S = 0.05

Members = tuple[int, ...]
Done = Callable[[bool], None]


class Groups:
    """All groups that one rank is a member of; one thread makes them."""

    def __init__(self, store: Any, rank: int) -> None:
        """Begin with none.

        Args:
            store: the job's; a copy of its client is used, since one that waits keeps others waiting.
            rank: of this process.
        """
        self._store = dist.PrefixStore("starprof/groups", own_client(store))
        self._rank = rank
        self._made: dict[Members, Any] = {}
        self._broken: set[Members] = set()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Members, str, int, torch.Tensor, Done] | None] = queue.SimpleQueue()
        self._queued = 0
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
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_all, name="starprof-groups", daemon=True)
            self._thread.start()
        self._jobs.put((members, name, attempt, tensor, done))

    def abandon(self, members: Members) -> None:
        """A member is lost: whatever runs among them fails now."""
        with self._lock:
            self._give_up(members)

    def close(self) -> None:
        """End the thread and all groups."""
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
            else:
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
        store = dist.PrefixStore(path, self._store)
        try:
            store.set_timeout(timedelta(seconds=within_s))
            group = dist.ProcessGroupGloo(
                store, members.index(self._rank), len(members), timeout=timedelta(seconds=within_s)
            )
            group.set_timeout(timedelta(seconds=REDUCE_S))
        except RuntimeError:  # a member did not come, or went away: gloo and the store have no narrower type
            with self._lock:
                self._broken.add(members)
            return None
        with self._lock:
            self._made[members] = group
        return group

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

        try:
            future = group.allreduce([tensor]).get_future()
        except RuntimeError:
            self.abandon(members)
            done(False)
            return
        future.add_done_callback(finished)

    def _give_up(self, members: Members) -> None:
        self._broken.add(members)
        last = [self._made.pop(members, None)]
        if last[0] is not None:
            threading.Thread(target=_destroy, args=(last,), name="starprof-groups-end", daemon=True).start()


def _destroy(last: list[Any]) -> None:
    """See the module. Whoever else is just using it lets go of it first; who never does keeps it."""
    with contextlib.suppress(RuntimeError):  # it has failed already
        last[0].abort()
    while sys.getrefcount(last[0]) > ONLY_OURS:
        time.sleep(LOOK_EVERY_S)
    last.clear()


def own_client(store: Any) -> Any:
    """A client of its own of the same store, where it can be had."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        return store
