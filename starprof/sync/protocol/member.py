"""A rank's side of the round protocol: what it may begin, hold, apply, and say. No socket, no thread, no tensor.

The engine tells what has happened (methods) and carries out what comes back (`Action`s). Its threads share one member,
behind the engine's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import (
    Abort,
    Answer,
    Arrive,
    Close,
    Commit,
    Failed,
    Go,
    Hello,
    Leave,
    Prepare,
    Prepared,
    Query,
    Rejoin,
    Take,
    ToCoordinator,
    ToRank,
    Welcome,
)


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the coordinator."""

    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce this round's gradients with its other members; `reduced` or `reduction_failed` follows."""

    close: Close


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send a result that is held to another rank, with its round's description; there `received` follows."""

    to: int
    close: Close


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask another rank for a result; `received` follows, or nothing."""

    holder: int
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Step the optimizer along a round's result, which is held."""

    close: Close


@dataclass(frozen=True, slots=True)
class Begin:
    """The training thread may begin its next step, on parameters of this version."""

    version: int
    native: bool


@dataclass(frozen=True, slots=True)
class PullState:
    """Replace parameters and optimizer by those of another rank; `pulled` follows."""

    holder: int
    version: int


Action = Send | Reduce | Deliver | Fetch | Apply | Begin | PullState


class At(Enum):
    """Where the training thread is."""

    COMPUTING = "computing"
    WAITING = "waiting for its release"
    BOUNDARY = "between two native steps"
    PULLING = "waiting for another rank's state"
    DONE = "done"


@dataclass(slots=True)
class _Entry:
    """What is known of a round."""

    close: Close
    held: bool = False


@dataclass(slots=True)
class _Log:
    """Rounds from some version on: closed, reduced, refused."""

    held: int
    entries: dict[int, _Entry] = field(default_factory=dict)
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
        self.entries[number] = _Entry(close, held=True)
        self.advance()
        return True


class Member:
    """One rank in the protocol.

    Attributes:
        rank: its number.
        version: updates that its parameters have seen.
        native: whether steps are native ones.
        at: where its training thread is.
    """

    def __init__(self, rank: int, world: tuple[int, ...], *, version: int = 0) -> None:
        """Begin in native steps, with the first one allowed."""
        self.rank = rank
        self.world = world
        self.version = version
        self.native = True
        self.at = At.BOUNDARY
        self.epoch = 0
        self._log = _Log(version)
        self._number = 0
        self._handed_in: list[Gradient] = []
        self._go: int | None = None
        self._prepared: int | None = None
        self._commit: Commit | None = None
        self._newest: Close | None = None
        self._outside = False
        self._out: list[Action] = []

    # What the training thread tells.

    def boundary(self) -> list[Action]:
        """It stands before its next native step: `Begin` comes back, now or after another event."""
        self._move_on()
        return self._flushed()

    def native_done(self) -> list[Action]:
        """A native step is over."""
        self.version += 1
        self._log.advance(self.version)
        self.at = At.BOUNDARY
        self._move_on()
        return self._flushed()

    def gradient(self, samples: int = 1) -> list[Action]:
        """Its gradient of this step is there, and it waits."""
        gradient = Gradient(self.rank, self._number, self.version, samples)
        self._number += 1
        self._handed_in.append(gradient)
        self.at = At.WAITING
        self._go = None
        self._out.append(Send(Arrive(self.rank, gradient, self._log.held)))
        return self._flushed()

    def done(self) -> list[Action]:
        """Its training is over."""
        self.at = At.DONE
        self._out.append(Send(Leave(self.rank)))
        return self._flushed()

    def pulled(self, version: int, log: list[Close]) -> list[Action]:
        """Another rank's state is here: its parameters' version, and the rounds that it holds beyond."""
        if self.at is not At.PULLING:
            return []
        self.version = version
        self._log = _Log(version, {c.round: _Entry(c, held=True) for c in log})
        self._log.advance()
        self._handed_in = []
        self._prepared = None
        self.at = At.WAITING
        self._go = None
        self._outside = True
        self._out.append(Send(self.hello()))
        return self._flushed()

    # What the data plane tells.

    def reduced(self, number: int, attempt: int) -> list[Action]:
        """A reduction has come to its end here."""
        entry = self._log.entries.get(number)
        if entry is not None and entry.close.attempt == attempt and self._log.take(entry.close):
            if entry.close.leader == self.rank:
                others = [other for other in self.world if other not in entry.close.members]
                self._out += [Deliver(other, entry.close) for other in others]
            self._move_on()
        return self._flushed()

    def reduction_failed(self, number: int, attempt: int) -> list[Action]:
        """A reduction has failed here."""
        if not self._log.holds(number) and attempt > self._log.refused.get(number, -1):
            self._log.refused[number] = attempt
            self._out.append(Send(Failed(self.rank, number, attempt)))
        return self._flushed()

    def received(self, close: Close) -> list[Action]:
        """Another rank has sent a result."""
        if self._log.take(close):
            self._noted(close)
            self._move_on()
        return self._flushed()

    def can_deliver(self, number: int) -> Close | None:
        """The round whose result is held here, for a rank that asks; None: it is not."""
        entry = self._log.entries.get(number)
        return entry.close if entry is not None and entry.held else None

    # What the coordinator tells.

    def hello(self) -> Hello:
        """Who it is and how far, for a coordinator that may know nothing."""
        log = self._log
        return Hello(
            self.rank,
            self.epoch,
            log.held,
            tuple(log.entries[k].close for k in sorted(log.entries)),
            tuple(k for k in sorted(log.entries) if k >= log.held and log.entries[k].held),
            tuple(self._handed_in),
            self.at is At.WAITING and self._go is None,
            self.native,
            self._commit,
            self.at is At.DONE,
            self._newest.serial if self._newest is not None else 0,
            self._newest.lost if self._newest is not None else (),
            self._number,
            self._outside,
        )

    def told(self, message: ToRank) -> list[Action]:
        """The coordinator has said something."""
        if message.epoch < self.epoch:
            return []
        self.epoch = message.epoch
        if self.at is At.PULLING and not isinstance(message, Rejoin):
            return []  # what is said on rounds is said again once it knows where it stands
        match message:
            case Close():
                self._closed(message)
            case Go():
                self._released(message)
            case Query():
                self._asked(message)
            case Take():
                self._told_to_take(message)
            case Prepare() | Commit() | Abort():
                self._switching(message)
            case Rejoin():
                self.at = At.PULLING
                self.native = False
                self._out.append(PullState(message.holder, message.version))
            case Welcome():
                pass
        self._move_on()
        return self._flushed()

    # What follows.

    def _switching(self, message: Prepare | Commit | Abort) -> None:
        """Native steps are about to end, end at a version, or go on after all."""
        if isinstance(message, Prepare):
            self._prepared = message.switch
            # Whoever has still to apply the round that ends the rounds promises when it has.
            if self.native and self.at is not At.DONE:
                self._promise(self.version + (self.at is At.COMPUTING))
            return
        self._prepared = None
        if isinstance(message, Commit) and self.native:
            self._commit = message

    def _promise(self, version: int) -> None:
        assert self._prepared is not None
        self._out.append(Send(Prepared(self.rank, self._prepared, version)))

    def _closed(self, close: Close) -> None:
        if self._newest is None or close.serial > self._newest.serial:
            self._newest = close
        known = self._log.entries.get(close.round)
        if close.round < self._log.held or (known is not None and (known.held or known.close.attempt >= close.attempt)):
            self._noted(close)
            return
        self._log.trim(min(close.floor, self.version))
        self._log.entries[close.round] = entry = _Entry(close)
        self._noted(close)
        if not close.gradients:
            entry.held = True
            self._log.advance()
        elif self.rank in close.members and close.attempt > self._log.refused.get(close.round, -1):
            self._out.append(Reduce(close))

    def _noted(self, close: Close) -> None:
        """Which of its gradients a round uses, and whether it is released by it."""
        used = {g.number for g in close.gradients if g.worker == self.rank}
        last = self._handed_in[-1].number if self._handed_in else None
        self._handed_in = [g for g in self._handed_in if g.number not in used]
        if self.rank in close.release and self.at is At.WAITING and self._go is None and last in used | {None}:
            self._go = close.round + 1

    def _released(self, go: Go) -> None:
        waits_with = self._number - 1
        if not go.kept:
            self._handed_in = [g for g in self._handed_in if g.number != go.number]
        if self.at is At.WAITING and self._go is None and go.number == waits_with:
            self._go = go.version
            self._outside = False

    def _asked(self, query: Query) -> None:
        holds = self._log.holds(query.round)
        if not holds:
            self._log.refused[query.round] = max(query.attempt, self._log.refused.get(query.round, -1))
        gives = self.can_deliver(query.round) is not None
        self._out.append(Send(Answer(self.rank, query.round, query.attempt, holds, gives)))

    def _told_to_take(self, take: Take) -> None:
        if self._log.holds(take.round):
            return
        # The outcome is fixed: what was refused before is what everybody takes now.
        self._log.refused.pop(take.round, None)
        self._out.append(Fetch(take.holder, take.round, take.attempt))

    def _move_on(self) -> None:
        """Apply what may be applied, and begin what may be begun."""
        if self.at is At.BOUNDARY and self.native:
            if self._commit is not None and self.version >= self._commit.version:
                self.native = False
            elif self._prepared is None:
                self.at = At.COMPUTING
                self._out.append(Begin(self.version, native=True))
                return
            else:
                return
            self.at = At.COMPUTING
            self._out.append(Begin(self.version, native=False))
        elif self.at is At.WAITING and self._go is not None and self._log.held >= self._go:
            self._apply_held()
            self._go = None
            if self.native and self._prepared is not None:
                self.at = At.BOUNDARY
                self._promise(self.version)
                return
            self.at = At.COMPUTING
            self._out.append(Begin(self.version, self.native))

    def _apply_held(self) -> None:
        while self.version < self._log.held:
            close = self._log.entries[self.version].close
            self._out.append(Apply(close))
            self.version += 1
            if close.native:
                self.native = True
                self._commit = None
                break

    def _flushed(self) -> list[Action]:
        out, self._out = self._out, []
        return out
