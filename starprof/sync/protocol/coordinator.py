"""The coordinator's side of the round protocol: closes rounds as the policy decides, and heals what breaks.

Every rank applies the same results in the same order. Rules that make it so, whatever crashes, beside those of
`rounds.OpenRounds`:

- A rank that was taken for lost is void when it comes back, and gets another rank's state.
- Ranks are taken for lost only while the rest is a quorum: more than half, or half with the lowest rank. A crash that
  the launcher vouches for needs none.
- A new coordinator first hears all ranks that are not lost. What any of them knows to be closed is closed.

Modes whose workers step on their own between averagings (local-sgd, hierarchical) are not carried out by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from starprof.sync.policies import Arrived, Decision, Event, Gradient, Joined, Left, Policy, Update, Woken
from starprof.sync.policies.ssgd import Ssgd
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
    Rejoin,
    ToCoordinator,
    ToRank,
    Welcome,
)
from starprof.sync.protocol.rounds import OpenRounds

PolicyMaker = Callable[[Iterable[int], int], Policy]
"""Makes the policy of a mode for some ranks from a version on."""

MIN_NATIVE_STEPS = 2
"""DDP rebuilds its buckets in its second step, with a collective of its own."""


@dataclass(slots=True)
class _Rank:
    """What is known of a rank."""

    connected: bool = False
    lost: bool = False
    left: bool = False
    in_rounds: bool = False
    released: tuple[int, int, bool] | None = None
    last_number: int = -1
    held: int = 0


class Coordinator:
    """Decides for a job of some ranks; `told`, `lost`, `gone` and `woken` return what is to be sent."""

    def __init__(self, ranks: Iterable[int], epoch: int = 1) -> None:
        """Begin an epoch; nothing is decided before every rank has said hello."""
        self.epoch = epoch
        self.ranks = {rank: _Rank() for rank in ranks}
        self.policy: Policy | None = None
        self.wake_at_s: float | None = None
        self.history: list[Update] = []
        self._make: PolicyMaker | None = None
        self._rounds = OpenRounds(self._tell, lambda: self.here, self._stay_in_rounds)
        self._hellos: dict[int, Hello] = {}
        self._gathering = True
        self._native = True
        self._closed = 0
        self._switch = 0
        self._prepared: dict[int, int] | None = None
        self._commit: Commit | None = None
        self._back = False
        self._out: list[tuple[int, ToRank]] = []

    # What happens.

    def told(self, message: ToCoordinator, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank has said something."""
        known = self.ranks[message.rank]
        if isinstance(message, Hello):
            self._met(message, now_s)
        elif not known.lost:
            match message:
                case Arrive() if self._gathering:
                    self._still_gathering(message)
                case Arrive():
                    self._holds(message.rank, message.held)
                    self._arrived(message.gradient, now_s)
                case Answer():
                    self._rounds.answered(message)
                case Failed():
                    self._rounds.failed(message.round, message.attempt)
                case Prepared():
                    self._ready(message)
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
        elif self._prepared is not None:
            self._prepared = None
            self._tell_all(Abort(self.epoch, self._switch))
        return self._flushed()

    def gone(self, rank: int, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """A rank's process has ended, its launcher says."""
        if not self.ranks[rank].lost:
            self._lose(rank, now_s)
        return self._flushed()

    def woken(self, now_s: float) -> list[tuple[int, ToRank]]:
        """The time `wake_at_s` has come."""
        self.wake_at_s = None
        if self.policy is not None and not self._gathering:
            self._decide(Woken(now_s))
        return self._flushed()

    def switch(self, make: PolicyMaker | None, now_s: float = 0.0) -> list[tuple[int, ToRank]]:
        """Change the mode: to rounds under another policy, or with None back to native steps."""
        before, self._make = self._make, make
        self._back = make is None and not self._native
        if self._gathering:
            return []  # what the ranks are in the middle of is not known yet
        if not self._native:
            self._change(now_s)
        elif make is not None and self._prepared is None:
            self._prepare()
        elif make is None and before is not None:
            self._prepared = None
            self._tell_all(Abort(self.epoch, self._switch))
        return self._flushed()

    # Who takes part.

    @property
    def here(self) -> list[int]:
        """Ranks that are not lost; those whose training is over still answer and hand out results."""
        return [rank for rank, known in self.ranks.items() if not known.lost]

    @property
    def live(self) -> list[int]:
        """Ranks that are not lost and still train."""
        return [rank for rank in self.here if not self.ranks[rank].left]

    def can_spare(self, rank: int) -> bool:
        """Whether the others may go on without a rank that is only silent."""
        if self.ranks[rank].lost or self.ranks[rank].left or not self._in_rounds:
            return False
        everybody = self.live
        reached = [r for r in everybody if r != rank and self.ranks[r].connected]
        return 2 * len(reached) > len(everybody) or (2 * len(reached) == len(everybody) and everybody[0] in reached)

    @property
    def preparing(self) -> bool:
        """Whether ranks hold still for a switch to rounds."""
        return self._prepared is not None

    @property
    def _in_rounds(self) -> bool:
        """Whether the last native step is over: a rank that has come to rounds has had everybody's part of it."""
        return any(known.in_rounds for known in self.ranks.values())

    def _lose(self, rank: int, now_s: float) -> None:
        self._mark(rank, lost=True)
        self.ranks[rank].connected = False
        self._hellos.pop(rank, None)
        if self._gathering:
            self._take_over(now_s)
            return
        self._without(rank, now_s)
        self._rounds.recover_all()

    def _mark(self, rank: int, *, lost: bool) -> None:
        self.ranks[rank].lost = lost
        self._rounds.lost = tuple(r for r, known in self.ranks.items() if known.lost)

    def _without(self, rank: int, now_s: float) -> None:
        """Go on without a rank that is lost or has left."""
        if self._prepared is not None:
            self._prepared.pop(rank, None)
            self._commit_when_ready(now_s)
        if self.policy is not None and rank in self.policy.members:
            self._decide(Left(rank, now_s))

    # A rank comes, or comes back.

    def _met(self, hello: Hello, now_s: float) -> None:
        known = self.ranks[hello.rank]
        known.connected = True
        known.in_rounds = not hello.native
        if hello.done and not known.left:
            known.left = True
            if not self._gathering:
                self._without(hello.rank, now_s)
        if known.lost:
            self._rejoin(hello, now_s)
        elif self._gathering:
            self._hellos[hello.rank] = hello
            self._take_over(now_s)
        else:
            self._caught_up(hello, now_s)

    def _rejoin(self, hello: Hello, now_s: float) -> None:
        """A rank whose state is void gets another one's, and takes part again once it has it."""
        rank = hello.rank
        others = [r for r in self.here if self.ranks[r].connected]
        if self._gathering or self._native or self.policy is None:
            return  # asks again with its next hello: a native step can't be joined in its middle
        if not hello.pulled or hello.held < self._floor:
            if not others:
                return  # nobody has a state that counts: the job starts again from its checkpoint
            begun = self._commit.version if self._commit is not None else 0
            self._out.append((rank, Rejoin(self.epoch, max(begun, self._floor), others[0])))
            return
        self._mark(rank, lost=False)
        self.ranks[rank].held = hello.held
        self.ranks[rank].last_number = hello.number - 1
        self._rounds.tell_again(rank, hello.held, hello.also_held)
        self._decide(Joined(rank, now_s))

    def _still_gathering(self, message: Arrive) -> None:
        """A gradient that comes before all have said hello is as if its rank had said so in its own."""
        hello, number = self._hellos.get(message.rank), message.gradient.number
        if hello is not None and number >= hello.number:
            handed_in = (*hello.handed_in, message.gradient)
            hello = replace(hello, handed_in=handed_in, waits=True, native=False, number=number + 1, held=message.held)
            self._hellos[message.rank] = hello

    def _caught_up(self, hello: Hello, now_s: float) -> None:
        """Say again what was said while a rank could not hear it."""
        rank = hello.rank
        self._tell(rank, Welcome(self.epoch))
        self._rounds.tell_again(rank, hello.held, hello.also_held)
        if self._prepared is not None:
            self._tell(rank, Prepare(self.epoch, self._switch))
        elif self._commit is not None and hello.native:
            self._tell(rank, self._commit)
        elif hello.native and self._native:
            self._tell(rank, Abort(self.epoch, self._switch))
            if self._make is not None and all(self.ranks[r].connected for r in self.live):
                self._prepare()
        known = self.ranks[rank]
        if known.released is not None:
            self._tell(rank, Go(self.epoch, *known.released))
        for gradient in hello.handed_in:
            self._arrived(gradient, now_s)

    def _take_over(self, now_s: float) -> None:
        """Begin, once every rank that is not lost has said hello."""
        if not self._gathering or any(rank not in self._hellos for rank in self.here) or not self._hellos:
            return
        newest = max(self._hellos.values(), key=lambda hello: hello.serial)
        self._rounds.serial = newest.serial
        for rank in newest.lost:
            self._mark(rank, lost=True)
        if not self.here:
            return
        self._gathering = False
        hellos = [self._hellos[rank] for rank in self.here]
        self.epoch = max([self.epoch, *(h.epoch + 1 for h in hellos if h.epoch > self.epoch)])
        self._tell_all(Welcome(self.epoch))
        commits = [h.commit for h in hellos if h.commit is not None]
        rounds = bool(commits) or any(not h.native for h in hellos)
        self._closed = max([h.held for h in hellos] + [c.round + 1 for h in hellos for c in h.closes])
        if not rounds:
            self._tell_all(Abort(self.epoch, self._switch))
            if self._make is not None:
                self._prepare()
            return
        self._resume(hellos, max(commits, key=lambda c: c.switch) if commits else None, now_s)
        for rank in newest.lost:
            if rank in self._hellos:
                self._rejoin(self._hellos[rank], now_s)

    def _resume(self, hellos: list[Hello], commit: Commit | None, now_s: float) -> None:
        """Go on with rounds that another coordinator began."""
        self._native = False
        if commit is not None:
            self._switch = commit.switch
            self._commit = replace(commit, epoch=self.epoch)
            self._closed = max(self._closed, commit.version)
            for hello in hellos:
                if hello.native:
                    self._tell(hello.rank, self._commit)
        newest: dict[int, Close] = {}
        for close in (c for h in hellos for c in h.closes):
            if close.round not in newest or close.attempt > newest[close.round].attempt:
                newest[close.round] = close
        for number in sorted(newest):
            if any(number >= h.held for h in hellos):
                self._rounds.add(replace(newest[number], epoch=self.epoch))
                self._rounds.recover(number)
        self._back = self._make is None
        self.policy = self._policy(self.live, self._closed)
        self._take_in(hellos, now_s)

    def _take_in(self, hellos: list[Hello], now_s: float) -> None:
        """What ranks have handed in to the coordinator before, and whoever still waits for its word."""
        assert self.policy is not None
        unused = {h.rank: [g for g in h.handed_in if not self._rounds.uses(g)] for h in hellos}
        waiting = {
            h.rank: unused[h.rank].pop()
            for h in hellos
            if h.waits and unused[h.rank] and unused[h.rank][-1].number == h.number - 1
        }
        self._carry_out(self.policy.inherit([g for rank in self.live for g in unused[rank]]))
        for hello in hellos:
            if hello.rank in waiting:
                self._arrived(waiting[hello.rank], now_s)
            elif hello.waits:
                # Its gradient is used; whatever the policy of before held it back for is not known any more.
                self._tell(hello.rank, Go(self.epoch, hello.number - 1, self._closed, kept=True))

    # Native steps and rounds.

    def _prepare(self) -> None:
        self._switch += 1
        self._prepared = {}
        self._tell_all(Prepare(self.epoch, self._switch))

    def _ready(self, message: Prepared) -> None:
        if self._prepared is not None and message.switch == self._switch:
            self._prepared[message.rank] = message.version
            self._commit_when_ready(0.0)

    def _commit_when_ready(self, now_s: float) -> None:  # noqa: ARG002
        if self._prepared is None or not self.live or any(rank not in self._prepared for rank in self.live):
            return
        version = max(MIN_NATIVE_STEPS, *self._prepared.values())
        self._prepared = None
        self._native = False
        self._closed = version
        self._commit = Commit(self.epoch, self._switch, version)
        assert self._make is not None
        self.policy = self._make(self.live, version)
        self._tell_all(self._commit)

    def _change(self, now_s: float) -> None:
        """Another policy from the next round on; what has been handed in goes over to it."""
        old = self.policy
        if old is None:
            return
        self._carry_out(old.wind_up())
        self.policy = self._policy(old.members, old.version)
        for gradient in old.waiting.values():
            self._decide(Arrived(gradient, now_s))

    def _policy(self, ranks: Iterable[int], version: int) -> Policy:
        """Of the mode that is wanted; on the way back to native steps, rounds of everybody."""
        return Ssgd(ranks, version=version) if self._make is None else self._make(ranks, version)

    def _stay_in_rounds(self) -> None:
        """The way back to native steps is closed: one of the ranks that they need is lost."""
        self._native = False
        self.policy = self._policy(self.live, self._closed)

    # Rounds.

    def _holds(self, rank: int, held: int) -> None:
        """A rank holds all rounds before `held`; what all hold need not be remembered."""
        self.ranks[rank].held = max(held, self.ranks[rank].held)
        self._rounds.trim(self._floor)

    @property
    def _floor(self) -> int:
        return min((self.ranks[rank].held for rank in self.here), default=0)

    def _arrived(self, gradient: Gradient, now_s: float) -> None:
        known = self.ranks[gradient.worker]
        if self.policy is None or self._gathering or gradient.number <= known.last_number:
            return
        if gradient.worker not in self.policy.members:
            return
        known.last_number = gradient.number
        known.in_rounds = True
        known.released = None
        self._decide(Arrived(gradient, now_s))

    def _decide(self, event: Event) -> None:
        assert self.policy is not None
        self._carry_out(self.policy.decide(event))

    def _carry_out(self, decision: Decision) -> None:
        assert self.policy is not None
        self.history += decision.updates
        if decision.wake_at_s is not None:
            self.wake_at_s = decision.wake_at_s
        release = [rank for rank in decision.release if rank in self.ranks and not self.ranks[rank].lost]
        for place, update in enumerate(decision.updates):
            last = place == len(decision.updates) - 1
            self._close(update, tuple(release) if last else ())
        dropped = {(g.worker, g.number) for g in decision.dropped}
        for rank in release:
            known = self.ranks[rank]
            known.released = (known.last_number, self.policy.version, (rank, known.last_number) not in dropped)
            if not decision.updates:
                self._tell(rank, Go(self.epoch, *known.released))
        if self._native:
            self.policy = None

    def _close(self, update: Update, release: tuple[int, ...]) -> None:
        assert self.policy is not None
        native = self._back and self._all_fresh(update)
        close = Close(self.epoch, update.onto, 0, update.gradients, update.weights, release, native, self._floor)
        self._closed = update.onto + 1
        self._rounds.add(close)
        if native:
            self._native, self._back = True, False
            self._make = self._commit = None
            for known in self.ranks.values():
                known.in_rounds = False

    def _all_fresh(self, update: Update) -> bool:
        """Whether everybody is equally far after it."""
        return set(update.contributors) == set(self.live) == set(self.ranks) and not any(update.staleness)

    # Saying it.

    def _tell(self, rank: int, message: ToRank) -> None:
        if self.ranks[rank].connected and not self.ranks[rank].lost:
            self._out.append((rank, message))

    def _tell_all(self, message: ToRank) -> None:
        for rank in self.here:
            self._tell(rank, message)

    def _flushed(self) -> list[tuple[int, ToRank]]:
        out, self._out = self._out, []
        return out
