"""Meetings: all ranks leave the rounds for a moment, and go on from one version.

Ranks pause at the end of an epoch of their data, or before a collective of the user's own. Nobody waits for a rank that
has paused: from the first pause on the policy decides nothing any more. Once all have paused, the meeting is over.

Ranks may have come to different places: one has left its loop early, or counts by itself when it calls a collective.
Then those at the end of an epoch go on, and those before a collective stand aside: rounds go on without them, until the
others come to a collective too. Where ranks have called the same collective at their own count, and have passed over
different numbers of iterations before, the others pass over as many: then both their counts and their data are even.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from starprof.sync.protocol.membership import RankState
from starprof.sync.protocol.messages import Gathered, Meet, Pause, ToRank

PASSED_BY_S = 60.0
"""So long half of the ranks stand before a collective that others have passed by; then the job ends with an error."""


ADVICE = (
    "the loop calls collectives by a count of its own, which is another one on a rank that passes over iterations; "
    "take the count from starprof.steps"
)


class Meetings:
    """The meeting under way, if any, and the end of the last one.

    Attributes:
        number: of meetings that are over.
        end: of the last of them.
        aside: ranks that stand before a collective while rounds go on.
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
        self.aside: set[int] = set()
        self._there: dict[int, Pause] = {}
        self._since_s: dict[int, float] = {}
        self._limit: int | None = None

    @property
    def under_way(self) -> bool:
        """Whether a rank has paused, and not all have; it may be lost since."""
        return self._limit is not None

    @property
    def met_at(self) -> int:
        """Version at which the last meeting ended."""
        return self.end.version if self.end is not None else 0

    def paused(self, message: Pause, epoch: int, now_s: float) -> bool:
        """A rank has paused; whether it is the first."""
        if message.meeting <= self.number:
            self.tell_end(message.rank, epoch)  # it has not heard of the end, or comes late
            return False
        self._there[message.rank] = message
        if message.place:
            self._since_s.setdefault(message.rank, now_s)
        if self.end is not None and message.rank in (self.end.again or ()):
            self.aside.add(message.rank)
            return False
        before, self._limit = self._limit, message.index if self._limit is None else min(self._limit, message.index)
        if self._limit != before:
            self._tell_all(Meet(epoch, self.number + 1, self._limit))
        return before is None

    def stands(self, rank: int) -> bool:
        """Whether a rank has paused at the one under way."""
        return rank in self._there

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
        self._there.pop(rank, None)
        self._since_s.pop(rank, None)
        self.aside.discard(rank)

    def all_there(self, live: Collection[int]) -> bool:
        """Whether everybody who still trains has paused."""
        return bool(live) and self._there.keys() >= set(live)

    @property
    def apart(self) -> tuple[int, ...]:
        """Ranks before a collective, where others are at the end of an epoch."""
        before = tuple(sorted(rank for rank, pause in self._there.items() if pause.place))
        return before if len(before) < len(self._there) else ()

    @property
    def even(self) -> bool:
        """Whether all stand at the same place, so that native steps can follow."""
        places = {bool(pause.place) for pause in self._there.values()}
        return places == {False} or (len(places) == 1 and len({pause.index for pause in self._there.values()}) == 1)

    @property
    def furthest(self) -> int | None:
        """Loop iterations behind the one that is furthest, where all stand before a collective."""
        pauses = self._there.values()
        return max(pause.index for pause in pauses) if all(pause.place for pause in pauses) else None

    def out_of_step(self) -> str:
        """Why ranks that call collectives by counts of their own can't go on together; "" if they can."""
        before = {rank: pause.place for rank, pause in sorted(self._there.items()) if pause.place}
        rest = [rank for rank in self._there if rank not in before]
        others = [rank for rank, place in before.items() if place != next(iter(before.values()))]
        if not before or (not others and (not rest or 2 * len(before) < len(self._there))):
            return ""
        first, *_ = before
        where = f"rank {others[0]} before {before[others[0]]}" if others else f"rank {rest[0]} at the end of its data"
        return f"rank {first} stands before {before[first]}, and {where}: {ADVICE}"

    def passed_by(self, ranks: Mapping[int, RankState], live: Collection[int], now_s: float) -> str:
        """Why the ranks will hardly come together any more; "" if they may."""
        standing = [r for r in live if r in self._since_s and now_s - self._since_s[r] > PASSED_BY_S]
        if not standing or 2 * len(standing) < len(live):
            return ""
        first = self._there[standing[0]]
        gone = [r for r in live if r not in self._since_s and (ranks[r].iterations or 0) > first.index + 1]
        if not gone:
            return ""
        return (
            f"rank {standing[0]} has stood before {first.place} for {PASSED_BY_S:.0f} s, and rank {gone[0]} has passed "
            f"by: {ADVICE}"
        )

    def over(self, end: Gathered) -> None:
        """All go on from here, but for those who pause again; they are told."""
        self.number, self.end = end.meeting, end
        self._there.clear()
        self.aside.clear()
        again = end.again or ()
        self._since_s = {rank: since_s for rank, since_s in self._since_s.items() if rank in again}
        self._limit = None
        self._tell_all(end)

    def take_over(self, number: int, end: Gathered | None) -> None:
        """Go on after the meetings that another coordinator has led."""
        self.number, self.end = number, end
