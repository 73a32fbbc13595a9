"""A rank's side of the round protocol: what it may begin, hold, apply, and say. No socket, no thread, no tensor.

The engine tells what has happened (methods) and carries out what comes back (`Action`s). Its threads share one member,
behind the engine's lock.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from starprof.sync.protocol.actions import (
    Action,
    Apply,
    Begin,
    Deliver,
    Fetch,
    PullState,
    Reduce,
    Resume,
    Send,
    SkipLimit,
)
from starprof.sync.protocol.log import Entry, Log
from starprof.sync.protocol.messages import (
    Abort,
    Answer,
    Arrive,
    Close,
    Commit,
    Failed,
    Gathered,
    Go,
    Hello,
    Leave,
    Meet,
    Pause,
    Prepare,
    Prepared,
    Query,
    Rejoin,
    Take,
    ToRank,
    Welcome,
)
from starprof.sync.protocol.own import MeetingPoint, OwnGradients

__all__ = [
    "Action",
    "Apply",
    "At",
    "Begin",
    "Deliver",
    "Fetch",
    "Member",
    "PullState",
    "Reduce",
    "Resume",
    "Send",
    "SkipLimit",
]


class At(Enum):
    """Where the training thread is."""

    COMPUTING = "computing"
    WAITING = "waiting for its release"
    BOUNDARY = "between two native steps"
    MEETING = "paused, waiting for all the others to pause"
    PULLING = "waiting for another rank's state"
    DONE = "done"


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
        self._log = Log(version)
        self._own = OwnGradients(rank)
        self._meeting = MeetingPoint()
        self._go: int | None = None
        self._prepared: int | None = None
        self._commit: Commit | None = None
        self._newest: Close | None = None
        self._outside = False
        self._limit: int | None = None
        self._loss = 0
        self._out: list[Action] = []

    @property
    def meetings(self) -> int:
        """How many are behind it."""
        return self._meeting.meetings

    # What the training thread tells.

    def boundary(self) -> list[Action]:
        """It stands before its next step: `Begin` comes back, now or after another event."""
        if self.at is At.COMPUTING:
            self._out.append(Begin(self.version, self.native))  # allowed already, by the end of a step or of a meeting
        self._move_on()
        return self._flushed()

    def native_done(self) -> list[Action]:
        """A native step is over."""
        self.version += 1
        self._log.advance(self.version)
        self._log.trim(self.version)  # who takes part in a native step has applied all rounds before it
        self.at = At.BOUNDARY
        self._move_on()
        return self._flushed()

    def gradient(self, samples: int = 1, iterations: int | None = None) -> list[Action]:
        """Its gradient of this step is there, and it waits.

        Args:
            samples: that the gradient is the mean of.
            iterations: of the loop with this one, skipped ones too. Without it, native steps may follow on any round
                that all have part in; with it, only where all are equally far.
        """
        gradient = self._own.next(self.version, samples, iterations)
        if self.at is At.PULLING:
            return []  # it was computed on a state that is void, and goes with it
        self.at = At.WAITING
        self._go = None
        self._out.append(Send(Arrive(self.rank, gradient, self._log.held, iterations)))
        return self._flushed()

    def pause(self, index: int) -> list[Action]:
        """It stands where all ranks come together, such as the end of an epoch, instead of computing its next gradient.

        `Resume` comes back. In native steps it does so without the others: they take the same steps, and stand at the
        same place after the same number of them. Else it comes once all others have paused too, with the same version
        everywhere; a rank that has to pull another one's state on the way may `Begin` instead, and pause again if that
        state's place is still before the meeting.

        Args:
            index: loop iterations behind it, skipped ones too. The others may skip as far, and no further.
        """
        if self.at is At.PULLING:
            return []
        if self.native and self.at is At.COMPUTING:
            self._out.append(Resume(self.version, native=True))
            return self._flushed()
        self.at = At.MEETING
        self._meeting.paused = Pause(self.rank, self.meetings + 1, index, self._log.held)
        if not self.native:
            self._out.append(Send(self._meeting.paused))
        self._move_on()
        return self._flushed()

    def done(self) -> list[Action]:
        """Its training is over."""
        self.at = At.DONE
        self._out.append(Send(Leave(self.rank)))
        return self._flushed()

    def pulled(self, version: int, log: list[Close], meetings: int | None = None) -> list[Action]:
        """Another rank's state is here.

        Args:
            version: of its parameters.
            log: rounds that it holds beyond.
            meetings: that are behind it (`Member.meetings`); None: as many as behind this rank.
        """
        if self.at is not At.PULLING:
            return []
        self.version = version
        self._log = Log(version, {c.round: Entry(c, held=True) for c in log})
        self._log.advance()
        self._own.void()
        self._prepared = self._commit = self._meeting.gathered = None
        self.at = At.WAITING
        self._go = None
        self._outside = True
        self._meeting.meetings = self.meetings if meetings is None else meetings
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
        """The round whose result is here, for a rank that asks; None: it is not."""
        return self._log.kept(number)

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
            tuple(self._own.open),
            self.at is At.WAITING and self._go is None,
            self.native,
            self._commit,
            self.at is At.DONE,
            self._newest.serial if self._newest is not None else 0,
            self._newest.lost if self._newest is not None else (),
            self._own.number,
            self._outside,
            self._loss,
            self.at is At.PULLING,
            self._own.void_before,
            self.meetings,
            self._meeting.paused if self.at is At.MEETING and not self.native else None,
            self._meeting.gathered,
            self._own.iterations,
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
            case Rejoin() if self.at is not At.DONE:
                self.at = At.PULLING
                self.native = False
                self._loss = message.loss
                self._limited(None)
                self._out.append(PullState(message.holder, message.version))
            case Meet() if message.meeting > self.meetings:
                self._limited(message.index)
            case Gathered():
                self._meeting.over(message)
            case Welcome() | Rejoin() | Meet():
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
        if isinstance(message, Commit):
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
        missing = self._log.closed(close)
        self._noted(close)
        if missing and self.rank in close.members and not self._log.refuses(close):
            if self._own.in_void(close):
                self._log.refused[close.round] = close.attempt
                self._out.append(Send(Failed(self.rank, close.round, close.attempt)))
            else:
                self._out.append(Reduce(close))

    def _noted(self, close: Close) -> None:
        """Which of its gradients a round uses, and whether it is released by it."""
        self._meeting.over(Gathered(close.epoch, close.meeting, close.met_at, native=False))
        releases = self._own.used(close) and self.rank in close.release
        if releases and self.at is At.WAITING and self._go is None:
            self._go = close.round + 1

    def _released(self, go: Go) -> None:
        if not go.kept:
            self._own.dropped(go.number)
        if self.at is At.WAITING and self._go is None and go.number == self._own.number - 1:
            self._go = go.version

    def _asked(self, query: Query) -> None:
        entry, holds = self._log.entries.get(query.round), self._log.holds(query.round)
        if not holds:
            self._log.refused[query.round] = max(query.attempt, self._log.refused.get(query.round, -1))
        gives = entry is not None and entry.held
        self._out.append(Send(Answer(self.rank, query.round, query.attempt, holds, gives)))

    def _told_to_take(self, take: Take) -> None:
        if self._log.holds(take.round):
            return
        # The outcome is fixed: what was refused before is what everybody takes now.
        self._log.refused.pop(take.round, None)
        self._out.append(Fetch(take.holder, take.round, take.attempt))

    def _limited(self, index: int | None) -> None:
        if index != self._limit:
            self._limit = index
            self._out.append(SkipLimit(index))

    def _move_on(self) -> None:
        """Apply what may be applied, and begin what may be begun."""
        if self.at is At.WAITING and self._go is not None and self._log.held >= self._go:
            self._released_now()
        elif self.at is At.MEETING and not self.native:
            self._stands()
        elif self.at in {At.BOUNDARY, At.MEETING} and self.native:
            self._between_native_steps()

    def _between_native_steps(self) -> None:
        if self._commit is not None and self.version >= self._commit.version:
            self.native = False
            if self.at is At.MEETING:
                assert self._meeting.paused is not None
                self._out.append(Send(self._meeting.paused))
                self._stands()
                return
        elif self._prepared is not None:
            return
        kind = Begin if self.at is At.BOUNDARY else Resume
        self.at = At.COMPUTING
        self._out.append(kind(self.version, self.native))

    def _released_now(self) -> None:
        self._apply_held(self._log.held)
        self._go = None
        self._outside = False
        if self.native and self._prepared is not None:
            self.at = At.BOUNDARY
            self._promise(self.version)
            return
        self.at = At.COMPUTING
        self._out.append(Begin(self.version, self.native))

    def _stands(self) -> None:
        """Where it has paused it applies what was closed before everybody had, and goes on once that is all."""
        self._apply_held(self._meeting.may_apply(self._log, self.version))
        end, paused = self._meeting.end, self._meeting.paused
        if end is not None and self.version >= end.version:
            self._meeting.meetings = end.meeting
            self.native = end.native
            self._commit = None if self.native else self._commit
            self.at = At.COMPUTING
            self._limited(None)
            if self.native and self._prepared is not None:
                self._promise(self.version + 1)
            self._out.append(Resume(self.version, self.native))
        elif end is None and paused is not None and paused.held < self._log.held:
            self._meeting.paused = replace(paused, held=self._log.held)
            self._out.append(Send(self._meeting.paused))

    def _apply_held(self, until: int) -> None:
        while self.version < until:
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
