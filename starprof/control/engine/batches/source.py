"""What a loop reads its batches from: how many of them make an iteration, and how many it has still to pass over.

A loop is only seen from its fetches and its synchronisations. What is fetched equally often between any two of them is
a source of the training loop; an evaluation's loader, read from now and then, is none.
"""

from __future__ import annotations

import weakref
from enum import Enum
from typing import Any

NOBODY = 0
"""In place of a thread's number: nobody trains here."""
STEADY = 3
"""Equal intervals in a row after which a source is one of the training loop's."""
MOST_STEADY = 96
"""The same for one whose intervals have varied before: it doubles each time, up to this."""


class Tail(Enum):
    """What a loop that accumulates gradients does with the last batches of an epoch, if they fill no iteration."""

    FLUSH = "makes an iteration of them"
    RESTART = "counts from 0 in the next epoch"
    CROSS = "fills the iteration up in the next epoch"


class Pass:
    """One pass over a source: what an iterator goes through once.

    Attributes:
        source: what it goes over.
        trained: the ranks have synchronised on batches of it. Before, it may be a look at the data, or an evaluation
            on them, and nothing is passed over.
        ended: it came to its end.
        dropped: its iterator has begun another one.
    """

    __slots__ = ("_iterator", "dropped", "ended", "source", "trained")

    def __init__(self, source: Source, iterator: Any) -> None:
        self.source = source
        self.trained = False
        self.ended = False
        self.dropped = False
        self._iterator = weakref.ref(iterator)

    @property
    def alive(self) -> bool:
        """Whether somebody may still read from it."""
        return not (self.ended or self.dropped) and self._iterator() is not None


class Source:
    """A loader, or `starprof.steps`.

    Attributes:
        per_sync: its batches per synchronisation, 0 = not known.
        debt: batches that are to be passed over, before the next one is fetched in a pass that is trained on.
        fetched: batches fetched since the last synchronisation, in the current pass.
        current: the pass that the loop is in.
        newest: the pass that was begun last.
        candidate: another pass that was read from, `others` times, while that one was not over.
        at_sync: a synchronisation has found the loop in the middle of it.
        varied: (batches per synchronisation, and then), when they last changed.
        tail: what happens at the end of its epochs.
        layout: how it loads, see `passing.layout`.
        inner: sources that are read from while this one is.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_boundary",
        "_boundary_before",
        "_kept",
        "_kept_after",
        "_needed",
        "_odd",
        "_owner",
        "_streak",
        "at_sync",
        "candidate",
        "current",
        "debt",
        "fetched",
        "inner",
        "layout",
        "newest",
        "others",
        "per_sync",
        "tail",
        "varied",
    )

    def __init__(self, owner: Any) -> None:
        """A source that lives as long as its loader, `owner`."""
        self._owner = weakref.ref(owner)
        self.per_sync = 0
        self.debt = 0
        self.fetched = 0
        self.others = 0
        self.current: Pass | None = None
        self.newest: Pass | None = None
        self.candidate: Pass | None = None
        self.at_sync = False
        self.varied: tuple[int, int] | None = None
        self.tail = Tail.RESTART
        self.layout: tuple[int, int] | None = None
        self.inner: set[Source] = set()
        # What remains of the debt in passes that were begun after this one, None = all.
        self._kept: int | None = None
        self._kept_after: Pass | None = None
        self._streak = 0
        self._needed = STEADY
        self._odd = 0
        # In this interval a pass has begun or ended; batches fetched from the one that ended.
        self._boundary = False
        self._boundary_before = False
        self._before = 0

    @property
    def steady(self) -> bool:
        """Whether as many batches were fetched in each of the last intervals."""
        return self._streak >= self._needed

    @property
    def outstanding(self) -> int:
        """Iterations that are still to be passed over, a begun one included."""
        debt = self._beyond_pass()
        return -(-debt // self.per_sync) if debt else 0

    def owe(self, iterations: int) -> None:
        """So many iterations are to be passed over, no more and no less."""
        self.debt = iterations * self.per_sync
        self._kept = None

    def owe_more(self, iterations: int) -> None:
        """So many iterations more are to be passed over."""
        batches = iterations * self.per_sync
        self.debt += batches
        if self._kept is not None:
            self._kept += batches

    def keep(self, iterations: int) -> None:
        """Another source of the loop has ended, with that left over.

        The rest is passed over only if the loop goes on with the pass that it has already begun, or looks whether that
        ends as well.
        """
        self._kept = iterations * self.per_sync
        self._kept_after = self.newest

    def _beyond_pass(self) -> int:
        return self.debt if self._kept is None else min(self.debt, self._kept)

    def belongs_to(self, owner: Any) -> bool:
        """Whether it is this loader's."""
        return self._owner() is owner

    @property
    def gone(self) -> bool:
        """Whether nobody reads from it any more. In `for batch in DataLoader(...)` the iterator outlives the loader."""
        passes = [visit for visit in (self.current, self.newest) if visit is not None]
        return self._owner() is None and not any(visit.alive for visit in passes)

    def begin(self, visit: Pass) -> None:
        """The loop has turned to this pass."""
        self.current = visit
        self.candidate = None
        self.fetched = self.others = 0
        if visit is not self._kept_after:
            self.debt, self._kept = self._beyond_pass(), None
        self._boundary = True

    def end(self) -> None:
        """The current pass is over. What is left of the debt is rounded to what the loop makes of an epoch's tail."""
        if self._odd and not self.fetched:
            self.tail = Tail.FLUSH
            self._odd = 0
        self._before += self.fetched
        self.fetched = 0
        self._boundary = True
        self.debt, self._kept = self._beyond_pass(), None
        begun = self.debt % self.per_sync if self.per_sync else 0
        if begun and self.tail is Tail.FLUSH:
            self.debt -= begun
        elif begun and self.tail is Tail.RESTART:
            self.debt += self.per_sync - begun

    def synchronised(self) -> None:
        """An interval is over: learn from it."""
        count, before, boundary = self.fetched, self._before, self._boundary
        if count and self.current is not None and self.current.alive:
            self.at_sync = self.current.trained = True
        again, self._boundary_before = self._boundary_before, boundary
        self.fetched = self.others = self._before = 0
        self._boundary = False
        if boundary:
            self._learn_at_boundary(before, count, again)
        elif count and count == self.per_sync:
            if self._odd:
                self._vary(self._odd, count)
            else:
                self._streak += 1
        elif not count:
            self._streak = 0
        elif self.steady and count < self.per_sync and not self._odd:
            # The epoch may be over: then this was its tail.
            self._odd = count
        else:
            self._vary(count, count)

    def _learn_at_boundary(self, before: int, count: int, again: bool) -> None:
        """Loops may fetch one batch ahead, so an epoch's first and last interval prove something, disprove nothing.

        A pass that begins in every interval proves nothing either: it is a look at other data after each step.
        """
        if self.steady:
            if 0 < before < self.per_sync:
                if count == self.per_sync:
                    self.tail = Tail.RESTART
                elif before + count == self.per_sync:
                    self.tail = Tail.CROSS
        elif count and not before:
            if count != self.per_sync:
                self.per_sync, self._streak = count, 1
            elif not again:
                self._streak += 1

    def _vary(self, unlike: int, now: int) -> None:
        """There was an interval unlike the others: begin to learn again, from what is fetched now."""
        if self.steady:
            self._needed = min(2 * self._needed, MOST_STEADY)
            self.varied = self.per_sync, unlike
        self._odd = 0
        self.per_sync, self._streak = now, 1
