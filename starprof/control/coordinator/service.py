"""The coordinator at work: its state machine, between connections, clocks and wishes.

One thread, one event loop. What a rank says is decided and answered in the same callback: a step of the training waits
for it. Everything slower (leases, the journal's file, the control socket) has its turn when that is done.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import get_args

from starprof.control.codec import encode_briefly
from starprof.control.coordinator.advised import Advised, Word
from starprof.control.coordinator.connection import Connection
from starprof.control.coordinator.health import HealthBook
from starprof.control.coordinator.noise import NoiseBook
from starprof.control.coordinator.record import Journal, Record, Switch
from starprof.control.coordinator.rest import Rest
from starprof.control.coordinator.settings import Settings
from starprof.control.coordinator.wishes import MAX_CHARACTERS, Wish, wish_of
from starprof.control.modes import NATIVE, Mode
from starprof.errors import StarprofError, TransportError
from starprof.sync.protocol.coordinator import Coordinator
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.messages import (
    Arrive,
    Close,
    Health,
    Hello,
    Norms,
    Objects,
    Rejoin,
    ToCoordinator,
    ToRank,
    Welcome,
    Wished,
)

SPARE_UNPROVEN = 64
"""Connections that may be unproven, beside one for each rank; the oldest makes room for a new one."""

TICK_S = 0.2

_FROM_RANKS: tuple[type[ToCoordinator], ...] = get_args(ToCoordinator)
_ON_THE_WAY_BACK = Mode("ssgd")
"""Rounds of everybody, until all are equally far and native steps can follow."""

Out = list[tuple[int, ToRank]]


class FrozenError(StarprofError):
    """The mode is to stay as it is."""


class RefusedError(StarprofError):
    """The loop can't be in rounds."""


class Service:
    """One coordinator's.

    Attributes:
        coordinator: the state machine.
        record: what it has done.
        wish: mode that is wanted.
        frozen: who wants the mode to stay as it is; "" for nobody.
        held: control groups of a rank that the coordinator is in as well, since it may not leave them.
        refused: connections that did not know the secret, or said what no rank says.
        refusals: why ranks stay with native steps, of those that do.
        arrived_s: when each rank's last gradient came, by the clock of the loop.
        noise: what is known of the gradients' noise.
        health: what is known of the training's.
        advised: what an advisor may do.
        over: set when there is nothing more to do.
    """

    def __init__(self, settings: Settings, secret: bytes, journal: Journal | None) -> None:
        """Begin; called in the loop that it is to run in."""
        self.settings = settings
        lag = None if settings.max_lag is None else LagLimit(settings.max_lag)
        self.coordinator = Coordinator(settings.ranks, settings.epoch, lag)
        self.record = Record(journal)
        self.wish = NATIVE
        self.frozen = ""
        self.refused = 0
        self.held: list[str] = []
        self.refusals: dict[int, tuple[str, ...]] = {}
        self.arrived_s: dict[int, float] = {}
        self.noise = NoiseBook(settings.ranks)
        self.health = HealthBook()
        self.advised = Advised(self.want)
        self.over = asyncio.Event()
        self.why_over = ""
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._clock: Callable[[], float] = self._loop.time
        self._connections: dict[int, Connection] = {}
        self._strangers: dict[Connection, None] = {}
        self._refusing: dict[int, Connection] = {}
        self._noted: tuple[Mode, tuple[str, ...]] = (NATIVE, ())
        self._wished: Wished | None = None
        self._asked_here = False
        self._taken_over = (-1, 0)
        self._wake: asyncio.TimerHandle | None = None
        self._rest = Rest(self._loop, self.coordinator)
        self._gathered = False
        self._in_force = self._decides = NATIVE
        self._asked = (time.monotonic(), "", "")
        now_s = self._clock()
        self._heard_s = dict.fromkeys(settings.ranks, now_s + settings.gather_s - settings.lease_s)
        self._lease_said_s: dict[int, float] = {}
        self._behind: set[int] = set()
        self._alone_s: float | None = now_s
        self._all_left_s: float | None = None
        self._want(settings.mode, settings.asked_by, "")

    def accept(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self, self._secret, self._clock, self.settings.silent_s)

    # Connections.

    def opened(self, connection: Connection) -> None:
        """See `connection.Hub`."""
        self._strangers[connection] = None
        if len(self._strangers) > SPARE_UNPROVEN + len(self.settings.ranks):
            oldest = next(iter(self._strangers))
            self._turned_away(oldest)
            oldest.cut("others want to come in")

    def said(self, connection: Connection, message: ToCoordinator | ToRank) -> None:
        """See `connection.Hub`."""
        if not isinstance(message, _FROM_RANKS) or message.rank not in self.coordinator.ranks:
            raise TransportError("a rank said what no rank of this job says")
        rank = message.rank
        if isinstance(message, Objects):
            self._refuses(connection, message)
            return
        if connection.rank is None and isinstance(message, Hello):
            self._met(connection, rank)
        elif rank != connection.rank or self._refusing.get(rank) is connection:
            raise TransportError("a rank spoke before its hello, or for another one")
        if isinstance(message, Norms | Health):
            self._look_at_training(message)
            return
        now_s = self._clock()
        if type(message) is Arrive:
            if message.gradient.worker != rank:
                raise TransportError("a rank handed in another one's gradient")
            self.arrived_s[rank] = now_s
        if type(message) is Hello:
            self._take_over_wish(message)
        try:
            out = self.coordinator.told(message, now_s)
        except ValueError as error:  # from a policy, of a gradient that can't be
            raise TransportError(f"a rank said what can't be: {error}") from error
        if self.coordinator.refused and not self.wish.native:
            self._give_up_wish()
        self.deliver(out)
        if type(message) is Hello:
            self._tell_wish([rank])
        self._rest.maybe()

    def _look_at_training(self, told: Norms | Health) -> None:
        """What only says how the training does."""
        if isinstance(told, Health):
            self.health.told(told)
            return
        seen = self.noise.told(told)
        if seen is not None:
            self.health.norm(seen)
            self.record.noise(seen, NATIVE if told.native else self._decides)

    def ended(self, connection: Connection, why: str) -> None:
        """See `connection.Hub`."""
        if connection in self._strangers:
            self._turned_away(connection)
        rank = connection.rank
        if rank is not None and self._refusing.get(rank) is connection:
            del self._refusing[rank], self.refusals[rank]
        if rank is None or self._connections.get(rank) is not connection:
            return
        del self._connections[rank]
        self._heard_s[rank] = connection.heard_s
        self._lease_said_s.pop(rank, None)
        if rank in self.coordinator.live:
            say(f"rank {rank} is disconnected: {why}")
        self.deliver(self.coordinator.disconnected(rank))

    def _turned_away(self, stranger: Connection) -> None:
        del self._strangers[stranger]
        self.refused += 1

    def _refuses(self, connection: Connection, message: Objects) -> None:
        """A rank that does not take part says why."""
        if connection.rank is None:
            self._strangers.pop(connection, None)
            connection.belongs_to(message.rank)
            former = self._refusing.get(message.rank)
            self._refusing[message.rank] = connection
            if former is not None:
                former.cut("its rank has connected anew")
        elif self._refusing.get(message.rank) is not connection:
            raise TransportError("a rank that takes part refuses to")
        self.refusals[message.rank] = message.reasons
        self._note_refusals()

    def _give_up_wish(self) -> None:
        """A rank has said that its loop can't be in rounds after all."""
        if self._in_force.native:
            self._note_refused((self.coordinator.refused,))
        self.wish = NATIVE
        self._asked = (time.monotonic(), "coordinator", self.coordinator.refused)
        self.advised.refused()
        self._keep_wish()

    def _note_refusals(self) -> None:
        reasons = tuple(sorted({reason for told in self.refusals.values() for reason in told}))
        if reasons and not self.wish.native:
            self._note_refused(reasons)

    def _note_refused(self, reasons: tuple[str, ...]) -> None:
        """What is wanted and can't be had goes into the record, once for the same reasons."""
        if (self.wish, reasons) != self._noted:
            self._noted = (self.wish, reasons)
            self.record.refused(self._in_force, self.wish, self._asked[1], "; ".join(reasons), self.coordinator.epoch)

    def _met(self, connection: Connection, rank: int) -> None:
        self._strangers.pop(connection, None)
        former = self._connections.get(rank)
        connection.belongs_to(rank)
        self._connections[rank] = connection
        if former is not None:
            self.deliver(self.coordinator.disconnected(rank))
            former.cut("its rank has connected anew")

    # Decisions on their way.

    def deliver(self, out: Out) -> None:
        """Send what the state machine has said, and see to what else has become of it."""
        if out:
            self._send(out)
        self.coordinator.history.clear()  # what goes into the record is what the ranks were told
        self._set_alarm()
        for rank, message in out:
            if type(message) is Close:
                self.noise.closed(message)
                self.record.closed(message, self._decides)
            elif type(message) is Rejoin:
                self._see_who_is_behind(rank, message)
            elif type(message) is Welcome:
                self._begun()
        self._see_mode()

    def _see_who_is_behind(self, rank: int, rejoin: Rejoin) -> None:
        """Said once of each rank: a slow one is so again and again."""
        if self.coordinator.ranks[rank].behind and rank not in self._behind:
            self._behind.add(rank)
            say(f"rank {rank} is too far behind: it takes the state of rank {rejoin.holder}")

    def _send(self, out: Out) -> None:
        """Each message is encoded once, and each rank gets its messages with one system call; contributors first."""
        encoded: dict[int, bytes] = {}
        letters: dict[int, list[bytes]] = {}
        first: tuple[int, ...] = ()
        for rank, message in out:
            data = encoded.get(id(message))
            if data is None:
                data = encoded[id(message)] = encode_briefly(message)
                if type(message) is Close and len(out) > len(message.gradients):
                    first = message.members
            letters.setdefault(rank, []).append(data)
        for rank in first:
            self._post(rank, letters.pop(rank, None))
        for rank, datas in letters.items():
            self._post(rank, datas)

    def _post(self, rank: int, letters: list[bytes] | None) -> None:
        connection = self._connections.get(rank)
        if connection is not None and letters:
            connection.send(letters)

    def _set_alarm(self) -> None:
        wanted_s = self.coordinator.wake_at_s
        if self._wake is not None:
            if wanted_s == self._wake.when():
                return
            self._wake.cancel()
            self._wake = None
        if wanted_s is not None:
            self._wake = self._loop.call_at(wanted_s, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.deliver(self.coordinator.woken(self._clock()))

    # The mode.

    def want(self, mode: Mode, asked_by: str, reason: str = "") -> None:
        """Move the job to another mode, as soon as that can be.

        Raises:
            FrozenError: it is to stay as it is.
            RefusedError: rounds are asked for, and a rank has said that its loop can't be in them.
        """
        if self.coordinator.refused and not mode.native:
            raise RefusedError(f"the job stays with native steps: {self.coordinator.refused}")
        if self.frozen:
            raise FrozenError(f"the mode is frozen by {self.frozen}: unfreeze it first")
        self._want(mode, asked_by, reason)
        self._note_refusals()
        self._asked_here = True
        self._keep_wish()

    def overrule(self, by: str) -> None:
        """The mode is this one's choice from now on, and no advisor's."""
        self.advised.overruled(by)
        self._keep_wish()

    def _want(self, mode: Mode, asked_by: str, reason: str) -> None:
        self.wish = mode
        self._asked = (time.monotonic(), asked_by, reason)
        self.deliver(self.coordinator.switch(None if mode.native else mode.policy, self._clock()))

    def freeze(self, by: str) -> None:
        """The mode stays as it is, for whoever it is; with "" it may change again, an advisor's way too."""
        self.frozen = by
        if not by:
            self.advised.overruled("")
        self._asked_here = True
        self._keep_wish()

    def _keep_wish(self) -> None:
        """Ranks keep it in mind: the next coordinator may be on any node, and hears it from them."""
        text = Wish(self.wish, self._asked[1], self.frozen, self.advised.operator).text()
        if len(text) > MAX_CHARACTERS:
            say("what is wanted is too long for ranks to keep in mind")
            return
        serial = 1 if self._wished is None else self._wished.serial + 1
        self._wished = Wished(self.coordinator.epoch, serial, text)
        self._tell_wish(self._connections)

    def _tell_wish(self, ranks: Iterable[int]) -> None:
        if self._wished is not None:
            told = replace(self._wished, epoch=self.coordinator.epoch)
            self._send([(rank, told) for rank in ranks])

    def _take_over_wish(self, hello: Hello) -> None:
        """What a coordinator before was wanted to do counts, unless something was wanted of this one since."""
        heard = hello.wished
        if heard is None or self._asked_here or heard.epoch >= self.settings.epoch:
            return
        if (heard.epoch, heard.serial) <= self._taken_over:
            return
        wish = wish_of(heard.text, self.settings.ranks)
        if wish is None:
            return
        self._taken_over = (heard.epoch, heard.serial)
        self._want(wish.mode, wish.asked_by, "")
        self.frozen = wish.frozen_by
        self.advised.taken_over(wish.asked_by, wish.operator, wish.mode, self._clock())
        self._keep_wish()

    @property
    def state(self) -> str:
        """What is going on."""
        if not self._gathered:
            return "gathering"
        if self.coordinator.preparing:
            return "preparing"
        if self.coordinator.policy is None:
            return "native"
        return "returning" if self.wish.native else "rounds"

    @property
    def asked_by(self) -> str:
        """Who wants the mode that is wanted."""
        return self._asked[1]

    @property
    def in_force(self) -> Mode:
        """The mode that updates are made in."""
        return self._in_force

    def _begun(self) -> None:
        """All ranks are here. What they were doing under another coordinator is no change of the mode."""
        if not self._gathered:
            self._gathered = True
            if self.coordinator.policy is not None:
                self._in_force = self._decides = self._mode_of_rounds()

    def _mode_of_rounds(self) -> Mode:
        return _ON_THE_WAY_BACK if self.wish.native else self.wish

    def _see_mode(self) -> None:
        """Note when the mode that was wished for, or native steps, have begun."""
        policy = self.coordinator.policy
        if not self._gathered or (policy is None and self._in_force.native):
            return
        now = self._decides = NATIVE if policy is None else self._mode_of_rounds()
        if now is self._in_force or now is _ON_THE_WAY_BACK:
            return
        before, self._in_force = self._in_force, now
        asked_s, asked_by, reason = self._asked
        took_s = time.monotonic() - asked_s
        version = policy.version if policy is not None else self.record.version
        switch = Switch(time.time(), version, before, now, asked_by, reason, took_s)
        self.record.switched(switch, self.coordinator.epoch)
        say(f"mode {now.name} from version {version} on, asked for by {asked_by}")

    # Time.

    def since_arrival_s(self, rank: int) -> float | None:
        """How long ago a rank's last gradient came; None: none has come yet."""
        arrived_s = self.arrived_s.get(rank)
        return None if arrived_s is None else round(self._clock() - arrived_s, 3)

    def gone(self, rank: int) -> None:
        """A rank's process has ended, its launcher says."""
        self.deliver(self.coordinator.gone(rank, self._clock()))

    async def run(self) -> None:
        """Watch leases and silence until all is over."""
        self._tick()
        await self.over.wait()

    def close(self, why: str) -> None:
        """End: `run` returns."""
        self.why_over = self.why_over or why
        self.over.set()

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        now_s = self._clock()
        for connection in [*self._connections.values(), *self._refusing.values()]:
            if now_s - connection.heard_s > self.settings.silent_s:
                connection.cut("it is silent")
        for rank, known in self.coordinator.ranks.items():
            if not known.lost and rank not in self._connections:
                self._look_at_lease(rank, now_s)
        self.deliver(self.coordinator.tick(now_s))
        self._look_at_advice(now_s)
        self.record.tick()
        self._look_at_end(now_s)

    def advise(self, word: Word) -> None:
        """An advisor has spoken; see `Advised.said`."""
        self.advised.said(word, self._clock())

    def _look_at_advice(self, now_s: float) -> None:
        """What is frozen stays, also without the advisor that moved it there."""
        if not self.frozen:
            self.advised.tick(now_s)

    def _look_at_lease(self, rank: int, now_s: float) -> None:
        """Said again after each further lease: the others may have become a quorum since."""
        since_s = max(self._heard_s[rank], self._lease_said_s.get(rank, self._heard_s[rank]))
        if now_s - since_s > self.settings.lease_s:
            self._lease_said_s[rank] = now_s
            if self.coordinator.ranks[rank].left:
                self.gone(rank)  # its training is over, and it does not even hand out results any more
                return
            self.deliver(self.coordinator.lease_over(rank, now_s))
            if self.coordinator.ranks[rank].lost:
                say(f"rank {rank} is taken for lost")

    def _look_at_end(self, now_s: float) -> None:
        if self._connections or self._refusing:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = now_s
        elif now_s - self._alone_s > self.settings.idle_s:
            self.close("no rank is connected")
        if self.coordinator.live:
            self._all_left_s = None
        elif self._all_left_s is None:
            self._all_left_s = now_s
        elif now_s - self._all_left_s > self.settings.linger_s:
            self.close("all ranks have left")


def say(text: str) -> None:
    """One line for whoever looks into the log."""
    sys.stderr.write(f"starprof coordinator: {text}\n")
