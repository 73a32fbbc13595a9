"""What a rank keeps in mind of its own: the gradients that it has handed in, and the meeting that it stands at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from starprof.sync.policies import Gradient
from starprof.sync.protocol.log import Log
from starprof.sync.protocol.messages import Close, Gathered, Pause


@dataclass(slots=True)
class OwnGradients:
    """Those of one rank.

    Attributes:
        rank: whose.
        number: of the next one.
        open: whose use or end it has heard nothing of, in order.
        void_before: gradients before this number went with a state that was void.
        iterations: of the loop with the last one; None: the engine doesn't say.
    """

    rank: int
    number: int = 0
    open: list[Gradient] = field(default_factory=list)
    void_before: int = 0
    iterations: int | None = None

    def next(self, version: int, samples: int, iterations: int | None, steps: int) -> Gradient:
        """One more, computed on parameters of this version."""
        gradient = Gradient(self.rank, self.number, version, samples, steps)
        self.number += 1
        self.iterations = iterations
        self.open.append(gradient)
        return gradient

    def void(self) -> None:
        """The state that they were computed on is gone, and they with it."""
        self.open = []
        self.void_before = self.number

    def in_void(self, close: Close) -> bool:
        """Whether a round has one in it that is gone."""
        return any(g.worker == self.rank and g.number < self.void_before for g in close.gradients)

    def used(self, close: Close) -> bool:
        """A round is made; whether it is one that may release the rank: with its last gradient, if any is open."""
        used = {g.number for g in close.gradients if g.worker == self.rank}
        last = self.open[-1].number if self.open else None
        self.open = [g for g in self.open if g.number not in used]
        return last is None or last in used

    def dropped(self, number: int) -> None:
        """One of them is thrown away."""
        self.open = [g for g in self.open if g.number != number]


@dataclass(slots=True)
class MeetingPoint:
    """Where a rank stands, if it does.

    Attributes:
        meetings: that are behind it.
        paused: what it has said of itself when it last paused.
        gathered: the end of the newest meeting that it has heard of.
    """

    meetings: int = 0
    paused: Pause | None = None
    gathered: Gathered | None = None

    @property
    def end(self) -> Gathered | None:
        """The end of the meeting that it stands at, or comes to next; None: not heard of."""
        return self.gathered if self.gathered is not None and self.gathered.meeting > self.meetings else None

    @property
    def leaves(self) -> bool:
        """Whether it may go on from where it stands, as far as the meeting's end is known."""
        before_collective = self.paused is not None and bool(self.paused.place)
        return self.end is not None and not (before_collective and self.end.again is None)

    def pauses_again(self, held: int) -> Pause:
        """It stands where it did, and holds other rounds or waits for another meeting."""
        assert self.paused is not None
        self.paused = replace(self.paused, meeting=self.meetings + 1, held=held)
        return self.paused

    def over(self, gathered: Gathered) -> None:
        """A meeting is over: its end says so, or the word on any later round, which says less."""
        known = self.gathered
        newest = known.meeting if known is not None else 0
        surer = known is not None and gathered.meeting == newest and known.again is None
        if gathered.meeting > newest or surer:
            self.gathered = gathered

    def may_apply(self, log: Log, version: int) -> int:
        """Up to which version a rank that stands may apply what it holds: no round from after the meeting."""
        end = self.end
        while version < log.held and (
            log.entries[version].close.meeting <= self.meetings if end is None else version < end.version
        ):
            version += 1
        return version
