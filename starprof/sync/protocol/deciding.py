"""What a coordinator decides once it knows where the job stands: rounds, meetings, the way to native steps and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from starprof.errors import UsageError
from starprof.sync.policies import (
    NO_STEPS,
    NOTHING,
    Arrived,
    Decision,
    Event,
    Gradient,
    Joined,
    Left,
    Policy,
    Predicted,
    Update,
)
from starprof.sync.policies.ssgd import Ssgd
from starprof.sync.protocol.holding import Held
from starprof.sync.protocol.lag import Lag, LagLimit
from starprof.sync.protocol.meetings import Meetings
from starprof.sync.protocol.membership import Membership
from starprof.sync.protocol.messages import Close, Gathered, Go, Over, Parted, Pause, ToRank
from starprof.sync.protocol.rounds import OpenRounds
from starprof.sync.protocol.switching import Switch
from starprof.sync.transfers import Transfers

PolicyMaker = Callable[[Iterable[int], int], Policy]
"""Makes the policy of a mode for some ranks from a version on."""


class Deciding:
    """The part of a coordinator that does so.

    Attributes:
        epoch: of the coordinator.
        ranks: what is known of each.
        policy: that decides on rounds; None in native steps.
        transfers: what each rank's part in the reductions takes.
        history: updates that were decided on; whoever reads it may clear it.
        refused: why the job can't be in rounds, as a rank has said; "" if it can.
    """

    def __init__(self, ranks: Iterable[int], epoch: int, lag: LagLimit | None) -> None:
        """Nothing is decided yet."""
        self.epoch = epoch
        self.policy: Policy | None = None
        self.history: list[Update] = []
        self.refused = ""
        self._membership = Membership(ranks)
        self.transfers = Transfers(self._membership.ranks)
        self._held = Held()
        self._wakes_s: float | None = None
        self._now_s = 0.0
        self.ranks = self._membership.ranks
        self._make: PolicyMaker | None = None
        self._iteration_s: dict[int, float] = {}
        self._rounds = OpenRounds(self._tell, self._here, self._stay_in_rounds)
        self._switch = Switch(self._tell_all)
        self._meetings = Meetings(self._tell, self._tell_all)
        self._lag = Lag(lag)
        self._gathering = True
        self._native = True
        self._closed = 0
        self._back = False
        # What ranks do on their own now, and from the next round of everybody on.
        self._local = self._local_next = NO_STEPS
        self._out: list[tuple[int, ToRank]] = []

    # Who takes part.

    @property
    def live(self) -> list[int]:
        """Ranks that are not lost and still train."""
        return self._membership.live

    @property
    def wake_at_s(self) -> float | None:
        """When `woken` is to be called; None: not at all."""
        due_s, wakes_s = self._held.next_s, self._wakes_s
        return due_s if wakes_s is None else wakes_s if due_s is None else min(due_s, wakes_s)

    @property
    def short_of(self) -> int:
        """How many more gradients it takes at least until a round closes; 0: nobody can tell."""
        return 0 if self.policy is None or self._held or self._meetings.under_way else self.policy.short_of

    @property
    def preparing(self) -> bool:
        """Whether ranks hold still for a switch to rounds."""
        return self._switch.promises is not None

    def _here(self) -> list[int]:
        return self._membership.here

    def _without(self, rank: int, now_s: float) -> None:
        """Go on without a rank that is lost or has left."""
        self._begin_rounds_when_ready()
        self._meetings.without(rank)
        self._parted(rank, 0)
        if self._meetings.under_way:
            self._count_out(rank)
        self._part_when_all_are_there()
        if not self._meetings.under_way and self.policy is not None and rank in self.policy.members:
            self._decide(Left(rank, now_s))

    # Native steps and rounds.

    def _begin_rounds_when_ready(self) -> None:
        version = self._switch.agreed(self.live)
        if version is None:
            return
        self._native = False
        self._closed = version
        for rank in self.live:
            self._holds(rank, version - 1)
        self.policy = self._first_policy(version)
        self._switch.commit_to(self.epoch, version, self._local)

    def _change(self, now_s: float) -> None:
        """Another policy from the next round on; what has been handed in goes over to it."""
        old = self.policy
        if old is None or self._meetings.under_way:
            return  # at the end of a meeting there is a new policy anyway
        self._carry_out(old.wind_up())
        self.policy = self._policy(old.members, old.version)
        for gradient in old.waiting.values():
            self._decide(Arrived(gradient, now_s))

    def _first_policy(self, version: int) -> Policy:
        """Where all ranks stand at one version, so that what they do on their own can begin or end there."""
        self._local = self._wanted(self.live, version).local_steps
        return self._policy(self.live, version)

    def _policy(self, ranks: Iterable[int], version: int) -> Policy:
        """Of the mode that is wanted, or what comes before it can begin.

        Where ranks step on their own, and before they begin to or end it, rounds are of everybody: gradients and states
        must not meet in one.
        """
        policy = self._wanted(ranks, version)
        self._local_next = policy.local_steps
        alone = self._local.period or self._local_next.period
        return Ssgd(policy.members, version=version) if alone else policy

    def _wanted(self, ranks: Iterable[int], version: int) -> Policy:
        """Of the mode that is wanted; on the way back to native steps, rounds of everybody.

        A mode's options may make sense for the whole job only: then it begins with all ranks, and some leave at once.
        """
        ranks = set(ranks) - self._meetings.aside
        if self._make is None:
            return Ssgd(ranks, version=version)
        try:
            policy = self._make(ranks, version)
        except UsageError:
            policy = self._make(self.ranks, version)
        for rank in set(policy.members).difference(ranks):
            policy.decide(Left(rank))
        if self._iteration_s:
            policy.decide(Predicted(self._iteration_s))
        return policy

    def _back_to_native(self) -> None:
        self._native, self._back = True, False
        self._make = self._switch.commit = None
        self._local = self._local_next = NO_STEPS
        self._membership.back_to_native()

    def _stay_in_rounds(self) -> None:
        """The way back to native steps is closed: one of the ranks that they need is lost."""
        if self.preparing:
            self._switch.abort(self.epoch)
        self._native = False
        self.policy = self._policy(self.live, self._closed)

    # Meetings.

    def _paused(self, message: Pause, now_s: float) -> None:
        """A rank stands at a meeting; nobody waits for it in rounds any more."""
        self.ranks[message.rank].in_rounds = self.policy is not None
        self._holds(message.rank, message.held)
        first = self._meetings.paused(message, self.epoch, now_s)
        if self._meetings.stands(message.rank):
            self._parted(message.rank, 0)
            self._count_out(message.rank)
        if self.policy is not None and message.rank in self._meetings.aside & set(self.policy.members):
            self._decide(Left(message.rank, now_s))
        if first and self.policy is not None and not self._local.period:
            self._carry_out(self.policy.wind_up())
            waiting = tuple(self.policy.waiting.values())
            self.policy.waiting.clear()
            self._let_go(waiting)
        self._part_when_all_are_there()

    def _count_out(self, rank: int) -> None:
        """Where ranks step on their own, the mean is of those that have not paused: of all who can have steps."""
        if self._local.period and self.policy is not None and rank in self.policy.members:
            self._decide(Left(rank))

    def _parted(self, rank: int, steps: int) -> None:
        """Nobody of its group is to wait for it after so many steps on this version."""
        if self.policy is not None and any(rank in group for group in self._local.groups):
            self._tell_all(Parted(self.epoch, rank, self.policy.version, self._meetings.number, steps))

    def _count_in(self, rank: int) -> None:
        """A rank takes part again, and goes on."""
        assert self.policy is not None
        known = rank in self.policy.members
        if known or (self._meetings.under_way and not self._local.period):
            self._carry_out(Decision(release=(rank,)))
        else:
            self._decide(Joined(rank))

    def _let_go(self, gradients: tuple[Gradient, ...]) -> None:
        """While others have paused, nobody waits: what is handed in is dropped where the mode may, else applied."""
        assert self.policy is not None
        release = tuple(g.worker for g in gradients)
        if self.policy.drops:
            self._carry_out(Decision(dropped=gradients, release=release))
        else:
            self._carry_out(replace(self.policy.inherit(gradients), release=release))

    def _part_when_all_are_there(self) -> None:
        """All hold, or get, the same rounds; there native steps can follow, since all are equally far.

        Whoever is there and has still to get another rank's state is waited for too.
        """
        if self.policy is None or not self._meetings.all_there(self._membership.coming):
            return
        version = self.policy.version
        why = self._meetings.out_of_step() if self.refused else ""
        if why:
            self._tell_all(Over(self.epoch, why))
            return
        index = self._meetings.furthest if self.refused else None
        even = self._meetings.even or index is not None
        native = self._make is None and self._membership.complete and even
        self._wakes_s = None
        again = self._meetings.apart
        self._meetings.aside.clear()
        if native:
            self._back_to_native()
            self.policy = None
        else:
            self.policy = self._first_policy(version)
        end = Gathered(self.epoch, self._meetings.number + 1, version, native, self._local, again, index)
        self._meetings.over(self._rounds.numbered(end))

    # Rounds.

    def _holds(self, rank: int, held: int) -> None:
        """A rank holds all rounds before `held`; what all hold need not be remembered."""
        self._membership.holds(rank, held)
        self._rounds.trim(self._membership.floor)

    def _arrived(self, gradient: Gradient, now_s: float) -> None:
        known = self.ranks[gradient.worker]
        if self.policy is None or self._gathering or gradient.number <= known.last_number:
            return
        if not self.policy.has(gradient.worker) and not self._meetings.under_way:
            return
        known.last_number = gradient.number
        known.in_rounds = True
        known.released = None
        if (gradient.steps > 0) is not (self._local.period > 0):
            self._rounds.unhealable.add(gradient.worker)  # gradients and states don't mix: it gets another one's state
            return
        if gradient.steps < self._local.period:
            self._parted(gradient.worker, gradient.steps)
        if self._meetings.under_way and not self._local.period:
            self._let_go((gradient,))
            return
        self._now_s = now_s
        delay_s = self.transfers.delay_s(gradient.worker, now_s) if self.policy.leaves_out else 0.0
        if delay_s:
            self._held.hold(gradient, now_s + delay_s * self.policy.holds_for)
        else:
            self._decide(Arrived(gradient, now_s))

    def _let_ready_in(self) -> None:
        """Gradients that were held back, where their time has come, nobody else comes before them, or all pause."""
        while self._held:
            if self.policy is None or self._meetings.under_way:
                held = self._held.all()
                if self.policy is not None:
                    self._let_go(held)
                return
            gradient = self._held.ready(self.policy, self._now_s, self._wakes_s is not None)
            if gradient is None:
                return
            if gradient.worker in self.policy.members:
                self._decide(Arrived(gradient, self._now_s))

    def _decide(self, event: Event) -> None:
        assert self.policy is not None
        if isinstance(event, Left):
            self._held.forget(event.worker)
        self._carry_out(self.policy.decide(event))

    def _carry_out(self, decision: Decision) -> None:
        assert self.policy is not None
        if decision is NOTHING:
            return
        self.history += decision.updates
        before = self._local
        if decision.wake_at_s is not None:
            self._wakes_s = decision.wake_at_s
        release = [rank for rank in decision.release if rank in self.ranks and not self.ranks[rank].lost]
        for place, update in enumerate(decision.updates):
            last = place == len(decision.updates) - 1
            self._close(update, tuple(release) if last else ())
        dropped = {(g.worker, g.number) for g in decision.dropped}
        used = {(g.worker, g.number) for update in decision.updates for g in update.gradients}
        for rank in release:
            known = self.ranks[rank]
            known.released = (known.last_number, self.policy.version, (rank, known.last_number) not in dropped)
            dropped.discard((rank, known.last_number))
            # A round releases by itself only those whose gradient it is made of.
            if (rank, known.last_number) not in used:
                self._tell(rank, Go(self.epoch, *known.released))
        for rank, number in sorted(dropped):  # was kept for a later round, which it does not get into
            self._tell(rank, Go(self.epoch, number, self.policy.version, kept=False))
        if self._native:
            self.policy = None
        elif before.period and not self._local.period:
            self.policy = self._policy(self.live, self.policy.version)

    def _close(self, update: Update, release: tuple[int, ...]) -> None:
        assert self.policy is not None
        native = self._back and self._all_fresh(update)
        if isinstance(self.policy, Ssgd) and set(update.contributors) == set(self.policy.members):
            self._local = self._local_next.among(self.policy.members)
        close = Close(
            self.epoch,
            update.onto,
            0,
            update.gradients,
            update.weights,
            release,
            native,
            self._membership.floor,
            meeting=self._meetings.number,
            met_at=self._meetings.met_at,
            local=NO_STEPS if native else self._local,
        )
        self._closed = update.onto + 1
        self._lag.closed(update.onto, close.steps or sum(update.weights), close.floor)
        self._rounds.add(close)
        if native:
            self._back_to_native()

    def _all_fresh(self, update: Update) -> bool:
        """Whether everybody is equally far after it."""
        everybody = set(update.contributors) == set(self.ranks) and self._membership.complete
        return everybody and not any(update.staleness) and len({k.iterations for k in self.ranks.values()}) == 1

    # Saying it.

    def _tell(self, rank: int, message: ToRank) -> None:
        if self.ranks[rank].connected and not self.ranks[rank].lost:
            self._out.append((rank, message))

    def _tell_all(self, message: ToRank) -> None:
        for rank in self._membership.here:
            self._tell(rank, message)

    def _flushed(self) -> list[tuple[int, ToRank]]:
        self._let_ready_in()
        out, self._out = self._out, []
        return out
