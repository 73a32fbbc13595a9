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
        held: it holds the results of all rounds before this one; has it left, they are in its state.
        iterations: of its loop, as it said with its last gradient.
        behind: it is taken for lost for being too far behind, not for being silent.
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
    behind: bool = False


class Floor:
    """The lowest of some numbers, one of each rank, kept as they change: nothing is done for each rank each time."""

    def __init__(self) -> None:
        """Begin without any."""
        self.value = 0
        self._of: dict[int, int] = {}
        self._ranks_at: dict[int, int] = {}

    def put(self, rank: int, number: int | None) -> None:
        """A rank's number has changed; None: it counts no more."""
        before = self._of.pop(rank, None)
        if before is not None:
            self._ranks_at[before] -= 1
            if not self._ranks_at[before]:
                del self._ranks_at[before]
        if number is not None:
            self._of[rank] = number
            self._ranks_at[number] = self._ranks_at.get(number, 0) + 1
        if number is not None and number < self.value:
            self.value = number
        elif self.value not in self._ranks_at:
            self.value = min(self._ranks_at, default=self.value)  # what was forgotten stays so

    def lowest(self) -> list[int]:
        """The ranks whose number it is."""
        return [rank for rank, number in self._of.items() if number == self.value]


class Membership:
    """All ranks of a job."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Nobody is connected yet."""
        self.ranks = {rank: RankState() for rank in ranks}
        self._floor = Floor()
        for rank in self.ranks:
            self._floor.put(rank, 0)

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
    def coming(self) -> list[int]:
        """Ranks that train, or will again as soon as they have another rank's state."""
        return [rank for rank, known in self.ranks.items() if not known.left and (known.connected or not known.lost)]

    @property
    def complete(self) -> bool:
        """Whether all train, none lost: native steps need everybody."""
        return len(self.live) == len(self.ranks)

    @property
    def floor(self) -> int:
        """All that train hold the rounds before this one, or don't need them."""
        return self._floor.value

    @property
    def lowest(self) -> list[int]:
        """Ranks that hold no more than that."""
        return self._floor.lowest()

    def holds(self, rank: int, held: int) -> None:
        """A rank holds all rounds before `held`."""
        known = self.ranks[rank]
        if held > known.held and not known.left:
            known.held = held
            self._count(rank)

    def mark(self, rank: int, *, lost: bool, held: int | None = None) -> None:
        """A rank is taken for lost; or takes part again, and holds all rounds before `held`."""
        known = self.ranks[rank]
        known.lost, known.loss, known.behind = lost, None, False
        known.held = known.held if held is None else held
        self._count(rank)

    def leaves(self, rank: int, version: int | None = None) -> None:
        """A rank's training is over; its state stays that of a version, whatever else it comes to hold."""
        known = self.ranks[rank]
        known.left = True
        known.held = known.held if version is None else version
        self._count(rank)

    def keep_for(self, rank: int, version: int | None) -> None:
        """A rank that is taken for lost gets a state of this version or a newer one; None: it does not just now."""
        self._floor.put(rank, version)

    def _count(self, rank: int) -> None:
        known = self.ranks[rank]
        self._floor.put(rank, None if known.lost or known.left else known.held)

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
