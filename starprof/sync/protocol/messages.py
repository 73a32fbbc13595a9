"""What the ranks and their coordinator say to each other. Nothing here carries a tensor.

A *round* is one entry of the log of updates that every rank applies in the same order: round k makes version k + 1 of
the parameters out of version k. In most modes it is made of gradients; where ranks step on their own, of their states.
An *attempt* is one try to reduce a round's gradients among those who contribute to it;
another one follows when a contributor is lost on the way. An *epoch* is the reign of one coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

from starprof.sync.policies import NO_STEPS, Gradient, LocalSteps
from starprof.sync.transfers import Sent


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
        serial: counts what coordinators have decided, rounds and ends of meetings, across epochs.
        lost: ranks that are taken for lost, whose state is void.
        meeting: meetings that came before it.
        met_at: version at which the last of them ended.
        local: steps of their own that ranks make on the version that follows.
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
    local: LocalSteps = NO_STEPS

    @property
    def steps(self) -> int:
        """Most steps that a rank has behind it whose state is in the mean; 0: it is a round of gradients."""
        return max((g.steps for g in self.gradients), default=0)

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
    """Coordinator to all: native steps end, and rounds begin, with version `version`; `local` as in `Close`."""

    epoch: int
    switch: int
    version: int
    local: LocalSteps = NO_STEPS


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
        local: steps of their own that ranks make on that version.
        again: ranks that stand before a collective while others stood at the end of an epoch: they pause again; None:
            not known, since only a later round has told of the meeting's end.
        index: greatest of all that were told with a pause: whoever is not as far passes over iterations up to there;
            None: each goes on from where it stands.
        serial: as in `Close`; 0: not known.
        lost: ranks that are taken for lost, and that it did not wait for.
    """

    epoch: int
    meeting: int
    version: int
    native: bool
    local: LocalSteps = NO_STEPS
    again: tuple[int, ...] | None = ()
    index: int | None = None
    serial: int = 0
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Parted:
    """Coordinator to all, where groups share their gradients: a rank takes part in no more such steps on a version.

    Attributes:
        epoch: of the coordinator that says so.
        rank: which one.
        version: of the parameters.
        meeting: meetings that came before it.
        steps: so many it has made; what comes after them the others make without it.
    """

    epoch: int
    rank: int
    version: int
    meeting: int
    steps: int


@dataclass(frozen=True, slots=True)
class Over:
    """Coordinator to all: the ranks can't go on together; each ends with an error that says why.

    Attributes:
        epoch: of the coordinator that says so.
        reason: in words for the user.
    """

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wished:
    """Coordinator to all: what is wanted of it. They keep it in mind, for the coordinator that may follow it.

    Attributes:
        epoch: of the coordinator that says so.
        serial: counts what was wanted of it.
        text: in its own words.
    """

    epoch: int
    serial: int
    text: str


ToRank = (
    Close | Go | Query | Take | Welcome | Rejoin | Prepare | Commit | Abort | Meet | Gathered | Parted | Over | Wished
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Rank to coordinator: its training thread stands, and waits for all the others to do so.

    Said again whenever it has come to hold more rounds, which it applies where it stands.

    Attributes:
        rank: whose.
        meeting: that it waits for.
        index: loop iterations behind it, skipped ones too.
        held: it holds the results of all rounds before this one.
        place: the collective that it stands before; "" at the end of an epoch.
    """

    rank: int
    meeting: int
    index: int
    held: int
    place: str = ""


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
        serial: of the newest word that it has heard on any round or end of a meeting.
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
        local: steps of their own that ranks make on version `held`, as far as it knows.
        refuses: why its loop can't be in rounds; "" if it can.
        wished: what was wanted of a coordinator, as it last heard.
        version: of its parameters; None: it holds no more than what is in them.
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
    local: LocalSteps = NO_STEPS
    refuses: str = ""
    wished: Wished | None = None
    version: int | None = None

    @property
    def in_state(self) -> int:
        """Rounds before this one are in its state, or will be before it goes on: what it has on top it may not apply.

        Whoever computes may leave with its state as it is, and whoever has left applies nothing any more.
        """
        stands = self.waits or self.paused is not None
        return self.held if stands or self.version is None else min(self.version, self.held)

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
        sent: how long its part in the reductions since its last gradient took; nothing where that is not known.
    """

    rank: int
    gradient: Gradient
    held: int
    iterations: int | None = None
    sent: tuple[Sent, ...] = ()


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
    """Rank to coordinator: its training is over.

    Attributes:
        rank: whose.
        version: of its parameters, which nothing is applied to any more; None: of all rounds that it holds.
    """

    rank: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Rank to coordinator: its loop has turned out to be one that can't be in rounds.

    Attributes:
        rank: whose.
        reason: in words for the user.
    """

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Objects:
    """Rank to coordinator, in the place of a hello or later: it stays with native steps, for these reasons."""

    rank: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Norms:
    """Rank to coordinator, now and then: squared norms, from which the gradient noise scale is estimated.

    Attributes:
        rank: whose.
        version: of the parameters that the update is applied to.
        number: of a gradient of the rank that goes into it; None: it has none, or the step is a native one.
        own: squared norm of that gradient.
        attempt: try to reduce the round that `update` is of.
        update: squared norm of the weighted sum of the gradients; with `pair` of this update and the one before it,
            each divided by its weight.
        native: it is a native step, the mean of one gradient of every rank.
        pair: see `update`.
    """

    rank: int
    version: int
    number: int | None = None
    own: float | None = None
    attempt: int = 0
    update: float | None = None
    native: bool = False
    pair: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """Rank to coordinator, now and then, where somebody watches over the training: its loss.

    Attributes:
        rank: whose.
        version: of the parameters that it belongs to, or of those of a step later.
        loss: root of a backward pass, without the loss scale; None: it is not finite.
        finite: whether it is.
    """

    rank: int
    version: int
    loss: float | None
    finite: bool


ToCoordinator = Hello | Arrive | Answer | Failed | Prepared | Pause | Leave | Refuse | Objects | Norms | Health
