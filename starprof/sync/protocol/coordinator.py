"""The coordinator's side of the round protocol: closes rounds as the policy decides, and heals what breaks.

Every rank applies the same results in the same order. Rules that make it so, whatever crashes, beside those of
`rounds.OpenRounds`:

- A rank that was taken for lost is void when it comes back, and gets another rank's state.
- Ranks are taken for lost only while the rest is a quorum (`Membership.can_spare`). A crash that the launcher vouches
  for needs none.
- A new coordinator first hears all ranks that are not lost. What any of them knows to be closed is closed.
- Where ranks step on their own (local-sgd, hierarchical), rounds are means of the states of all ranks that have not
  paused. Such steps begin and end with a round of everybody, or where all stand at one version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from starprof.sync.policies import NO_STEPS, Predicted, Woken
from starprof.sync.protocol.deciding import Deciding, PolicyMaker
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.messages import (
    Abort,
    Answer,
    Arrive,
    Failed,
    Go,
    Hello,
    Leave,
    Over,
    Pause,
    Prepare,
    Prepared,
    Refuse,
    Rejoin,
    ToCoordinator,
    ToRank,
    Welcome,
)
from starprof.sync.protocol.takeover import Standing, handed_in, standing

__all__ = ["Coordinator", "PolicyMaker"]


class Coordinator(Deciding):
    """Decides for a job of some ranks; `told`, `lost`, `gone` and `woken` return what is to be sent."""

    def __init__(self, ranks: Iterable[int], epoch: int = 1, lag: LagLimit | None = None) -> None:
        """Begin an epoch; nothing is decided before every rank has said hello.

        Args:
            ranks: of the job.
            epoch: greater than that of all coordinators before.
            lag: how far a rank may be behind before it has to take another one's state; None: any distance.
        """
        super().__init__(ranks, epoch, lag)
        self._hellos: dict[int, Hello] = {}

    # What happens.

    def told(self, message: ToCoordinator, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank has said something."""
        known = self.ranks[message.rank]
        if isinstance(message, Hello):
            self._met(message, now_s)
        elif not known.lost:
            self._heard(message, now_s)
        elif isinstance(message, Leave):
            self._membership.leaves(message.rank, message.version)
            self._part_when_all_are_there()
        elif isinstance(message, Arrive | Pause) and known.loss is None and not self._gathering:
            self._tell_to_rejoin(message.rank)
        return self._flushed()

    def _heard(self, message: ToCoordinator, now_s: float) -> None:
        """A rank that is not lost has said something else than hello."""
        match message:
            case Arrive() | Pause() if self._gathering:
                self._still_gathering(message)
            case Arrive():
                self._holds(message.rank, message.held)
                self.ranks[message.rank].iterations = message.iterations
                self.transfers.told(message.rank, message.sent, now_s)
                self._arrived(message.gradient, now_s)
            case Pause():
                self._paused(message, now_s)
            case Answer():
                self._rounds.answered(message)
            case Failed():
                self._rounds.failed(message.round, message.attempt)
            case Prepared():
                self._switch.promised(message)
                self._begin_rounds_when_ready()
            case Leave():
                self._membership.leaves(message.rank, message.version)
                self._without(message.rank, now_s)
            case Refuse():
                self._refused(message.reason, now_s)

    def disconnected(self, rank: int) -> list[tuple[int, ToRank]]:
        """A connection is gone; its rank may come back within its lease."""
        self._disconnected(rank)
        return self._flushed()

    def _disconnected(self, rank: int) -> None:
        self.ranks[rank].connected = False
        if self.ranks[rank].lost:
            self.ranks[rank].loss = None  # it may not have heard what it was told
            self._membership.keep_for(rank, None)
            self._part_when_all_are_there()

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
        else:
            self._disconnected(rank)
        return self._flushed()

    def woken(self, now_s: float) -> list[tuple[int, ToRank]]:
        """The time `wake_at_s` has come."""
        self._wakes_s, self._now_s = None, now_s
        if self.policy is not None and not self._meetings.under_way:
            self._decide(Woken(now_s))
        return self._flushed()

    def tick(self, now_s: float) -> list[tuple[int, ToRank]]:
        """Time goes by: are there ranks that wait for what will not come?"""
        reason = "" if self._gathering else self._meetings.passed_by(self.ranks, self.live, now_s)
        if reason:
            self._tell_all(Over(self.epoch, reason))
        return self._flushed()

    def switch(self, make: PolicyMaker | None, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """Change the mode: to rounds under another policy, or with None back to native steps.

        Native steps follow at the next meeting, or on a round that all have part in and that leaves all equally far.
        Where a rank has refused rounds, nothing but native steps follows.
        """
        self._go_to(None if self.refused else make, now_s)
        return self._flushed()

    def _go_to(self, make: PolicyMaker | None, now_s: float) -> None:
        before, self._make = self._make, make
        self._back = make is None and not self._native
        if self._gathering:
            return  # what the ranks are in the middle of is not known yet
        if not self._native:
            self._change(now_s)
        elif make is not None and not self.preparing:
            self._switch.prepare(self.epoch)
        elif make is None and before is not None:
            self._switch.abort(self.epoch)

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
        if not self._gathering:
            # Before a round is closed that it has no part in: that one is not to be asked for, and tried again.
            self._rounds.recover_all(rank)
            self._without(rank, now_s)
        self._holds_no_state(rank)
        if self._gathering:
            self._take_over(now_s)

    def _holds_no_state(self, rank: int) -> None:
        """Whoever gets its state may get a void one, or none at all."""
        for known in self.ranks.values():
            if known.holder == rank:
                known.loss = None
        self._tell_those_to_rejoin_who_wait()

    def _tell_those_to_rejoin_who_wait(self, *, at_once: bool = False) -> None:
        """There may be somebody now whose state they can get."""
        if self._gathering or self.policy is None:
            return
        for rank, known in self.ranks.items():
            if known.lost and known.connected and known.loss is None and not known.left:
                self._tell_to_rejoin(rank, at_once=at_once)

    def _mark(self, rank: int, *, lost: bool, held: int | None = None) -> None:
        self._membership.mark(rank, lost=lost, held=held)
        self._rounds.lost = self._membership.lost
        self._rounds.trim(self._membership.floor)

    def _see_who_is_too_far_behind(self) -> None:
        """They are told to take another rank's state, and nobody keeps for them what they miss."""
        while self.policy is not None and not self._gathering and self._lag.exceeded(self._membership.floor):
            rank = next(iter(self._membership.lowest), None)
            if rank is None or self.live == [rank]:
                return  # there is nobody else's state
            if self.ranks[rank].lost:
                self._membership.keep_for(rank, None)  # it takes too long to get a state: it is told again
            else:
                self._fall_behind(rank)

    def _fall_behind(self, rank: int) -> None:
        self._mark(rank, lost=True)
        self.ranks[rank].behind = True
        self._without(rank, 0.0)
        self._rounds.without(rank)
        self._holds_no_state(rank)
        if self.ranks[rank].connected:
            self._tell_to_rejoin(rank)

    # A rank comes, or comes back.

    def _refused(self, reason: str, now_s: float) -> None:
        """Back to native steps, and no rounds any more."""
        if not self.refused:
            self.refused = reason
            self._go_to(None, now_s)

    def _met(self, hello: Hello, now_s: float) -> None:
        known = self.ranks[hello.rank]
        known.connected = True
        # Whoever has still to apply the last round before native steps is as good as in them.
        known.in_rounds = not hello.native and (self._gathering or not self._native)
        known.iterations = hello.iterations
        if hello.refuses:
            self._refused(hello.refuses, now_s)
        if hello.done and not known.left:
            self._membership.leaves(hello.rank, hello.version)
            if not self._gathering:
                self._without(hello.rank, now_s)
        if known.lost:
            self._rejoin(hello)
        elif self._gathering:
            self._hellos[hello.rank] = hello
            self._take_over(now_s)
        else:
            self._caught_up(hello, now_s)
            self._tell_those_to_rejoin_who_wait()

    def _rejoin(self, hello: Hello) -> None:
        """A rank whose state is void gets another one's, and takes part again once it has it."""
        rank, known = hello.rank, self.ranks[hello.rank]
        if self._gathering or self.policy is None or hello.done:
            return  # asks again with its next hello: a native step can't be joined in its middle
        if known.loss is not None and (hello.epoch, hello.loss) != (self.epoch, known.loss):
            self._membership.keep_for(rank, self._membership.floor)
            return  # it has not heard the newest word yet
        if known.loss is None or not hello.pulled or hello.held < self._membership.floor:
            self._tell_to_rejoin(rank, at_once=True)
            return
        self._mark(rank, lost=False, held=hello.held)
        known.last_number, known.released = hello.number - 1, None
        self._rounds.void_before[rank] = hello.void_before
        self._tell_begun(rank)
        self._rounds.tell_again(rank, hello.held, hello.gives)
        self._meetings.tell_again(rank, self.epoch)
        self._count_in(rank)

    def _tell_begun(self, rank: int) -> None:
        """Rounds have begun: who gave it its state may not have heard so, nor what ranks do on that version."""
        commit = self._switch.commit
        if commit is not None:
            same = self._closed == commit.version
            self._tell(rank, replace(commit, local=self._local) if same else commit)

    def _tell_to_rejoin(self, rank: int, *, at_once: bool = False) -> None:
        """It needs another rank's state: of one that trains, and of the newest; it asks for it `at_once`, if it does.

        What follows on that state is kept for it until it has it.
        """
        others = [r for r in self._membership.here if self.ranks[r].connected]
        commit, known = self._switch.commit, self.ranks[rank]
        known.loss = None
        if not others:
            return  # nobody has a state that counts: the job starts again from its checkpoint
        version = max(self._membership.floor, commit.version if commit is not None else 0)
        self._rounds.serial += 1
        known.holder = max(others, key=lambda r: (not self.ranks[r].left, self.ranks[r].held, -r))
        known.loss = self._rounds.serial
        if at_once:
            self._membership.keep_for(rank, version)
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
        self._see_who_is_too_far_behind()
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
        elif self._switch.commit is not None and (hello.native or hello.commit is None):
            self._tell_begun(rank)
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
            self._paused(hello.paused, now_s)

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
            # Nobody knows of being let in again: the newest state that is whole counts, and the others get it.
            whole = [h for h in self._hellos.values() if h.pulled and not h.void and not h.done]
            if not whole:
                return
            self._mark(max(whole, key=lambda h: (h.held, -h.rank)).rank, lost=False)
        self._gathering = False
        self._rounds.void_before = {h.rank: h.void_before for h in self._hellos.values()}
        for hello in self._hellos.values():
            self._membership.holds(hello.rank, hello.in_state)
        hellos = [self._hellos[rank] for rank in self._membership.here]
        self.epoch = max([self.epoch, *(h.epoch + 1 for h in hellos if h.epoch > self.epoch)])
        self._tell_all(Welcome(self.epoch))
        stands = standing(hellos)
        self._closed = stands.version
        self._local = stands.local
        self._meetings.take_over(stands.meetings, stands.end)
        for close in stands.closes:
            self._rounds.add(replace(close, epoch=self.epoch))
            self._rounds.recover(close.round)
        if stands.native:
            self._local = NO_STEPS
            self._membership.back_to_native()
            self._switch.abort(self.epoch)
            self._hear_paused(hellos, now_s)
            if self._make is not None:
                self._switch.prepare(self.epoch)
            return
        self._resume(hellos, stands, now_s)
        # Those too that were lost and came back before all had said hello: then there was nothing to tell them yet.
        self._tell_those_to_rejoin_who_wait(at_once=True)

    def _resume(self, hellos: list[Hello], stands: Standing, now_s: float) -> None:
        """Go on with rounds that another coordinator began."""
        self._native = False
        if stands.commit is not None:
            self._switch.number = stands.commit.switch
            self._switch.commit = replace(stands.commit, epoch=self.epoch)
            for hello in hellos:
                if hello.native:
                    self._tell_begun(hello.rank)
        self._back = self._make is None
        self.policy = self._policy(self.live, self._closed)
        of_states = self._local.period > 0
        there = handed_in(hellos, lambda g: self._rounds.uses(g) or (g.steps > 0) is not of_states)
        for hello in hellos:
            self.ranks[hello.rank].last_number = hello.number - (2 if hello.rank in there.waiting else 1)
        if not of_states:
            self._carry_out(self.policy.inherit(there.kept))
        for hello in hellos:
            if hello.rank in there.waiting:
                self._arrived(there.waiting[hello.rank], now_s)
            elif hello.waits:
                # Its gradient is used; whatever the policy of before held it back for is not known any more.
                self._tell(hello.rank, Go(self.epoch, hello.number - 1, self._closed, kept=True))
        self._hear_paused(hellos, now_s)

    def _hear_paused(self, hellos: list[Hello], now_s: float) -> None:
        for hello in hellos:
            if hello.paused is not None:
                self._paused(hello.paused, now_s)
