"""How far a rank may fall behind before nobody keeps what it misses any more: it takes another rank's state instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagLimit:
    """Results of rounds are kept for a rank that is behind, but not without end.

    Attributes:
        rounds: results that are kept in any case.
        iterations: of the training whose results are kept in any case. Where an update is made of one rank's gradient
            (asgd), those of all others come between two of its own, and nobody is late for that.
    """

    rounds: int
    iterations: float = 2.0

    def exceeded(self, rounds: int, iterations: float) -> bool:
        """Whether so many rounds, and iterations of the training, are too many to be made up for."""
        return rounds > self.rounds and iterations > self.iterations


class Lag:
    """How far behind the newest round the older ones are."""

    def __init__(self, limit: LagLimit | None) -> None:
        """Begin before the first round; without a limit nobody is ever too far behind."""
        self.limit = limit
        self._closed = 0
        self._iterations = 0.0
        self._before: dict[int, float] = {}

    def closed(self, number: int, iterations: float, floor: int) -> None:
        """A round is closed, by which the training goes on so far; nobody asks for what is before `floor`."""
        if self.limit is None:
            return
        self._before[number] = self._iterations
        self._iterations += iterations
        self._closed = number + 1
        for old in list(self._before):  # in order: only what is forgotten is looked at
            if old >= floor:
                break
            del self._before[old]

    def exceeded(self, held: int) -> bool:
        """Whether somebody who holds the rounds before `held` only is too far behind."""
        if self.limit is None or self._closed - held <= self.limit.rounds:
            return False
        # Of rounds before the first of ours only the number is known.
        first = next(iter(self._before.values()), self._iterations)
        return self.limit.exceeded(self._closed - held, self._iterations - self._before.get(held, first))
