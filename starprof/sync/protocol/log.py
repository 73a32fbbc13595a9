"""What one rank knows of the rounds: which are closed, whose result it holds, which it has refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from starprof.sync.protocol.messages import Close

MAX_WANTED = 1_000
"""Rounds whose results others wait for; more are no job's."""


@dataclass(slots=True)
class Entry:
    """What is known of a round."""

    close: Close
    held: bool = False


@dataclass(slots=True)
class Log:
    """Rounds from some version on.

    A result counts only once the coordinator has said what its round is made of. Before, it may be of a round that
    nobody but its sender has heard of, which a new coordinator then makes of other gradients.

    Attributes:
        held: the results of all rounds before this one are here.
        entries: closed rounds.
        refused: by round, the newest attempt whose result is not taken any more.
        early: results that came before the word on their round.
        wanted: who has asked for results that are not here yet.
    """

    held: int
    entries: dict[int, Entry] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    early: dict[int, Close] = field(default_factory=dict)
    wanted: dict[int, set[int]] = field(default_factory=dict)
    floor: int = 0

    @property
    def closes(self) -> tuple[Close, ...]:
        """The newest word on each round that is remembered."""
        return tuple(self.entries[number].close for number in sorted(self.entries))

    @property
    def also_held(self) -> tuple[int, ...]:
        """Rounds from `held` on whose result is here."""
        return tuple(number for number in sorted(self.entries) if number >= self.held and self.entries[number].held)

    def holds(self, number: int) -> bool:
        """Whether the result of a round is here."""
        return number < self.held or (number in self.entries and self.entries[number].held)

    def refuses(self, close: Close) -> bool:
        """Whether the result of this try is not taken any more."""
        return close.attempt <= self.refused.get(close.round, -1)

    def kept(self, number: int) -> Close | None:
        """The round whose result is kept here; None: it is not."""
        entry = self.entries.get(number)
        return entry.close if entry is not None and entry.held else self.early.get(number)

    def advance(self, held: int = 0) -> None:
        """All rounds before `held` are over, and whatever follows on them without a hole."""
        self.held = max(self.held, held)
        while self.holds(self.held):
            self.held += 1
        self.early = {number: close for number, close in self.early.items() if number >= self.held}

    def trim(self, floor: int) -> None:
        """Forget rounds before `floor`: nobody asks for them any more."""
        if floor <= self.floor:
            return
        self.floor = floor
        for number in [number for number in self.entries if number < floor]:
            del self.entries[number]
            self.refused.pop(number, None)
        self.wanted = {number: ranks for number, ranks in self.wanted.items() if number >= floor}

    def ask(self, number: int, rank: int) -> Close | None:
        """Another rank wants a round's result: it is here, or is to be sent when it is (`asked_for`)."""
        close = self.kept(number)
        if close is None and number >= self.held and (number in self.wanted or len(self.wanted) < MAX_WANTED):
            self.wanted.setdefault(number, set()).add(rank)
        return close

    def asked_for(self, number: int) -> list[int]:
        """Who has asked for a result that is here now."""
        return sorted(self.wanted.pop(number, ()))

    def closed(self, close: Close) -> bool:
        """The coordinator has closed a round, or has it tried again; whether its result is still missing here."""
        self.entries[close.round] = entry = Entry(close)
        early = self.early.pop(close.round, None)
        if early is not None and made_of(early) == made_of(close) and not self.refuses(close):
            entry.held = True
        elif early is not None and early.attempt > close.attempt:
            self.early[close.round] = early
        entry.held = entry.held or not close.gradients
        self.advance()
        return not entry.held

    def take(self, close: Close) -> bool:
        """A result has come; whether it is wanted and was missing."""
        number = close.round
        if self.holds(number) or self.refuses(close):
            return False
        known = self.entries.get(number)
        if known is None or known.close.attempt < close.attempt:
            self.early[number] = close
            return False
        if made_of(known.close) != made_of(close):
            return False
        known.held = True
        self.advance()
        return True


def made_of(close: Close) -> tuple[object, ...]:
    """What tells one try at a round from another one, also under the same number."""
    return close.attempt, close.gradients, close.weights
