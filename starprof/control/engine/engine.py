"""The engine of one rank: what its training thread, its connection and its peers do to the rank's `Member`.

One lock guards the member and all that goes with it. Three kinds of threads come here: the training thread
(`before_step`, `synchronise`, `meet`), which is the only one that waits and the only one that touches parameters; the
connection's thread with what the coordinator says; and threads of `groups` and `peers` with results.
"""

from __future__ import annotations

import json
import math
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starprof.control.codec import decode
from starprof.control.engine.exchange import Exchange
from starprof.control.engine.flat import Flat, Layout
from starprof.control.engine.groups import Groups
from starprof.control.engine.peers import Peers
from starprof.control.engine.roles import Counts, Data, Link, Updates
from starprof.errors import StarprofError, TransportError
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
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Arrive, Close, Go, Query, ToRank

ASK_AGAIN_S = 2.0
"""A result that has not come after this time is asked for."""
GIVE_UP_S = 300.0
"""Nothing has been heard for so long that the job can't go on: it ends with an error, as its own collectives would."""
ROUNDING = 1e-6
_HEADER = struct.Struct("<dq")
"""What goes before a state: progress, and meetings."""


class LostError(StarprofError):
    """The other ranks and their coordinator can't be reached any more."""


@dataclass(slots=True)
class _Inbox:
    """What the training thread waits for."""

    begin: Begin | Resume | None = None
    applies: list[Close] = field(default_factory=list)
    pull: PullState | None = None
    state: tuple[int, bytearray] | None = None


class Engine:
    """One rank's.

    Attributes:
        native: whether the next step is a native one.
        counts: what it has done.
        keeps_last: the newest iteration of the training is never passed over: others may still call collectives in it.
    """

    def __init__(self, member: Member, layout: Layout, groups: Groups, updates: Updates, data: Data, lock: Any) -> None:
        """Begin in native steps; `connect` follows.

        Args:
            member: state machine of this rank.
            layout: of the gradients.
            groups: for reductions.
            updates: how to make one.
            data: batches of the loop.
            lock: reentrant; the link holds it while it says hello.
        """
        self._member = member
        self._rank = member.rank
        self._peers: Peers
        self._link: Link
        self._updates = updates
        self._data = data
        self._changed = threading.Condition(lock)
        self._exchange = Exchange(member, layout, groups, self._changed, self._do)
        self._inbox = _Inbox()
        self._skip_limit: int | None = None
        self._missed_meetings = 0
        self._state_wanted: list[tuple[int, int]] = []
        self._applied = member.version
        self.native = True
        self.keeps_last = False
        done = member.version
        self.counts = Counts(iterations=done, steps=done, updates=done, progress=float(done))

    @property
    def version(self) -> int:
        """Of the parameters, with the update that the loop is about to make."""
        return self._applied

    def connect(self, peers: Peers, link: Link) -> None:
        """How to reach the other ranks and the coordinator."""
        self._peers = self._exchange.peers = peers
        self._link = link

    # The training thread.

    def before_step(self) -> None:
        """It stands before an iteration's first forward pass; waits while a switch is prepared."""
        if not self.native:
            return
        with self._changed:
            if self._inbox.begin is None:
                self._do(self._member.boundary())
            self._wait_for_begin()
            self._inbox.begin = None

    def native_done(self) -> None:
        """A native step's gradients are reduced: it will be made."""
        with self._changed:
            self._advance(1.0)
            self.counts.iterations += 1
            self.counts.steps += 1
            self.counts.updates += 1
            self._applied += 1
            self._do(self._member.native_done())

    def synchronise(self) -> None:
        """The gradients of an iteration are there: hand them in, wait, and put the update to be made in their place."""
        own = self._exchange.pool.take()
        own.collect(1.0 / self._updates.scale())
        hyper = json.dumps(self._updates.hyper(), separators=(",", ":")).encode()
        with self._changed:
            self._serve_states()
            self.counts.handed_in += 1
            self.counts.iterations += 1
            self.counts.steps += 1
            actions = self._member.gradient(iterations=self.counts.iterations)
            for number in _handed_in(actions):
                self._exchange.hand_in(number, own, hyper)
            self._do(actions)
            self._wait_for_begin()
            closes = self._take_applies()
        self._make(closes, own_step=True)
        self._catch_up()

    def meet(self, index: int) -> None:
        """It leaves the rounds for a moment: wait for all others, and make all updates up to there.

        A rank that was lost for a while comes by places where the others have met without it; it does not wait there.

        Args:
            index: iterations of the loop after which the others may stop as well.
        """
        if self.native:
            return
        with self._changed:
            while not self._met_without():
                self._serve_states()
                self._do(self._member.pause(index))
                if isinstance(self._wait_for_begin(), Resume):
                    break
            closes = self._take_applies()
        self._make(closes, own_step=False)
        with self._changed:
            self._skip_limit = None
            # Whoever ran ahead or fell behind in the count of iterations is even with all others here.
            self.counts.progress = float(self.counts.iterations)

    def _met_without(self) -> bool:
        """Whether the others have met at this place already."""
        missed = self._missed_meetings > 0
        self._missed_meetings -= missed
        return missed

    def done(self) -> None:
        """The training is over here."""
        with self._changed:
            self._do(self._member.done())

    def _wait_for_begin(self) -> Begin | Resume:
        """Until the step may begin, if need be on another rank's state; what has allowed it."""
        began_s = time.monotonic()
        ask_at_s = began_s + ASK_AGAIN_S
        inbox = self._inbox
        while inbox.begin is None:
            if inbox.state is not None:
                self._take_state()
                continue
            if self._state_wanted:
                with unlocked(self._changed):
                    self._serve_states()
                continue
            self._changed.wait(ASK_AGAIN_S)
            now_s = time.monotonic()
            if now_s > ask_at_s:
                ask_at_s = now_s + ASK_AGAIN_S
                self._ask_again(int((now_s - began_s) / ASK_AGAIN_S))
            if now_s > began_s + GIVE_UP_S:
                raise LostError(f"rank {self._rank} has heard nothing for {GIVE_UP_S:.0f} s: the job can't go on")
        begin = inbox.begin
        self.native = begin.native
        if not self.native:
            inbox.begin = None  # else it is the native step's that follows
        self.counts.waited_s += time.monotonic() - began_s
        return begin

    def _take_applies(self) -> list[Close]:
        closes, self._inbox.applies = self._inbox.applies, []
        return closes

    def _make(self, closes: list[Close], *, own_step: bool) -> None:
        """Make updates in order; the last one is left to the user's loop."""
        rounds = [close for close in closes if close.gradients]
        own = rounds[-1] if own_step and rounds else None
        for close in rounds:
            with self._changed:
                flat = self._exchange.result(close.round)
            hyper, scale = json.loads(flat.settings), self._updates.scale()
            paced = self._advance(sum(close.weights))
            if close is own:
                flat.put(scale)
                self._updates.own(hyper, paced=paced)
            else:
                self._updates.replay(partial(flat.put, scale), hyper, paced=paced)
                self.counts.replayed += 1
            self.counts.updates += 1
        if own_step and own is None:
            self.counts.without_update += 1
            self._updates.skip_own()
        with self._changed:
            if closes:
                self._applied = closes[-1].round + 1
            self._exchange.trim(self._applied)

    def _advance(self, by: float) -> bool:
        """The training has gone on by so many iterations; whether it has completed one."""
        before, self.counts.progress = self.counts.progress, self.counts.progress + by
        return math.floor(self.counts.progress + ROUNDING) > math.floor(before + ROUNDING)

    def _catch_up(self) -> None:
        """Skip the iterations that the training has gone on without this rank."""
        newest = math.floor(self.counts.progress + ROUNDING) - self.keeps_last
        behind = newest - self.counts.iterations
        if self._skip_limit is not None:
            behind = max(behind, self._skip_limit - self.counts.iterations)
        if behind > 0:
            self._data.skip(behind)
            self.counts.iterations += behind
            self.counts.skipped += behind

    # State from another rank.

    def _take_state(self) -> None:
        assert self._inbox.state is not None
        version, state = self._inbox.state
        self._inbox.state = None
        self._inbox.applies = []
        self.counts.progress, meetings = _HEADER.unpack_from(state)
        self._missed_meetings += meetings - self._member.meetings
        self._updates.load(state[_HEADER.size :])
        self._applied = version
        # What is held here from before may have been decided otherwise since; the coordinator says again what counts.
        self._exchange.clear()
        self._inbox.pull = None
        self._do(self._member.pulled(version, [], meetings))

    def _serve_states(self) -> None:
        """Parameters are those of a version now, and nobody changes them."""
        wanted, self._state_wanted = self._state_wanted, []
        # Whoever wants a version that is not here yet asks again.
        now = {rank for rank, version in wanted if version <= self._applied}
        if now:
            state = _HEADER.pack(self.counts.progress, self._member.meetings) + self._updates.state()
            for rank in now:
                self._peers.send_state(rank, self._applied, state)

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
            self._do(actions)

    def _ask_again(self, times: int) -> None:
        pull = self._inbox.pull
        if pull is not None:
            self._peers.pull(pull.holder, pull.version)
        self._exchange.ask_again(times)

    # What other ranks say.

    def buffer(self) -> Flat:
        """See `peers.Owner`."""
        return self._exchange.pool.take()

    def result_came(self, header: bytes, flat: Flat) -> None:
        """See `peers.Owner`."""
        close = decode(header)
        if not isinstance(close, Close):
            raise TransportError("a result without a description")
        with self._changed:
            self._exchange.came(close, flat)

    def result_failed(self, flat: Flat) -> None:
        """See `peers.Owner`."""
        self._exchange.pool.give(flat)

    def asked_for_result(self, rank: int, number: int) -> None:
        """See `peers.Owner`."""
        with self._changed:
            close = self._member.can_deliver(number)
            if close is not None:
                self._exchange.deliver(rank, close)

    def asked_for_state(self, rank: int, version: int) -> None:
        """See `peers.Owner`."""
        with self._changed:
            self._state_wanted.append((rank, version))
            self._changed.notify_all()

    def state_came(self, rank: int, version: int, state: bytearray) -> None:
        """See `peers.Owner`."""
        with self._changed:
            pull = self._inbox.pull
            if pull is not None and rank == pull.holder and version >= pull.version:
                self._inbox.state = (version, state)
                self._changed.notify_all()

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
                case PullState(holder, version):
                    inbox.pull, inbox.state = action, None
                    self._peers.pull(holder, version)
                case SkipLimit(index):
                    self._skip_limit = index


def _handed_in(actions: list[Action]) -> list[int]:
    """Number of the gradient that was just handed in; none where it does not count."""
    return [a.message.gradient.number for a in actions if isinstance(a, Send) and isinstance(a.message, Arrive)]


@contextmanager
def unlocked(lock: Any) -> Iterator[None]:
    """For the other way round: release a lock in a block."""
    lock.release()
    try:
        yield
    finally:
        lock.acquire()
