"""The engine of one rank: what its training thread, its connection and its peers do to the rank's `Member`.

One lock guards the member and all that goes with it. Three kinds of threads come here: the training thread
(`before_step`, `synchronise`, `meet`), which is the only one that waits and the only one that touches parameters; the
connection's thread with what the coordinator says; and threads of `groups` and `peers` with results.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starprof.control.codec import decode
from starprof.control.engine.exchange import Exchange
from starprof.control.engine.flat import Flat, Layout
from starprof.control.engine.gradients import Gradients, gradients_of
from starprof.control.engine.groups import Groups
from starprof.control.engine.handover import Handover
from starprof.control.engine.maker import Maker
from starprof.control.engine.noise import NoiseLooks
from starprof.control.engine.ownsteps import OwnSteps
from starprof.control.engine.pace import Pace
from starprof.control.engine.peers import Peers
from starprof.control.engine.roles import Data, Link, Updates
from starprof.control.engine.sharing import Sharing
from starprof.control.engine.states import States
from starprof.control.engine.waiting import ASK_AGAIN_S, GIVE_UP_S, LostError, unlocked
from starprof.errors import TransportError
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
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Close, Go, Parted, Query, Rejoin, ToRank, Welcome


@dataclass(slots=True)
class _Inbox:
    """What the training thread waits for."""

    begin: Begin | Resume | None = None
    applies: list[Close] = field(default_factory=list)
    over: str = ""


class Engine:
    """One rank's; subclasses speak for others, or do what is said for them (`island`).

    Attributes:
        native: whether the next step is a native one.
        counts: what it has done.
        while_waiting: called now and then by the training thread while it waits.
        keeps_last: the newest iteration of the training is never passed over: others may still call collectives in it.
    """

    exchange_kind: ClassVar[type[Exchange]] = Exchange

    def __init__(
        self,
        member: Member,
        layout: Layout,
        states: States,
        groups: Groups,
        updates: Updates,
        data: Data,
        lock: Any,
        lag: LagLimit | None = None,
        gradients: Gradients | None = None,
        noise: NoiseLooks | None = None,
    ) -> None:
        """Begin in native steps; `connect` follows.

        Args:
            member: state machine of this rank.
            layout: of the gradients.
            states: how to hand in states, where ranks step on their own.
            groups: for reductions.
            updates: how to make one.
            data: batches of the loop.
            lock: reentrant; the link holds it while it says hello.
            lag: results of how much are kept for a rank that is behind; None: of all.
            gradients: way between flat tensors and the model; None: the one that fits the layout.
            noise: looks at the gradients' noise now and then; None: nobody does.
        """
        self._member = member
        self._rank = member.rank
        self._peers: Peers
        self._link: Link
        self._updates = updates
        self._changed = threading.Condition(lock)
        self._exchange = self.exchange_kind(member, layout, states.layout, groups, self._changed, self._do, lag)
        self._gradients = gradients or gradients_of(layout)
        self._noise = self._exchange.noise = noise
        sharing = Sharing(self._gradients, self._exchange.pool, groups, self._changed)
        self._own = OwnSteps(member.rank, updates, states, sharing)
        self._pace = Pace(data, member.version)
        self._maker = Maker(self._gradients, updates, self._own, self._pace, self._result)
        self._handover = Handover(member, updates, self._own, self._pace, self._changed)
        self._inbox = _Inbox()
        self._skip_limit: int | None = None
        self._missed_meetings = 0
        self._applied = member.version
        self._making = False
        self._standing = False
        self.while_waiting: Callable[[], None] = lambda: None
        self.native = True
        self.keeps_last = False
        self.counts = self._pace.counts

    @property
    def due(self) -> bool:
        """Whether the next step begins with handing the state in."""
        return self._own.due

    @property
    def version(self) -> int:
        """Of the parameters, with the update that the loop is about to make."""
        return self._applied

    def begin_rounds(self) -> None:
        """Native steps are over."""
        self._peers.know(self._member.world)

    def connect(self, peers: Peers, link: Link) -> None:
        """How to reach the other ranks and the coordinator."""
        self._peers = self._exchange.peers = self._handover.peers = peers
        peers.sums = self._exchange.star
        self._link = link
        if self._noise is not None:
            self._noise.link = link

    # The training thread.

    def before_step(self) -> None:
        """It stands before an iteration's first forward pass; waits for all states, or while a switch is prepared."""
        if self._own.due:
            self._updates.iteration_over()
            self._average()
            self._catch_up()
        if self.native:
            self._before_native()

    def _before_native(self) -> None:
        with self._changed:
            if self._inbox.begin is None:
                self._do(self._member.boundary())
            self._wait_for_begin()
            self._inbox.begin = None
            self._own.turn(self._member.local, self._member.version)
        if self.native and self._noise is not None:
            self._noise.before_native(self._applied)

    def native_done(self) -> None:
        """A native step's gradients are reduced: it will be made."""
        if self._noise is not None:
            self._noise.after_native(self._applied, self._updates.scale())
        with self._changed:
            self._pace.advance(1.0)
            self._pace.step()
            self.counts.updates += 1
            self._applied += 1
            self._do(self._member.native_done())

    def synchronise(self) -> None:
        """The gradients of an iteration are there: hand them in, wait, and put the update to be made in their place.

        Where ranks step on their own, they stay where they are.
        """
        if self._own.plan.period:
            self._step_alone()
            return
        self._gather("here", self.counts.iterations + 1)
        own = self._exchange.pool.take()
        self._gradients.collect(own)  # only now are they computed, where a device does it: the arrival that counts
        own.factor = 1.0 / self._updates.scale()
        hyper = json.dumps(self._updates.hyper(), separators=(",", ":")).encode()
        with self._changed:
            self._handover.serve(self._applied)
            self.counts.handed_in += 1
            self._pace.step()
            actions = self._member.gradient(iterations=self.counts.iterations, sent=self._exchange.sent())
            self._exchange.hand_in(actions, own, hyper)
            self._do(actions)
            self._wait_for_begin()
            closes = self._released()
        self._make(closes, own_step=True)
        self._catch_up()

    def meet(self, index: int, place: str = "") -> None:
        """It leaves the rounds for a moment: wait for all others, and make all updates up to there.

        A rank that was lost for a while comes by places where the others have met without it; it does not wait there.

        Args:
            index: iterations of the loop after which the others may stop as well.
            place: the collective that it stands before; "" at the end of an epoch.
        """
        if self._own.made:
            self._average()
        if self.native:
            return
        self._gather("stands", index)
        together, skip = False, 0
        with self._changed:
            self._standing = True
            while not together and not self._met_without():
                self._handover.serve(self._applied)
                self._do(self._member.pause(index, place))
                begin = self._wait_for_begin()
                if isinstance(begin, Resume):
                    together, skip = True, begin.skip
            self._standing = False
            closes = self._released()
        self._make(closes, own_step=False)
        if together:
            self._own.met(self._applied, self._member.meetings)
        with self._changed:
            self._skip_limit = None
            self._pace.pass_over(skip)
            self._pace.even()

    def _step_alone(self) -> None:
        with self._changed:
            self._handover.serve(self._applied)
            self._pace.step()
        self.counts.waited_s += self._own.make(self._applied, self._member.meetings)

    def _average(self) -> None:
        """Hand in the state with the steps of its own, wait, and take the mean of all."""
        self._gather("here", self.counts.iterations)
        flat = self._exchange.states.take()
        exact = self._own.collect(flat)
        with self._changed:
            self.counts.handed_in += 1
            actions = self._member.gradient(iterations=self.counts.iterations, steps=self._own.made)
            self._exchange.hand_in(actions, flat, exact)
            self._do(actions)
            self._wait_for_begin()
            closes = self._released()
        self._make(closes, own_step=False)
        self._averaged()

    def _averaged(self) -> None:
        """Nobody has made steps of its own on the mean yet."""
        with self._changed:
            self._handover.serve(self._applied)

    def _gather(self, what: str, at: int) -> None:
        """Whoever this rank speaks for has come as far."""

    def _met_without(self) -> bool:
        """Whether the others have met at this place already."""
        missed = self._missed_meetings > 0
        self._missed_meetings -= missed
        return missed

    def refuse(self, reason: str) -> None:
        """The loop can't be in rounds, it turns out: the job goes back to native steps."""
        with self._changed:
            self._do(self._member.refuse(reason))

    def hopeless(self, why: str) -> None:
        """What is waited for in rounds will never come (any thread)."""
        with self._changed:
            self._inbox.over = why
            self._changed.notify_all()

    def done(self) -> None:
        """The training is over here; whoever is left behind can have the state as it is now."""
        with self._changed:
            self._handover.leave(self._applied)
            self._do(self._member.done())
        self._exchange.come_to_rest()

    def _wait_for_begin(self) -> Begin | Resume:
        """Until the step may begin, if need be on another rank's state; what has allowed it."""
        began_s = time.monotonic()
        ask_at_s = began_s + ASK_AGAIN_S
        inbox = self._inbox
        while inbox.begin is None:
            if self._handover.here:
                self._take_state()
                continue
            if self._handover.due:
                self._serve_while_waiting()
                continue
            if inbox.over:
                raise LostError(inbox.over)
            if not self._changed.wait(ASK_AGAIN_S):
                with unlocked(self._changed):
                    self.while_waiting()
            now_s = time.monotonic()
            if now_s > ask_at_s:
                ask_at_s = now_s + ASK_AGAIN_S
                self._ask_again(int((now_s - began_s) / ASK_AGAIN_S))
            if now_s > began_s + GIVE_UP_S * max(1, self._own.plan.period):  # they may be late in each of these steps
                raise LostError(f"rank {self._rank} has heard nothing for {GIVE_UP_S:.0f} s: the job can't go on")
        begin = inbox.begin
        self.native = begin.native
        if not self.native:
            inbox.begin = None  # else it is the native step's that follows
        self.counts.waited_s += time.monotonic() - began_s
        return begin

    def _serve_while_waiting(self) -> None:
        """Where all come together they wait for whoever needs a state: what is to be made before is made now."""
        closes = self._take_standing() if self._standing else []
        with unlocked(self._changed):
            if closes:
                self._make(closes, own_step=False)
            self._handover.serve(self._applied)

    def _released(self) -> list[Close]:
        """It need not wait any more; what is to be made now."""
        return self._take_applies()

    def _take_standing(self) -> list[Close]:
        """What is to be made while it still waits for the others."""
        return self._take_applies()

    def _take_applies(self) -> list[Close]:
        closes, self._inbox.applies = self._inbox.applies, []
        self._making = bool(closes)
        return closes

    def _make(self, closes: list[Close], *, own_step: bool) -> None:
        """Make updates in order; the last one is left to the user's loop where that stands before a step of its own."""
        if own_step:
            self._maker.before_own_step(closes)
        else:
            self._maker.between_steps(closes)
        if self._noise is not None:
            self._noise.made(closes, self._result)
        with self._changed:
            if closes:
                self._applied = closes[-1].round + 1
            self._making = False
            if self._member.void:
                self._exchange.clear()
            if self._member.version == self._applied:
                self._own.turn(self._member.local, self._applied)
            self._exchange.trim(self._applied)

    def _result(self, number: int) -> Flat:
        with self._changed:
            return self._exchange.result(number)

    def _catch_up(self) -> None:
        """Skip the iterations that the training has gone on without this rank."""
        self._pace.catch_up(self._skip_limit, keeps_last=self.keeps_last)

    def _take_state(self) -> None:
        """Go on from another rank's state, which is here."""
        self._inbox.applies = []
        self._applied, meetings = self._handover.take()
        self._missed_meetings += meetings - self._member.meetings
        # What is held here from before may have been decided otherwise since; the coordinator says again what counts.
        self._exchange.clear()
        self._do(self._member.pulled(self._applied, [], meetings, self._own.plan))

    # What the coordinator says.

    def told(self, message: ToRank) -> None:
        """It has said something (its connection's thread)."""
        with self._changed:
            if isinstance(message, Go) and not message.kept:
                self._exchange.forget(message.number)
            actions = self._member.told(message)
            if isinstance(message, Close):
                self._exchange.told(message, self._applied)
            elif isinstance(message, Query):
                self._exchange.give_up(message.round)
            elif isinstance(message, Rejoin):
                # Of what is held here nothing counts any more but what is just being made of it.
                self._exchange.clear(self._member.version if self._making or self._inbox.applies else 0)
            elif isinstance(message, Parted):
                self._own.sharing.parted(message)
            elif isinstance(message, Welcome):
                self._exchange.reach_out()
            self._do(actions)

    def _ask_again(self, times: int) -> None:
        self._handover.ask_again()
        self._exchange.ask_again(times)

    # What other ranks say.

    def buffer(self, header: bytes) -> Flat:
        """See `peers.Owner`."""
        close = decode(header)
        of_states = isinstance(close, Close) and close.steps > 0
        return (self._exchange.states if of_states else self._exchange.pool).take()

    def result_came(self, header: bytes, flat: Flat) -> None:
        """See `peers.Owner`."""
        close = decode(header)
        if not isinstance(close, Close):
            raise TransportError("a result without a description")
        with self._changed:
            self._exchange.came(close, flat, self._applied)

    def result_failed(self, flat: Flat) -> None:
        """See `peers.Owner`."""
        self._exchange.give(flat)

    def asked_for_result(self, rank: int, number: int) -> None:
        """See `peers.Owner`."""
        with self._changed:
            self._do(self._member.asked(rank, number))

    def asked_for_state(self, rank: int, version: int) -> None:
        """See `peers.Owner`."""
        with self._changed:
            self._handover.asked(rank, version)

    def state_came(self, rank: int, version: int, state: bytearray) -> None:
        """See `peers.Owner`."""
        with self._changed:
            self._handover.came(rank, version, state)

    # What the member wants done.

    def _do(self, actions: list[Action]) -> None:
        inbox = self._inbox
        for action in actions:
            match action:
                case Send(message):
                    self._link.send(message)
                case Reduce(close):
                    self._exchange.reduce(close)
                case Deliver(to, close):
                    self._exchange.deliver(to, close)
                case Fetch(holder, number, _):
                    self._peers.fetch(holder, number)
                case Apply(close):
                    inbox.applies.append(close)
                case Begin() | Resume():
                    inbox.begin = action
                    self._changed.notify_all()
                case PullState():
                    self._handover.pull(action)
                case SkipLimit(index):
                    self._skip_limit = index
                case GiveUp(reason):
                    self.hopeless(reason)
