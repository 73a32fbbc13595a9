"""Meetings: all ranks leave the rounds for a moment, and go on from one version.

Ranks pause at the end of an epoch of their data, or before a collective of the user's own. Nobody waits for a rank that
has paused: from the first pause on the policy decides nothing any more. Once all have paused, the meeting is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from starprof.sync.protocol.messages import Gathered, Meet, Pause, ToRank


class Meetings:
    """The meeting under way, if any, and the end of the last one.

    Attributes:
        number: of meetings that are over.
        end: of the last of them.
    """

    def __init__(self, tell: Callable[[int, ToRank], None], tell_all: Callable[[ToRank], None]) -> None:
        """Begin before the first meeting.

        Args:
            tell: how to speak to a rank.
            tell_all: how to speak to all.
        """
        self._tell = tell
        self._tell_all = tell_all
        self.number = 0
        self.end: Gathered | None = None
        self._there: set[int] = set()
        self._limit: int | None = None

    @property
    def under_way(self) -> bool:
        """Whether a rank has paused, and not all have; it may be lost since."""
        return self._limit is not None

    @property
    def met_at(self) -> int:
        """Version at which the last meeting ended."""
        return self.end.version if self.end is not None else 0

    def paused(self, message: Pause, epoch: int) -> bool:
        """A rank has paused; whether it is the first."""
        if message.meeting <= self.number:
            self.tell_end(message.rank, epoch)  # it has not heard of the end, or comes late
            return False
        before, self._limit = self._limit, message.index if self._limit is None else min(self._limit, message.index)
        self._there.add(message.rank)
        if self._limit != before:
            self._tell_all(Meet(epoch, self.number + 1, self._limit))
        return before is None

    def tell_again(self, rank: int, epoch: int) -> None:
        """A rank may not have heard that others have paused."""
        if self._limit is not None:
            self._tell(rank, Meet(epoch, self.number + 1, self._limit))

    def tell_end(self, rank: int, epoch: int) -> None:
        """A rank has not heard how the last meeting ended."""
        if self.end is not None:
            self._tell(rank, replace(self.end, epoch=epoch))

    def without(self, rank: int) -> None:
        """A rank is lost or has left: it does not stand there any more."""
        self._there.discard(rank)

    def all_there(self, live: Collection[int]) -> bool:
        """Whether everybody who still trains has paused."""
        return self.under_way and bool(live) and self._there >= set(live)

    def over(self, end: Gathered) -> None:
        """All go on from here; they are told."""
        self.number, self.end = end.meeting, end
        self._there.clear()
        self._limit = None
        self._tell_all(end)

    def take_over(self, number: int, end: Gathered | None) -> None:
        """Go on after the meetings that another coordinator has led."""
        self.number, self.end = number, end
