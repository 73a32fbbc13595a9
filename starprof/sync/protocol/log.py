"""What one rank knows of the rounds: which are closed, whose result it holds, which it has refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from starprof.sync.protocol.messages import Close


@dataclass(slots=True)
class Entry:
    """What is known of a round."""

    close: Close
    held: bool = False


@dataclass(slots=True)
class Log:
    """Rounds from some version on: closed, reduced, refused."""

    held: int
    entries: dict[int, Entry] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)

    def holds(self, number: int) -> bool:
        """Whether the result of a round is here."""
        return number < self.held or (number in self.entries and self.entries[number].held)

    def advance(self, held: int = 0) -> None:
        """All rounds before `held` are over, and whatever follows on them without a hole."""
        self.held = max(self.held, held)
        while self.holds(self.held):
            self.held += 1

    def trim(self, floor: int) -> None:
        """Forget rounds before `floor`: nobody asks for them any more."""
        for number in [number for number in self.entries if number < floor]:
            del self.entries[number]
            self.refused.pop(number, None)

    def take(self, close: Close) -> bool:
        """A result has come; whether it is wanted and was missing. It may come before the word on its round."""
        number = close.round
        if self.holds(number) or close.attempt <= self.refused.get(number, -1):
            return False
        known = self.entries.get(number)
        if known is not None and known.close.attempt > close.attempt:
            return False
        self.entries[number] = Entry(close, held=True)
        self.advance()
        return True
