"""The coordinator's side of the round protocol: closes rounds as the policy decides, and heals what breaks.

Every rank applies the same results in the same order. Rules that make it so, whatever crashes, beside those of
`rounds.OpenRounds`:

- A rank that was taken for lost is void when it comes back, and gets another rank's state.
- Ranks are taken for lost only while the rest is a quorum (`Membership.can_spare`). A crash that the launcher vouches
  for needs none.
- A new coordinator first hears all ranks that are not lost. What any of them knows to be closed is closed.

Modes whose workers step on their own between averagings (local-sgd, hierarchical) are not carried out by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from starprof.sync.policies import Decision, Joined, Predicted, Woken
from starprof.sync.protocol.deciding import Deciding, PolicyMaker
from starprof.sync.protocol.messages import (
    Abort,
    Answer,
    Arrive,
    Failed,
    Go,
    Hello,
    Leave,
    Pause,
    Prepare,
    Prepared,
    Rejoin,
    ToCoordinator,
    ToRank,
    Welcome,
)
from starprof.sync.protocol.takeover import Standing, handed_in, standing

__all__ = ["Coordinator", "PolicyMaker"]


class Coordinator(Deciding):
    """Decides for a job of some ranks; `told`, `lost`, `gone` and `woken` return what is to be sent."""

    def __init__(self, ranks: Iterable[int], epoch: int = 1) -> None:
        """Begin an epoch; nothing is decided before every rank has said hello."""
        super().__init__(ranks, epoch)
        self._hellos: dict[int, Hello] = {}

    # What happens.

    def told(self, message: ToCoordinator, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank has said something."""
        known = self.ranks[message.rank]
        if isinstance(message, Hello):
            self._met(message, now_s)
        elif not known.lost:
            match message:
                case Arrive() | Pause() if self._gathering:
                    self._still_gathering(message)
                case Arrive():
                    self._holds(message.rank, message.held)
                    known.iterations = message.iterations
                    self._arrived(message.gradient, now_s)
                case Pause():
                    self._paused(message)
                case Answer():
                    self._rounds.answered(message)
                case Failed():
                    self._rounds.failed(message.round, message.attempt)
                case Prepared():
                    self._switch.promised(message)
                    self._begin_rounds_when_ready()
                case Leave():
                    known.left = True
                    self._without(message.rank, now_s)
        return self._flushed()

    def disconnected(self, rank: int) -> list[tuple[int, ToRank]]:
        """A connection is gone; its rank may come back within its lease."""
        self.ranks[rank].connected = False
        return self._flushed()

    def lease_over(self, rank: int, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank has not been heard of for too long; it is taken for lost where the rest is a quorum.

        A native step needs everybody, so nobody is lost in between; but a switch must not wait for a silent rank.
        """
        if self.can_spare(rank):
            self._lose(rank, now_s)
        elif self.preparing:
            self._switch.abort(self.epoch)
        return self._flushed()

    def gone(self, rank: int, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank's process has ended, its launcher says."""
        if not self.ranks[rank].lost:
            self._lose(rank, now_s)
        return self._flushed()

    def woken(self, now_s: float) -> list[tuple[int, ToRank]]:
        """The time `wake_at_s` has come."""
        self.wake_at_s = None
        if self.policy is not None and not self._meetings.under_way:
            self._decide(Woken(now_s))
        return self._flushed()

    def switch(self, make: PolicyMaker | None, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """Change the mode: to rounds under another policy, or with None back to native steps.

        Native steps follow at the next meeting, or on a round that all have part in and that leaves all equally far.
        """
        before, self._make = self._make, make
        self._back = make is None and not self._native
        if self._gathering:
            return []  # what the ranks are in the middle of is not known yet
        if not self._native:
            self._change(now_s)
        elif make is not None and not self.preparing:
            self._switch.prepare(self.epoch)
        elif make is None and before is not None:
            self._switch.abort(self.epoch)
        return self._flushed()

    def predicted(self, iteration_s: Mapping[int, float], now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """How long each rank's next iterations are expected to take; modes that go by it are told, later ones too."""
        self._iteration_s = dict(iteration_s)
        if self.policy is not None and not self._meetings.under_way:
            self._decide(Predicted(self._iteration_s, now_s))
        return self._flushed()

    # Who takes part.

    def can_spare(self, rank: int) -> bool:
        """Whether the others may go on without a rank that is only silent."""
        if self._gathering and (not self._hellos or standing(list(self._hellos.values())).native):
            return False
        return self._membership.can_spare(rank)

    def _lose(self, rank: int, now_s: float) -> None:
        self._mark(rank, lost=True)
        self.ranks[rank].connected = False
        self._hellos.pop(rank, None)
        for known in self.ranks.values():
            if known.holder == rank:
                known.loss = None  # the state it gets may be void
        if self._gathering:
            self._take_over(now_s)
            return
        self._without(rank, now_s)
        self._rounds.recover_all()

    def _mark(self, rank: int, *, lost: bool) -> None:
        self.ranks[rank].lost = lost
        self.ranks[rank].loss = None
        self._rounds.lost = self._membership.lost

    # A rank comes, or comes back.

    def _met(self, hello: Hello, now_s: float) -> None:
        known = self.ranks[hello.rank]
        known.connected = True
        # Whoever has still to apply the last round before native steps is as good as in them.
        known.in_rounds = not hello.native and (self._gathering or not self._native)
        known.iterations = hello.iterations
        if hello.done and not known.left:
            known.left = True
            if not self._gathering:
                self._without(hello.rank, now_s)
        if known.lost:
            self._rejoin(hello)
        elif self._gathering:
            self._hellos[hello.rank] = hello
            self._take_over(now_s)
        else:
            self._caught_up(hello, now_s)

    def _rejoin(self, hello: Hello) -> None:
        """A rank whose state is void gets another one's, and takes part again once it has it."""
        rank, floor, known = hello.rank, self._membership.floor, self.ranks[hello.rank]
        if self._gathering or self.policy is None or hello.done:
            return  # asks again with its next hello: a native step can't be joined in its middle
        commit = self._switch.commit
        if not hello.pulled or hello.loss != known.loss or hello.held < floor:
            self._tell_to_rejoin(rank)
            return
        self._mark(rank, lost=False)
        known.held, known.last_number, known.released = hello.held, hello.number - 1, None
        self._rounds.void_before[rank] = hello.void_before
        if commit is not None:
            self._tell(rank, commit)
        self._rounds.tell_again(rank, hello.held, hello.gives)
        self._meetings.tell_again(rank, self.epoch)
        if self._meetings.under_way:
            self._carry_out(Decision(release=(rank,)))
        else:
            self._decide(Joined(rank))

    def _tell_to_rejoin(self, rank: int) -> None:
        others = [r for r in self._membership.here if self.ranks[r].connected]
        if not others:
            return  # nobody has a state that counts: the job starts again from its checkpoint
        commit, known = self._switch.commit, self.ranks[rank]
        version = max(self._membership.floor, commit.version if commit is not None else 0)
        self._rounds.serial += 1
        known.loss, known.holder = self._rounds.serial, others[0]
        self._out.append((rank, Rejoin(self.epoch, version, known.holder, known.loss)))

    def _flushed(self) -> list[tuple[int, ToRank]]:
        while self._rounds.unhealable:
            rank = self._rounds.unhealable.pop()
            connected = self.ranks[rank].connected
            if rank in self._here():
                self._lose(rank, 0.0)
                self.ranks[rank].connected = connected
                if connected:
                    self._tell_to_rejoin(rank)
        return super()._flushed()

    def _still_gathering(self, message: Arrive | Pause) -> None:
        """What comes before all have said hello is as if its rank had said so in its own."""
        hello = self._hellos.get(message.rank)
        if hello is None:
            return
        if isinstance(message, Pause):
            self._hellos[message.rank] = replace(hello, paused=message, native=False, held=message.held)
        elif message.gradient.number >= hello.number:
            self._hellos[message.rank] = replace(
                hello,
                handed_in=(*hello.handed_in, message.gradient),
                waits=True,
                native=False,
                number=message.gradient.number + 1,
                held=message.held,
                paused=None,
                iterations=message.iterations,
            )

    def _caught_up(self, hello: Hello, now_s: float) -> None:
        """Say again what was said while a rank could not hear it."""
        rank = hello.rank
        self._tell(rank, Welcome(self.epoch))
        self._rounds.tell_again(rank, hello.held, hello.gives)
        if self.preparing:
            self._tell(rank, Prepare(self.epoch, self._switch.number))
        elif self._switch.commit is not None and hello.native:
            self._tell(rank, self._switch.commit)
        elif hello.native and self._native:
            self._tell(rank, Abort(self.epoch, self._switch.number))
            if self._make is not None and all(self.ranks[r].connected for r in self.live):
                self._switch.prepare(self.epoch)
        known = self.ranks[rank]
        if known.released is not None:
            self._tell(rank, Go(self.epoch, *known.released))
        for gradient in hello.handed_in:
            self._arrived(gradient, now_s)
        self._meetings.tell_again(rank, self.epoch)
        if hello.paused is not None:
            self._paused(hello.paused)

    # Another coordinator's reign is over.

    def _take_over(self, now_s: float) -> None:
        """Begin, once every rank that is not lost has said hello."""
        if not self._gathering or any(rank not in self._hellos for rank in self._membership.here) or not self._hellos:
            return
        newest = max(self._hellos.values(), key=lambda hello: hello.serial)
        self._rounds.serial = newest.serial
        void = {h.rank for h in self._hellos.values() if h.void or h.pulled}
        for rank in sorted(void.union(newest.lost)):
            self._mark(rank, lost=True)
        if not self._membership.here:
            return
        self._gathering = False
        self._rounds.void_before = {h.rank: h.void_before for h in self._hellos.values()}
        hellos = [self._hellos[rank] for rank in self._membership.here]
        self.epoch = max([self.epoch, *(h.epoch + 1 for h in hellos if h.epoch > self.epoch)])
        self._tell_all(Welcome(self.epoch))
        stands = standing(hellos)
        self._closed = stands.version
        self._meetings.take_over(stands.meetings, stands.end)
        for close in stands.closes:
            self._rounds.add(replace(close, epoch=self.epoch))
            self._rounds.recover(close.round)
        if stands.native:
            self._membership.back_to_native()
            self._switch.abort(self.epoch)
            self._hear_paused(hellos)
            if self._make is not None:
                self._switch.prepare(self.epoch)
            return
        self._resume(hellos, stands, now_s)
        for rank in self._membership.lost:
            if rank in self._hellos:
                self._rejoin(self._hellos[rank])

    def _resume(self, hellos: list[Hello], stands: Standing, now_s: float) -> None:
        """Go on with rounds that another coordinator began."""
        self._native = False
        if stands.commit is not None:
            self._switch.number = stands.commit.switch
            self._switch.commit = commit = replace(stands.commit, epoch=self.epoch)
            for hello in hellos:
                if hello.native:
                    self._tell(hello.rank, commit)
        self._back = self._make is None
        self.policy = self._policy(self.live, self._closed)
        there = handed_in(hellos, self._rounds.uses)
        for hello in hellos:
            self.ranks[hello.rank].last_number = hello.number - (2 if hello.rank in there.waiting else 1)
        self._carry_out(self.policy.inherit(there.kept))
        for hello in hellos:
            if hello.rank in there.waiting:
                self._arrived(there.waiting[hello.rank], now_s)
            elif hello.waits:
                # Its gradient is used; whatever the policy of before held it back for is not known any more.
                self._tell(hello.rank, Go(self.epoch, hello.number - 1, self._closed, kept=True))
        self._hear_paused(hellos)

    def _hear_paused(self, hellos: list[Hello]) -> None:
        for hello in hellos:
            if hello.paused is not None:
                self._paused(hello.paused)
