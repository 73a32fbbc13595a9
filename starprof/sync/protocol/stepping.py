"""What a rank's training thread may begin, apply, and go on from, once its member has been told what has happened."""

from __future__ import annotations

from enum import Enum

from starprof.sync.policies import NO_STEPS
from starprof.sync.protocol.actions import Action, Apply, Begin, Resume, Send, SkipLimit
from starprof.sync.protocol.log import Log
from starprof.sync.protocol.messages import Abort, Close, Commit, Gathered, Go, Prepare
from starprof.sync.protocol.own import MeetingPoint, OwnGradients
from starprof.sync.protocol.results import Results
from starprof.sync.protocol.switching import SwitchAtRank


class At(Enum):
    """Where the training thread is."""

    COMPUTING = "computing"
    WAITING = "waiting for its release"
    BOUNDARY = "between two native steps"
    MEETING = "paused, waiting for all the others to pause"
    VOID = "computing on a state that is void"
    PULLING = "waiting for another rank's state"
    DONE = "done"


class Stepping:
    """The part of a member that decides so.

    Attributes:
        rank: its number.
        world: all ranks.
        version: updates that its parameters have seen.
        native: whether steps are native ones.
        at: where its training thread is.
        local: steps of its own that it makes on this version.
    """

    def __init__(self, rank: int, world: tuple[int, ...], version: int) -> None:
        """Begin in native steps, with the first one allowed.

        Args:
            rank: its number.
            world: all ranks.
            version: of the parameters.
        """
        self.rank = rank
        self.world = world
        self.version = version
        self.native = True
        self.at = At.BOUNDARY
        self.local = NO_STEPS
        self._own = OwnGradients(rank)
        self._results = Results(version, self._own, world, self._do)
        self._switch = SwitchAtRank(rank)
        self._meeting = MeetingPoint()
        # Released, it waits for all rounds before this version; None: it is not released yet.
        self._go: int | None = None
        self._outside = False  # it has pulled a state, and is not let in again yet
        self._limit: int | None = None
        self._out: list[Action] = []

    @property
    def meetings(self) -> int:
        """How many are behind it."""
        return self._meeting.meetings

    @property
    def void(self) -> bool:
        """Whether its state counts no more, and it has no other rank's yet."""
        return self.at in {At.VOID, At.PULLING}

    @property
    def _log(self) -> Log:
        return self._results.log

    def _move_on(self) -> None:
        """Apply what may be applied, and begin what may be begun."""
        if self.at is At.WAITING and self._go is not None and self._log.held >= self._go:
            self._released_now()
        elif self.at is At.MEETING and not self.native:
            self._stands()
        elif self.at in {At.BOUNDARY, At.MEETING} and self.native:
            self._between_native_steps()

    def _apply_held(self, until: int) -> None:
        while self.version < until:
            close = self._log.entries[self.version].close
            self._do(Apply(close))
            self.version += 1
            self.local = close.local
            if close.native:
                self.native = True
                self._switch.commit = None
                break

    # Native steps and rounds.

    def _switching(self, message: Prepare | Commit | Abort) -> None:
        self._switch.told(message)
        if isinstance(message, Commit) and not self.native and self.version == message.version:
            self.local = message.local  # its state is of a rank that had not heard it yet
        # Whoever has still to apply the round that ends the rounds promises when it has.
        if isinstance(message, Prepare) and self.native and self.at is not At.DONE:
            self._do(Send(self._switch.promise(self.version + (self.at is At.COMPUTING))))

    def _between_native_steps(self) -> None:
        begun = self._switch.begun(self.version)
        if begun is not None:
            self.native = False
            self.local = begun.local
            if self.at is At.MEETING:
                assert self._meeting.paused is not None
                self._do(Send(self._meeting.paused))
                self._stands()
                return
        elif self._switch.prepared is not None:
            return
        kind = Begin if self.at is At.BOUNDARY else Resume
        self.at = At.COMPUTING
        self._do(kind(self.version, self.native))

    # Waiting with a gradient.

    def _noted(self, close: Close) -> None:
        """Which of its gradients a round uses, and whether it is released by it."""
        self._meeting.over(Gathered(close.epoch, close.meeting, close.met_at, native=False, again=None))
        releases = self._own.used(close) and self.rank in close.release
        if releases and self.at is At.WAITING and self._go is None:
            self._go = close.round + 1

    def _released(self, go: Go) -> None:
        if not go.kept:
            self._own.dropped(go.number)
        if self.at is At.WAITING and self._go is None and go.number == self._own.number - 1:
            self._go = go.version

    def _released_now(self) -> None:
        self._apply_held(self._log.held)
        self._go = None
        self._outside = False
        if self.native and self._switch.prepared is not None:
            self.at = At.BOUNDARY
            self._do(Send(self._switch.promise(self.version)))
            return
        self.at = At.COMPUTING
        self._do(Begin(self.version, self.native))

    # Meetings.

    def _limited(self, index: int | None) -> None:
        if index != self._limit:
            self._limit = index
            self._do(SkipLimit(index))

    def _stands(self) -> None:
        """Where it has paused it applies what was closed before everybody had, and goes on once that is all."""
        self._apply_held(self._meeting.may_apply(self._log, self.version))
        end, paused = self._meeting.end, self._meeting.paused
        if end is not None and self._meeting.leaves and self.version >= end.version:
            self._meeting.meetings = end.meeting
            self.native = end.native
            # Whoever was away may come here late, with rounds from after the meeting.
            self.local = end.local if self.version == end.version else self.local
            self._switch.commit = None if self.native else self._switch.commit
            self.at = At.COMPUTING
            self._limited(None)
            if paused is not None and self.rank in (end.again or ()):
                self.at = At.MEETING
                self._do(Send(self._meeting.pauses_again(self._log.held)))
                return
            if self.native and self._switch.prepared is not None:
                self._do(Send(self._switch.promise(self.version + 1)))
            index = paused.index if paused is not None else 0
            self._do(Resume(self.version, self.native, 0 if end.index is None else end.index - index))
        elif end is None and paused is not None and paused.held < self._log.held:
            self._do(Send(self._meeting.pauses_again(self._log.held)))

    # What is to be done.

    def _do(self, action: Action) -> None:
        self._out.append(action)

    def _flushed(self) -> list[Action]:
        out, self._out = self._out, []
        return out
