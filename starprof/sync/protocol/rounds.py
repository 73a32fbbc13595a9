"""Closed rounds whose result not everybody is known to hold, and how a result that went missing is found again."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Answer, Close, Gathered, Query, Take, ToRank

Word = TypeVar("Word", Close, Gathered)


@dataclass(slots=True)
class _Round:
    """A closed round.

    Attributes:
        close: the newest word on it.
        answers: whether it holds and can give its result, by rank while everybody is being asked.
        giver: who was to give it to others when they had answered.
        leaderless: whoever was to hand it round has been lost since.
    """

    close: Close
    answers: dict[int, tuple[bool, bool]] | None = None
    giver: int | None = None
    leaderless: bool = False


class OpenRounds:
    """All of them, in order.

    A round's result may be applied by whoever holds it. When a contributor is lost, or a reduction fails, all ranks are
    asked. Who says no never takes it from that attempt. If one holds it, all get it from there, or that rank's whole
    state where the result is only part of it; if none does, those of its contributors that are left reduce again.

    Attributes:
        serial: of the newest word on what is decided, from this coordinator or one before it.
        lost: ranks that are taken for lost; all that is decided tells them, for the next coordinator to know.
        void_before: by rank, the number before which its gradients are gone with a state that was void.
        unhealable: ranks that miss a result which is only part of others' parameters any more: they need those.
    """

    def __init__(
        self, tell: Callable[[int, ToRank], None], here: Callable[[], list[int]], stay: Callable[[], None]
    ) -> None:
        """Begin with none.

        Args:
            tell: how to speak to a rank.
            here: names the ranks that are not lost.
            stay: called when a round after which native steps were to follow has lost a contributor, and they can't.
        """
        self._tell = tell
        self._here = here
        self._stay = stay
        self.serial = 0
        self.lost: tuple[int, ...] = ()
        self.void_before: dict[int, int] = {}
        self.unhealable: set[int] = set()
        self._rounds: dict[int, _Round] = {}
        self._floor = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rounds)

    def add(self, close: Close) -> None:
        """A round is closed: all are told."""
        self._rounds[close.round] = _Round(self.numbered(close))
        for rank in self._here():
            self._tell(rank, self._rounds[close.round].close)

    def numbered(self, word: Word) -> Word:
        """The newest word on what is decided."""
        self.serial += 1
        return replace(word, serial=self.serial, lost=self.lost)

    def uses(self, gradient: Gradient) -> bool:
        """Whether one of them is made of this gradient."""
        return any(gradient in waiting.close.gradients for waiting in self._rounds.values())

    def trim(self, floor: int) -> None:
        """Everybody holds the rounds before `floor`."""
        for number in list(self._rounds) if floor > self._floor else ():
            if number >= floor:
                break  # they are in order
            del self._rounds[number]
        self._floor = floor

    def tell_again(self, rank: int, held: int, gives: Container[int]) -> None:
        """A rank that could not hear for a while holds what it says; the rest it hears again, or gets.

        Args:
            rank: which.
            held: it holds all rounds before this one.
            gives: rounds whose result it can hand to others, and holds too.
        """
        for number, waiting in sorted(self._rounds.items()):
            holds = number < held or number in gives
            if number >= held:
                self._tell(rank, waiting.close)
            if waiting.answers is None:
                # What was closed while it was taken for lost it asks for itself: no need to disturb all others.
                if not holds and (rank not in waiting.close.lost or waiting.leaderless):
                    self.recover(number)
            elif holds:
                waiting.answers[rank] = (True, number in gives)
                self._judge(number)
            else:
                # An answer that it gave before was of the state it had then: the one it has now may take the result.
                waiting.answers.pop(rank, None)
                self._tell(rank, Query(waiting.close.epoch, number, waiting.close.attempt))

    def recover_all(self, lost: int) -> None:
        """A rank is lost: whatever it had a part in may be missing somewhere."""
        for number, waiting in sorted(self._rounds.items()):
            waiting.leaderless |= waiting.close.leader == lost
            self._judge(number)
            self.recover(number)

    def without(self, rank: int) -> None:
        """A rank takes part no more, but what it has to send still comes: only what it has to give may be missing."""
        for number, waiting in sorted(self._rounds.items()):
            waiting.leaderless |= waiting.close.leader == rank
            self._judge(number)
            if rank == waiting.giver or rank in waiting.close.members:
                self.recover(number)

    def recover(self, number: int) -> None:
        """Ask everybody who holds a round's result, unless they are being asked already."""
        waiting = self._rounds.get(number)
        if waiting is not None and waiting.answers is None and waiting.close.gradients:
            waiting.answers = {}
            for rank in self._here():
                self._tell(rank, Query(waiting.close.epoch, number, waiting.close.attempt))

    def failed(self, number: int, attempt: int) -> None:
        """A rank could not reduce a round."""
        waiting = self._rounds.get(number)
        if waiting is not None and waiting.close.attempt == attempt:
            self.recover(number)

    def answered(self, answer: Answer) -> None:
        """A rank says whether it holds a round's result."""
        waiting = self._rounds.get(answer.round)
        if waiting is not None and waiting.answers is not None and waiting.close.attempt == answer.attempt:
            waiting.answers[answer.rank] = (answer.holds, answer.gives)
            self._judge(answer.round)

    def _judge(self, number: int) -> None:
        """Once all have answered: hand the result round, or have it reduced again by who is left."""
        waiting, here = self._rounds[number], self._here()
        answers = waiting.answers
        if answers is None or any(rank not in answers for rank in here):
            return
        waiting.answers = None
        missing = [rank for rank in here if not answers[rank][0]]
        holders = [rank for rank in here if answers[rank][0]]
        givers = [rank for rank in here if answers[rank][1]]
        if not holders:
            waiting.leaderless = False
            before, waiting.close = waiting.close, self.numbered(among(waiting.close, set(here), self.void_before))
            if before.native and not waiting.close.native:
                self._stay()
        close = waiting.close
        waiting.giver = givers[0] if givers and missing else None
        for rank in missing:
            if givers:
                self._tell(rank, Take(close.epoch, number, close.attempt, givers[0]))
            elif holders:
                self.unhealable.add(rank)
            else:
                self._tell(rank, close)


def among(close: Close, here: set[int], void_before: Mapping[int, int] | None = None) -> Close:
    """The next attempt at a round, without the gradients of who is or was lost; a mean stays a mean."""
    void = void_before or {}
    kept = [
        (g, w)
        for g, w in zip(close.gradients, close.weights, strict=True)
        if g.worker in here and g.number >= void.get(g.worker, 0)
    ]
    total, whole = sum(w for _, w in kept), sum(close.weights)
    is_mean = abs(whole - 1.0) < 1e-9
    factor = whole / total if is_mean and total else 1.0
    return replace(
        close,
        attempt=close.attempt + 1,
        gradients=tuple(g for g, _ in kept),
        weights=tuple(w * factor for _, w in kept),
        native=close.native and len(kept) == len(close.gradients),
    )
