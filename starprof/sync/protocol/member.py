"""A rank's side of the round protocol: what it is told, and says of itself. No socket, no thread, no tensor.

The engine tells what has happened (methods) and carries out what comes back (`Action`s). Its threads share one member,
behind the engine's lock. What the training thread may do then is in `stepping`, who holds which result in `results`.
"""

from __future__ import annotations

from starprof.sync.policies import NO_STEPS, LocalSteps
from starprof.sync.protocol.actions import (
    Action,
    Apply,
    Begin,
    Deliver,
    Fetch,
    GiveUp,
    PullState,
    Reduce,
    Resume,
    Send,
    SkipLimit,
)
from starprof.sync.protocol.messages import (
    Abort,
    Arrive,
    Close,
    Commit,
    Gathered,
    Go,
    Hello,
    Leave,
    Meet,
    Over,
    Parted,
    Pause,
    Prepare,
    Query,
    Refuse,
    Rejoin,
    Take,
    ToRank,
    Welcome,
    Wished,
)
from starprof.sync.protocol.stepping import At, Stepping
from starprof.sync.protocol.switching import SwitchAtRank
from starprof.sync.transfers import Sent

__all__ = [
    "Action",
    "Apply",
    "At",
    "Begin",
    "Deliver",
    "Fetch",
    "GiveUp",
    "Member",
    "PullState",
    "Reduce",
    "Resume",
    "Send",
    "SkipLimit",
]


class Member(Stepping):
    """One rank in the protocol.

    Attributes:
        epoch: newest that it belongs to.
    """

    def __init__(self, rank: int, world: tuple[int, ...], *, version: int = 0) -> None:
        """Begin in native steps, with the first one allowed."""
        super().__init__(rank, world, version)
        self.epoch = 0
        # Of the newest word on what was decided: its serial, and who was taken for lost then.
        self._newest: tuple[int, tuple[int, ...]] = (0, ())
        self._loss = 0
        self._refuses = ""
        self._wished: Wished | None = None

    # What the training thread tells.

    def boundary(self) -> list[Action]:
        """It stands before its next step: `Begin` comes back, now or after another event."""
        if self.at is At.COMPUTING:
            self._do(Begin(self.version, self.native))  # allowed already, by the end of a step or of a meeting
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

    def gradient(
        self, samples: int = 1, iterations: int | None = None, steps: int = 0, sent: tuple[Sent, ...] = ()
    ) -> list[Action]:
        """Its gradient of this step is there, or its state after steps of its own, and it waits.

        Args:
            samples: that the gradient is the mean of.
            iterations: of the loop with this one, skipped ones too. Without it, native steps may follow on any round
                that all have part in; with it, only where all are equally far.
            steps: of its own since this version; 0: it is a gradient.
            sent: what is known of its part in reductions since it last told.
        """
        gradient = self._own.next(self.version, samples, iterations, steps)
        if self.void:
            return self._asks_for_state()  # it was computed on a state that is void, and goes with it
        self.at = At.WAITING
        self._go = None
        self._do(Send(Arrive(self.rank, gradient, self._log.held, iterations, sent)))
        return self._flushed()

    def pause(self, index: int, place: str = "") -> list[Action]:
        """It stands where all ranks come together, such as the end of an epoch, instead of computing its next gradient.

        `Resume` comes back. In native steps it does so without the others: they take the same steps, and stand at the
        same place after the same number of them. Else it comes once all others have paused too, with the same version
        everywhere; a rank that has to pull another one's state on the way may `Begin` instead, and pause again if that
        state's place is still before the meeting.

        Args:
            index: loop iterations behind it, skipped ones too. The others may skip as far, and no further.
            place: the collective that it stands before; "" at the end of an epoch. Where others stand at the end of an
                epoch, those go on first, and it waits until they come to a collective too.
        """
        if self.void:
            return self._asks_for_state()
        if self.native and self.at is At.COMPUTING:
            self._do(Resume(self.version, native=True))
            return self._flushed()
        self.at = At.MEETING
        self._meeting.paused = Pause(self.rank, self.meetings + 1, index, self._log.held, place)
        if not self.native:
            self._do(Send(self._meeting.paused))
        self._move_on()
        return self._flushed()

    def refuse(self, reason: str) -> list[Action]:
        """Its loop has turned out to be one that can't be in rounds: the job goes back to native steps."""
        self._refuses = reason
        self._do(Send(Refuse(self.rank, reason)))
        return self._flushed()

    def done(self) -> list[Action]:
        """Its training is over."""
        self.at = At.DONE
        self._do(Send(Leave(self.rank, self.version)))
        return self._flushed()

    def pulled(
        self, version: int, log: list[Close], meetings: int | None = None, local: LocalSteps | None = None
    ) -> list[Action]:
        """Another rank's state is here.

        Args:
            version: of its parameters.
            log: rounds that it holds beyond.
            meetings: that are behind it (`Member.meetings`); None: as many as behind this rank.
            local: steps of their own that ranks make on it (`Member.local`); None: gradients are handed in.
        """
        if self.at is not At.PULLING:
            return []
        self.version = version
        self.local = local or NO_STEPS
        self._results.restart(version, log)
        self._own.void()
        self._switch = SwitchAtRank(self.rank)
        self._meeting.gathered = None
        self.at = At.WAITING
        self._go = None
        self._outside = True
        self._meeting.meetings = self.meetings if meetings is None else meetings
        self._do(Send(self.hello()))
        return self._flushed()

    # What the data plane tells.

    def reduced(self, close: Close) -> list[Action]:
        """A reduction has come to its end here, of what this word on its round says."""
        if not self.void and self._results.reduced(close):
            self._move_on()
        return self._flushed()

    def reduction_failed(self, number: int, attempt: int) -> list[Action]:
        """A reduction has failed here."""
        self._results.reduction_failed(number, attempt)
        return self._flushed()

    def received(self, close: Close) -> list[Action]:
        """Another rank has sent a result."""
        if not self.void and self._results.received(close):
            self._noted(close)
            self._move_on()
        return self._flushed()

    def asked(self, rank: int, number: int) -> list[Action]:
        """Another rank wants a round's result: it gets it now, or as soon as it is here."""
        if not self.void:
            self._results.asked(rank, number)
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
            log.closes,
            log.also_held,
            tuple(self._own.open),
            self.at is At.WAITING and self._go is None,
            self.native,
            self._switch.commit,
            self.at is At.DONE,
            *self._newest,
            self._own.number,
            self._outside,
            self._loss,
            self.void,
            self._own.void_before,
            self.meetings,
            self._meeting.paused if self.at is At.MEETING and not self.native else None,
            self._meeting.gathered,
            self._own.iterations,
            log.entries[log.held - 1].close.local if log.held > self.version else self.local,
            self._refuses,
            self._wished,
            self.version,
        )

    def told(self, message: ToRank) -> list[Action]:
        """The coordinator has said something."""
        if not self._heard(message):
            return []
        match message:
            case Close():
                self._closed(message)
            case Go():
                self._released(message)
            case Query():
                self._results.queried(message)
            case Take():
                self._results.told_to_take(message)
            case Prepare() | Commit() | Abort():
                self._switching(message)
            case Rejoin() if self.at is not At.DONE:
                self._voided(message)
            case Meet() | Gathered() | Over():
                self._of_meetings(message)
            case Wished():
                self._wished = message
            case Welcome() | Rejoin() | Parted():
                pass
        self._move_on()
        return self._flushed()

    # What follows.

    def _heard(self, message: ToRank) -> bool:
        """Whether it is to be acted on: what is said on rounds to a void rank is said again once it has a state."""
        if message.epoch < self.epoch:
            return False
        self.epoch = message.epoch
        return not self.void or isinstance(message, Rejoin | Over | Wished)

    def _voided(self, rejoin: Rejoin) -> None:
        """Its state counts no more. While it computes another one's would only grow old: it asks when it has done."""
        self._loss = rejoin.loss
        self._results.restart(self.version)
        self._limited(None)
        if self.at is At.VOID or (self.at is At.COMPUTING and not self.native):
            self.at = At.VOID
            return
        self.at = At.PULLING
        self.native = False
        self._do(PullState(rejoin.holder, rejoin.version))

    def _asks_for_state(self) -> list[Action]:
        if self.at is At.VOID:
            self.at = At.PULLING
            self._do(Send(self.hello()))
        return self._flushed()

    def _of_meetings(self, message: Meet | Gathered | Over) -> None:
        match message:
            case Meet() if message.meeting > self.meetings:
                self._limited(message.index)
            case Gathered():
                self._decided_without(message)
                self._meeting.over(message)
            case Over():
                self._do(GiveUp(message.reason))

    def _closed(self, close: Close) -> None:
        self._decided_without(close)
        self._results.closed(close, self.version)
        self._noted(close)

    def _decided_without(self, word: Close | Gathered) -> None:
        """What it was decided without, the next coordinator is to know: else it would let them go on beside it."""
        if word.serial > self._newest[0]:
            self._newest = word.serial, word.lost
