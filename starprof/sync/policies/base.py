"""What a synchronisation mode is: a policy over arrivals, without clock, thread or tensor.

A policy is told what happens (an `Event`) and answers with a `Decision`. Parameter server, all-reduce engine and
simulator drive the same objects, so a recorded run can be played again and must give the same decisions.

Workers compute a gradient, hand it in and wait until they are released; a released worker takes the newest parameters.
`version` counts the updates that everybody's parameters have seen; the staleness of a gradient is how many of them came
between the parameters it was computed on and the update that it goes into.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient of one worker; the values themselves stay with whoever computed them.

    Attributes:
        worker: who computed it.
        number: the worker's how-many-th, from 0; with `worker` it names the gradient.
        version: of the parameters that it was computed on.
        samples: how many it is the mean of.
        steps: that its worker has made on its own since that version; then its state is handed in, and no gradient.
    """

    worker: int
    number: int
    version: int
    samples: int = 1
    steps: int = 0


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """What workers do between two averagings of their states, where they step on their own.

    Attributes:
        period: steps that each makes; 0: none, every gradient is handed in.
        groups: workers that share the mean of their gradients in each of these steps; all others step alone.
    """

    period: int = 0
    groups: tuple[tuple[int, ...], ...] = ()

    def among(self, workers: Iterable[int]) -> LocalSteps:
        """The same for some of the workers."""
        here = set(workers)
        groups = [tuple(worker for worker in group if worker in here) for group in self.groups]
        return LocalSteps(self.period, tuple(group for group in groups if len(group) > 1))


NO_STEPS = LocalSteps()
"""Every gradient is handed in."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker has handed in a gradient and waits."""

    gradient: Gradient
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Woken:
    """The time a policy asked to be woken at has come."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker takes part from now on; it waits to be released with the newest parameters."""

    worker: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone, and with it the gradient that it has handed in and that was not used yet."""

    worker: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """How long each worker's next iterations are expected to take, its own work only, in seconds."""

    iteration_s: Mapping[int, float]
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a gradient that a policy asked for (`Decision.score`)."""

    gradient: Gradient
    score: float
    at_s: float = 0.0


Event = Arrived | Woken | Joined | Left | Predicted | Scored


@dataclass(frozen=True, slots=True)
class Update:
    """A step of the optimizer along the weighted sum of some gradients.

    Attributes:
        onto: version of the parameters that it is applied to.
        gradients: what goes in.
        weights: the factor of each.
        members: whose parameters it changes; None: everybody's, and their version becomes `onto` + 1.
    """

    onto: int
    gradients: tuple[Gradient, ...]
    weights: tuple[float, ...]
    members: tuple[int, ...] | None = None

    @property
    def contributors(self) -> tuple[int, ...]:
        """The worker of each gradient."""
        return tuple(g.worker for g in self.gradients)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each gradient, in updates."""
        return tuple(self.onto - g.version for g in self.gradients)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now, in this order.

    Attributes:
        updates: steps of the optimizer, one after the other.
        step_locally: gradients that only their own worker applies, to its own parameters.
        average: sets of workers whose parameters are averaged.
        dropped: gradients that are thrown away, for good.
        release: workers that go on, with the newest parameters.
        wake_at_s: when the policy wants to be woken, unless it decides otherwise before; None: not at all.
        score: gradients whose score it wants to know.
        batch_sizes: samples that workers compute from their next gradient on; None: as before.
        stop_after_s: workers stop accumulating after this time of an iteration; None: they don't.
    """

    updates: tuple[Update, ...] = ()
    step_locally: tuple[Gradient, ...] = ()
    average: tuple[tuple[int, ...], ...] = ()
    dropped: tuple[Gradient, ...] = ()
    release: tuple[int, ...] = ()
    wake_at_s: float | None = None
    score: tuple[Gradient, ...] = ()
    batch_sizes: Mapping[int, int] | None = None
    stop_after_s: float | None = None


NOTHING = Decision()
"""Everything goes on as it was: what becomes of most arrivals, at first."""


@dataclass(slots=True)
class Draft:
    """A decision in the making."""

    updates: list[Update] = field(default_factory=list)
    step_locally: list[Gradient] = field(default_factory=list)
    average: list[tuple[int, ...]] = field(default_factory=list)
    dropped: list[Gradient] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    wake_at_s: float | None = None
    score: list[Gradient] = field(default_factory=list)
    batch_sizes: dict[int, int] | None = None
    stop_after_s: float | None = None

    def decision(self) -> Decision:
        """As it stands; equal workers are released once."""
        if self._is_empty():
            return NOTHING
        return Decision(
            tuple(self.updates),
            tuple(self.step_locally),
            tuple(self.average),
            tuple(self.dropped),
            tuple(dict.fromkeys(self.release)),
            self.wake_at_s,
            tuple(self.score),
            self.batch_sizes,
            self.stop_after_s,
        )

    def _is_empty(self) -> bool:
        lists = self.updates or self.release or self.dropped or self.step_locally or self.average or self.score
        return not (
            lists or self.batch_sizes is not None or self.stop_after_s is not None or self.wake_at_s is not None
        )


ALONE_HOLDS_FOR = 4.0
"""Where an update is one gradient, others wait for it on its way: a slow one takes a fifth of the time at most."""


class Policy(ABC):
    """A synchronisation mode at work.

    Attributes:
        name: as users write it.
        drops: whether a gradient of a worker that stays may be thrown away.
        holds_for: a gradient whose reduction takes longer than a usual one counts as ready later by so many times that,
            in modes that leave out who is late.
        max_staleness: no gradient older than this goes into an update, whatever happens; None: there is no such bound.
            It never falls: a gradient that was let go when more was allowed may still be on its way.
        members: workers that take part, in order.
        version: updates so far.
        waiting: what has been handed in by workers that wait, in order of arrival.
    """

    name: ClassVar[str]
    drops: ClassVar[bool] = False
    holds_for: ClassVar[float] = 1.0

    def __init__(self, workers: Iterable[int], *, version: int = 0) -> None:
        """Begin with these workers, whose parameters have seen `version` updates and who are all computing."""
        self.members: list[int] = sorted(set(workers))
        self.version = version
        self.waiting: dict[int, Gradient] = {}
        self._handed_in: dict[int, int] = {}

    @property
    def max_staleness(self) -> int | None:
        """See the class."""
        return 0

    @property
    def leaves_out(self) -> bool:
        """Whether a round is made of those that come first, so that one does without a worker that comes later."""
        return False

    @property
    def short_of(self) -> int:
        """How many more gradients it takes at least until a round closes; 0: nobody can tell."""
        return 0

    @property
    def local_steps(self) -> LocalSteps:
        """What workers of a running job do on their own; then its rounds are averagings, of all workers."""
        return NO_STEPS

    def has(self, worker: int) -> bool:
        """Whether a worker takes part."""
        place = bisect_left(self.members, worker)  # they are in order, and may be many
        return place < len(self.members) and self.members[place] == worker

    def decide(self, event: Event) -> Decision:
        """What follows from an event.

        Raises:
            ValueError: a gradient comes twice, from the future, from a stranger or while its worker already waits.
        """
        draft = Draft()
        match event:
            case Arrived(gradient=gradient):
                self._check(gradient)
                self._handed_in[gradient.worker] = gradient.number
                self._arrived(gradient, event.at_s, draft)
            case Joined(worker=worker):
                self._join(worker, draft)
            case Left(worker=worker):
                self._leave(worker, draft)
            case Predicted(iteration_s=times):
                self._predicted(times, draft)
            case Scored():
                self._scored(event, draft)
            case Woken():
                pass
        self._settle(event.at_s, draft)
        return draft.decision()

    def wind_up(self) -> Decision:
        """What is to be done before another policy takes over, which is fed what still waits.

        Whatever was taken from workers that have gone on is applied, and whoever was only held back is released.
        """
        draft = Draft()
        self._wind_up(draft)
        return draft.decision()

    def inherit(self, gradients: Sequence[Gradient]) -> Decision:
        """Apply what a policy before this one has taken from workers that have gone on, and could not apply itself."""
        draft = Draft()
        if gradients:
            self._apply(gradients, shared(len(gradients), len(self.members)), draft)
        return draft.decision()

    def _wind_up(self, draft: Draft) -> None:  # noqa: B027 - most modes keep nothing but what waits
        """See `wind_up`."""

    @abstractmethod
    def _settle(self, at_s: float, draft: Draft) -> None:
        """Do whatever has become possible."""

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002 - for modes that need it
        self.waiting[gradient.worker] = gradient

    def _predicted(self, iteration_s: Mapping[int, float], draft: Draft) -> None:  # noqa: B027 - most modes don't care
        """Predictions change nothing unless a mode says so."""

    def _scored(self, event: Scored, draft: Draft) -> None:  # noqa: B027 - most modes don't care
        """Scores change nothing unless a mode says so."""

    def _join(self, worker: int, draft: Draft) -> None:
        if worker in self.members:
            raise ValueError(f"worker {worker} takes part already")
        self.members = sorted([*self.members, worker])
        self._handed_in.pop(worker, None)
        draft.release.append(worker)

    def _leave(self, worker: int, draft: Draft) -> None:
        if worker not in self.members:
            raise ValueError(f"worker {worker} does not take part")
        self.members.remove(worker)
        lost = self.waiting.pop(worker, None)
        if lost is not None:
            draft.dropped.append(lost)

    def _apply(self, gradients: Sequence[Gradient], weights: Sequence[float], draft: Draft) -> None:
        """An update of everybody's parameters."""
        draft.updates.append(Update(self.version, tuple(gradients), tuple(weights)))
        self.version += 1

    def _take(self, workers: Iterable[int], draft: Draft) -> list[Gradient]:
        """What these workers have handed in; they are released."""
        taken = [self.waiting.pop(worker) for worker in workers]
        draft.release += [g.worker for g in taken]
        return taken

    def _check(self, gradient: Gradient) -> None:
        worker = gradient.worker
        if not self.has(worker):
            raise ValueError(f"worker {worker} does not take part")
        if worker in self.waiting:
            raise ValueError(f"worker {worker} waits and can't have computed another gradient")
        if gradient.number <= self._handed_in.get(worker, -1):
            raise ValueError(f"gradient {gradient.number} of worker {worker} was handed in before")
        if gradient.version > self.version:
            raise ValueError(f"worker {worker} has parameters of version {gradient.version}, newer than {self.version}")
        if gradient.samples < 1:
            raise ValueError(f"a gradient of {gradient.samples} samples")


def mean(count: int) -> list[float]:
    """Weights of a mean over `count` gradients."""
    return [1.0 / count] * count


def shared(count: int, workers: int) -> list[float]:
    """Weights of a sum over `count` gradients divided by the number of workers."""
    return [1.0 / workers] * count
