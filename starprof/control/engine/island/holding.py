"""Results of rounds in an island: every rank has its part of each, and it counts once all of them have theirs.

The leader counts. What is here and does not count yet waits apart from the results; the leader's word makes it one, or
throws it away. The engine's lock is held in all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starprof.control.engine.exchange import Exchange
from starprof.control.engine.flat import Flat
from starprof.sync.policies import Gradient
from starprof.sync.protocol.actions import Action
from starprof.sync.protocol.messages import Close

Part = tuple[int, int, tuple[Gradient, ...], tuple[float, ...]]
"""Tells one result from another: the round, and what it is made of. Coordinators may close a round more than once."""


def part_of(close: Close) -> Part:
    """Which result a description is of."""
    return close.round, close.attempt, close.gradients, close.weights


@dataclass(slots=True)
class _Here:
    """A part that is here and does not count yet."""

    close: Close
    flat: Flat
    tell: Callable[[], list[Action]]


class ShardExchange(Exchange):
    """One rank's part in all rounds.

    Attributes:
        on_here: called with the description of a result of which this rank has its part now.
    """

    on_here: Callable[[Close], None]

    def __init__(self, *args: Any) -> None:
        """See `Exchange`."""
        super().__init__(*args)
        self._here: dict[Part, _Here] = {}

    def settle(self, close: Close, take: Callable[[Close, Callable[[], list[Action]]], list[Action]]) -> None:
        """All ranks of the island have their part of a result; `take` asks the member whether it is wanted."""
        here = self._here.pop(part_of(close), None)
        if here is not None:
            super()._keep(here.close, here.flat, lambda: take(here.close, here.tell))

    def throw_away(self, close: Close) -> None:
        """A result is not wanted."""
        here = self._here.pop(part_of(close), None)
        if here is not None:
            self.pool.give(here.flat)

    def clear(self, first: int = 0) -> None:
        """See `Exchange`."""
        super().clear(first)
        for here in list(self._here.values()):
            self.throw_away(here.close)

    def drop(self, number: int) -> None:
        """A round's result is not what the round is made of."""
        self._results.drop(number)

    def trim(self, applied: int) -> None:
        """See `Exchange`."""
        super().trim(applied)
        for here in [here for here in self._here.values() if here.close.round < applied]:
            self.throw_away(here.close)

    def ask_again(self, times: int) -> None:
        """See `Exchange`; what is here needs no asking."""
        here = {entry.close.round for entry in self._here.values()}
        waiting = self._expected
        self._expected = {number: close for number, close in waiting.items() if number not in here}
        super().ask_again(times)
        self._expected = waiting

    def _keep(self, close: Close, flat: Flat, tell: Callable[[], list[Action]]) -> None:
        """A part has come: it waits for those of the others."""
        kept = self._member.can_deliver(close.round)
        if part_of(close) in self._here or (kept is not None and part_of(kept) == part_of(close)):
            self.pool.give(flat)
            return
        self._here[part_of(close)] = _Here(close, flat, tell)
        self.on_here(close)


@dataclass(slots=True)
class Count:
    """Which ranks of an island have their part of which result.

    Attributes:
        size: ranks in the island.
    """

    size: int
    _having: dict[Part, set[int]] = field(default_factory=dict)

    def has(self, rank: int, close: Close) -> bool:
        """A rank has its part now; whether all have."""
        having = self._having.setdefault(part_of(close), set())
        having.add(rank)
        if len(having) < self.size:
            return False
        del self._having[part_of(close)]
        return True

    def clear(self) -> None:
        """What they have counts no more."""
        self._having.clear()

    def trim(self, applied: int) -> None:
        """Rounds before `applied` are made."""
        for part in [part for part in self._having if part[0] < applied]:
            del self._having[part]
