"""What the ranks and their coordinator say to each other. Nothing here carries a tensor.

A *round* is one entry of the log of updates that every rank applies in the same order: round k makes version k + 1 of
the parameters out of version k. An *attempt* is one try to reduce a round's gradients among those who contribute to it;
another one follows when a contributor is lost on the way. An *epoch* is the reign of one coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

from starprof.sync.policies import Gradient


@dataclass(frozen=True, slots=True)
class Close:
    """Coordinator to all: round `round` is made of these gradients.

    Attributes:
        epoch: of the coordinator that says so.
        round: number of the round, the version it is applied to.
        attempt: counts the tries to reduce it, from 0.
        gradients: that go in; none: the round changes nothing, all who contributed are lost.
        weights: the factor of each.
        release: ranks that go on once they have applied the round.
        native: all ranks are equally far, and go on with native steps after it.
        floor: everybody holds the rounds before this one.
        serial: counts what coordinators have closed, across epochs.
        lost: ranks that are taken for lost, whose state is void.
        meeting: meetings that came before it.
        met_at: version at which the last of them ended.
    """

    epoch: int
    round: int
    attempt: int
    gradients: tuple[Gradient, ...]
    weights: tuple[float, ...]
    release: tuple[int, ...] = ()
    native: bool = False
    floor: int = 0
    serial: int = 0
    lost: tuple[int, ...] = ()
    meeting: int = 0
    met_at: int = 0

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that reduce it, each once, in order."""
        return tuple(sorted({g.worker for g in self.gradients}))

    @property
    def leader(self) -> int | None:
        """The contributor that sends the result to everybody else."""
        return self.members[0] if self.members else None


@dataclass(frozen=True, slots=True)
class Go:
    """Coordinator to a rank: gradient `number` is taken care of; go on from version `version` or a newer one.

    Attributes:
        epoch: of the coordinator that says so.
        number: of the gradient.
        version: all rounds before it are to be applied first.
        kept: it will be part of a later round; else it is dropped.
    """

    epoch: int
    number: int
    version: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Query:
    """Coordinator to all, when a contributor is lost: do you hold this round's result? Who says no never takes it."""

    epoch: int
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Take:
    """Coordinator to a rank: get this round's result from `holder`."""

    epoch: int
    round: int
    attempt: int
    holder: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """Coordinator to a rank it has heard of: you belong to this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Coordinator to a rank that was taken for lost: your state is void; get that of `holder`, `version` or newer.

    Attributes:
        epoch: of the coordinator that says so.
        version: that the state must have, or a newer one.
        holder: who gives it.
        loss: names the loss that is healed by it: a rank can be lost again while it comes back.
    """

    epoch: int
    version: int
    holder: int
    loss: int = 0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Coordinator to all: rounds begin soon; say how far you are and begin no further native step."""

    epoch: int
    switch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Coordinator to all: native steps end, and rounds begin, with version `version`."""

    epoch: int
    switch: int
    version: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Coordinator to all: go on with native steps; the switch is off."""

    epoch: int
    switch: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Coordinator to all: ranks have left the rounds for a moment and stand at `index`; the others follow.

    Attributes:
        epoch: of the coordinator that says so.
        meeting: counts the meetings, from 1.
        index: loop iterations after which they stand there: batches may be skipped up to it, and no further.
    """

    epoch: int
    meeting: int
    index: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """Coordinator to all: everybody stands there; go on from exactly this version.

    Attributes:
        epoch: of the coordinator that says so.
        meeting: the meeting that is over with it.
        version: all rounds before it are to be applied first, and none from it on.
        native: rounds are over too, native steps follow.
    """

    epoch: int
    meeting: int
    version: int
    native: bool


ToRank = Close | Go | Query | Take | Welcome | Rejoin | Prepare | Commit | Abort | Meet | Gathered


@dataclass(frozen=True, slots=True)
class Pause:
    """Rank to coordinator: its training thread stands, and waits for all the others to do so.

    Said again whenever it has come to hold more rounds, which it applies where it stands.

    Attributes:
        rank: whose.
        meeting: that it waits for.
        index: loop iterations behind it, skipped ones too.
        held: it holds the results of all rounds before this one.
    """

    rank: int
    meeting: int
    index: int
    held: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Rank to coordinator, on every new connection: all that a coordinator needs to know of it.

    Attributes:
        rank: whose.
        epoch: newest it belongs to.
        held: it holds the results of all rounds before this one.
        closes: the newest word on each round that it remembers.
        also_held: rounds from `held` on whose result it holds too.
        handed_in: gradients whose use or end it has heard nothing of, in order.
        waits: it waits to be released; the last one handed in is what it waits with.
        native: it is in native steps.
        commit: the newest switch to rounds that it was told of.
        done: its training is over.
        serial: of the newest word that it has heard on any round.
        lost: ranks that were taken for lost then.
        number: of its next gradient.
        pulled: it was void, has another rank's state since, and waits to be let in again.
        loss: that this has healed, from `Rejoin`.
        void: it is waiting for another rank's state.
        void_before: its gradients before this number went with its former state.
        meetings: that are behind it.
        paused: it stands and waits for the others.
        gathered: the end of the newest meeting that it was told of.
        iterations: of its loop when it handed in its last gradient; None: its engine doesn't say.
    """

    rank: int
    epoch: int
    held: int
    closes: tuple[Close, ...] = ()
    also_held: tuple[int, ...] = ()
    handed_in: tuple[Gradient, ...] = ()
    waits: bool = False
    native: bool = True
    commit: Commit | None = None
    done: bool = False
    serial: int = 0
    lost: tuple[int, ...] = ()
    number: int = 0
    pulled: bool = False
    loss: int = 0
    void: bool = False
    void_before: int = 0
    meetings: int = 0
    paused: Pause | None = None
    gathered: Gathered | None = None
    iterations: int | None = None

    @property
    def gives(self) -> frozenset[int]:
        """Rounds whose result it can hand to others."""
        return frozenset(self.also_held).union(c.round for c in self.closes if c.round < self.held)


@dataclass(frozen=True, slots=True)
class Arrive:
    """Rank to coordinator: this gradient is there, and all rounds before `held` are held.

    Attributes:
        rank: whose.
        gradient: which one.
        held: it holds the results of all rounds before this one.
        iterations: of its loop with the one of this gradient, skipped ones too; None: its engine doesn't say. Native
            steps follow on a round only where all are equal.
    """

    rank: int
    gradient: Gradient
    held: int
    iterations: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rank to coordinator: whether it holds the result of a round; a no is for ever.

    Attributes:
        rank: who answers.
        round: that was asked for.
        attempt: that was asked for.
        holds: it needs the result no more.
        gives: it can hand it to others; not where its parameters came from another rank with the round in them.
    """

    rank: int
    round: int
    attempt: int
    holds: bool
    gives: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Rank to coordinator: this try to reduce a round has failed here; it will not take its result any more."""

    rank: int
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rank to coordinator: it has begun no native step from `version` on, and won't before it hears the outcome."""

    rank: int
    switch: int
    version: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Rank to coordinator: its training is over."""

    rank: int


ToCoordinator = Hello | Arrive | Answer | Failed | Prepared | Pause | Leave
