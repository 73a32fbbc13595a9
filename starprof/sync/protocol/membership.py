"""Which ranks take part, who may be taken for lost, and what each is known to hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class RankState:
    """What is known of a rank.

    Attributes:
        connected: it can be spoken to.
        lost: it is taken for lost; its state is void until it has another rank's.
        left: its training is over.
        in_rounds: it has been heard of in rounds since the last native step.
        released: number of the gradient it was last released with, the version it goes on from, whether that is kept.
        last_number: of the gradients it has handed in.
        loss: names its being lost, for the state that it is to get; None: it is to be told to get one, or again.
        holder: whose state that is.
        held: it holds the results of all rounds before this one.
        iterations: of its loop, as it said with its last gradient.
    """

    connected: bool = False
    lost: bool = False
    left: bool = False
    in_rounds: bool = False
    released: tuple[int, int, bool] | None = None
    last_number: int = -1
    loss: int | None = None
    holder: int | None = None
    held: int = 0
    iterations: int | None = None

    def holds(self, held: int) -> None:
        """It holds all rounds before `held`."""
        self.held = max(self.held, held)


class Membership:
    """All ranks of a job."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Nobody is connected yet."""
        self.ranks = {rank: RankState() for rank in ranks}

    @property
    def here(self) -> list[int]:
        """Ranks that are not lost; those whose training is over still answer and hand out results."""
        return [rank for rank, known in self.ranks.items() if not known.lost]

    @property
    def live(self) -> list[int]:
        """Ranks that are not lost and still train."""
        return [rank for rank in self.here if not self.ranks[rank].left]

    @property
    def lost(self) -> tuple[int, ...]:
        """Ranks that are taken for lost."""
        return tuple(rank for rank, known in self.ranks.items() if known.lost)

    @property
    def complete(self) -> bool:
        """Whether all train, none lost: native steps need everybody."""
        return len(self.live) == len(self.ranks)

    @property
    def floor(self) -> int:
        """All that are not lost hold the rounds before this one."""
        return min((self.ranks[rank].held for rank in self.here), default=0)

    @property
    def in_rounds(self) -> bool:
        """Whether the last native step is over: a rank that has come to rounds has had everybody's part of it."""
        return any(known.in_rounds for known in self.ranks.values())

    def back_to_native(self) -> None:
        """Rounds are over: nobody is in them."""
        for known in self.ranks.values():
            known.in_rounds = False

    def can_spare(self, rank: int) -> bool:
        """Whether the others may go on without a rank that is only silent.

        They may while those that are reached are more than half, or half with the lowest rank; never in native steps.
        """
        if self.ranks[rank].lost or self.ranks[rank].left or not self.in_rounds:
            return False
        everybody = self.live
        reached = [r for r in everybody if r != rank and self.ranks[r].connected]
        return 2 * len(reached) > len(everybody) or (2 * len(reached) == len(everybody) and everybody[0] in reached)
