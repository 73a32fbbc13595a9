"""The head at work: workers and shards on its connections, the policy in between, all in the hub's one thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from starprof.control.coordinator.advised import Advised, Word
from starprof.control.coordinator.record import Journal, Record, Switch
from starprof.control.modes import Mode
from starprof.errors import StarprofError, TransportError
from starprof.ps.head import modes
from starprof.ps.head.deciding import Deciding
from starprof.ps.head.memory import Memory
from starprof.ps.head.seats import ShardSeat, WorkerSeat, say, tell
from starprof.ps.head.settings import Settings
from starprof.ps.head.shards import Shards
from starprof.ps.messages import (
    Arrive,
    Dismissed,
    Hi,
    Leave,
    Model,
    Named,
    Ping,
    Refused,
    Report,
    Want,
    Welcome,
)
from starprof.ps.spec import Spec
from starprof.ps.speech import word
from starprof.ps.wire import Head, Hub, Line
from starprof.sync.protocol.messages import Close

TICK_S = 0.2
PREDICT_EVERY_S = 2.0
SMOOTHING = 0.3
"""Share of the newest iteration in how long those of a worker take."""

MAX_MODEL_BYTES = 64 << 20


class FrozenError(StarprofError):
    """The mode is to stay as it is."""


class HeadService:
    """One head's. Everything happens in the hub's thread.

    Attributes:
        deciding: the state machine.
        record: what was done.
        workers: by rank.
        shards: all of them.
        memory: what the next head has to know.
        advised: what an advisor may do.
        wish: mode that is wanted.
        why_over: why it has ended; "" as long as it has not.
    """

    def __init__(
        self, settings: Settings, journal: Journal | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Go on from what a head before has kept in mind."""
        self.settings = settings
        self.record = Record(journal)
        self.memory = Memory.read(settings.state)
        self.memory.epoch += 1
        self.deciding = Deciding(settings.shards, settings.clip)
        self.workers: dict[int, WorkerSeat] = {}
        self.shards = Shards(settings.shards, self.deciding, self._gather, self._tell_places)
        self.wish = settings.mode
        self.advised = Advised(self.want, modes.DEFAULT)
        self.hub: Hub | None = None
        self.why_over = ""
        self._clock = clock
        self._begun_s = clock()
        self._first: int | None = None
        self._in_force = settings.mode
        self._last_worker_s = self._predicted_s = clock()
        self._all_left_s: float | None = None
        if self.memory.mode:
            self.wish = self._in_force = modes.mode(self.memory.mode, self.memory.options, range(settings.workers))
            self.advised.taken_over(self.memory.asked_by, self.memory.operator, self.wish, clock())
        else:
            self._keep_wish(settings.asked_by)
        if self.memory.spec is not None:
            self._train(Spec.of(json.dumps(self.memory.spec).encode()))
        self.memory.write(settings.state)

    def _train(self, spec: Spec) -> None:
        """What is trained is known."""
        self.shards.spec = spec
        self.deciding = self.shards.deciding = Deciding(self.shards.count, self.settings.clip)

    def serve(self, hub: Hub) -> None:
        """Begin, with this hub."""
        self.hub = hub
        self._tick()

    # Connections; see `wire.line.Owner`.

    def joined(self, line: Line) -> None:
        """Somebody has connected."""

    def room(self, line: Line, head: Head) -> memoryview | None:  # noqa: ARG002
        """Only a model has a payload."""
        if not isinstance(word(head), Model) or head.payload_bytes > MAX_MODEL_BYTES:
            raise TransportError("bytes that nobody wants")
        return memoryview(bytearray(head.payload_bytes))

    def came(self, line: Line, head: Head, payload: memoryview | None) -> None:
        """Somebody has said something."""
        message = word(head)
        if isinstance(line.data, WorkerSeat | ShardSeat):
            line.data.heard_s = self._clock()
        match message:
            case Hi():
                self._met_worker(line, message)
            case Report():
                self.shards.met(line, message)
            case Ping():
                tell(line, message)
            case _ if isinstance(line.data, WorkerSeat):
                self._heard_worker(line.data, message, payload)
            case _ if isinstance(line.data, ShardSeat):
                self.shards.heard(line.data, message)
            case _:
                raise TransportError("somebody has spoken before saying who it is")
        self._flush()

    def lost(self, line: Line, why: str) -> None:
        """A connection has ended."""
        seat = line.data
        if isinstance(seat, WorkerSeat) and seat.line is line:
            seat.line, seat.heard_s = None, self._clock()
            if seat.state == "connected":
                seat.state = "disconnected"
                say(f"worker {seat.rank} is disconnected: {why}")
        elif isinstance(seat, ShardSeat) and seat.line is line:
            self.shards.lost(seat, why)

    # Workers.

    def _met_worker(self, line: Line, hi: Hi) -> None:
        if self.shards.spec is not None and hi.digest != self.shards.spec.digest:
            tell(line, Refused("its model or optimizer is not the one that is trained here"))
            return
        former = self.workers.get(hi.rank)
        if former is not None and former.line is not None and former.line is not line:
            former.line.data = None
            former.line.end("its worker has connected anew")
        anew = former is None or former.hi.run != hi.run
        seat = WorkerSeat(hi.rank, hi, line) if anew or former is None else former
        seat.hi, seat.line, seat.heard_s = hi, line, self._clock()
        line.data = seat
        self.workers[hi.rank] = seat
        self._last_worker_s = self._clock()
        tell(line, self.shards.places)
        policy = self.deciding.policy
        if policy is None:
            seat.state = "connected"
            if hi.rank == self._first and self.shards.spec is not None and anew:
                self._ask_first()
            self._gather()
        elif anew or hi.rank not in policy.members:
            self._let_in(seat, anew)
        else:
            seat.state = "connected"
            self._take_up(seat)

    def _let_in(self, seat: WorkerSeat, anew: bool) -> None:
        """A worker that was not here, or not any more."""
        now_s = self._clock()
        self.deciding.left(seat.rank, now_s)
        number = max(self.deciding.number.get(seat.rank, -2) + 2, seat.hi.number + 1, seat.hi.waits)
        seat.state = "connected"
        if anew and seat.line is not None:
            tell(seat.line, Welcome(number, first=False))
        say(f"worker {seat.rank} takes part from version {self.deciding.version} on")
        self.deciding.joined(seat.rank, number, now_s)

    def _take_up(self, seat: WorkerSeat) -> None:
        """What a worker has said to nobody, since it could not be heard."""
        hi = seat.hi
        if hi.arrived is not None:
            self._arrived(seat, Arrive(hi.arrived, hi.hyper))
        elif hi.waits >= 0:
            self.deciding.wanted(seat.rank, hi.waits)

    def _heard_worker(self, seat: WorkerSeat, message: Any, payload: memoryview | None) -> None:
        match message:
            case Arrive():
                self._arrived(seat, message)
            case Want(number=number):
                self.deciding.wanted(seat.rank, number)
            case Leave():
                seat.state = "left"
                self.deciding.left(seat.rank, self._clock()) if self.deciding.policy is not None else None
            case Model(digest=digest):
                self._learn(seat, digest, payload)
            case _:
                raise TransportError("a worker said what no worker says")

    def _arrived(self, seat: WorkerSeat, arrive: Arrive) -> None:
        if arrive.gradient.worker != seat.rank:
            raise TransportError("a worker handed in another one's gradient")
        seat.hi = Hi(
            seat.rank,
            seat.hi.run,
            seat.hi.digest,
            arrive.gradient.number,
            arrive.gradient,
            arrive.hyper,
            arrive.gradient.number,
        )
        seat.arrived_s = self._clock()
        if seat.released_s is not None:
            took_s = seat.arrived_s - seat.released_s
            seat.own_s = took_s if seat.own_s is None else seat.own_s + SMOOTHING * (took_s - seat.own_s)
        try:
            self.deciding.arrived(arrive.gradient, arrive.hyper, seat.arrived_s)
        except ValueError as error:
            raise TransportError(f"a worker said what can't be: {error}") from error

    def gone(self, rank: int) -> None:
        """A worker's process has ended, its launcher says."""
        seat = self.workers[rank]
        if seat.line is None and seat.state == "disconnected":
            seat.heard_s = -1e9  # its lease is over

    # The beginning.

    def _gather(self) -> None:
        """Begin once everybody is there."""
        if self.deciding.policy is not None:
            return
        here = [seat for seat in self.workers.values() if seat.line is not None]
        enough = len(here) >= self.settings.workers
        if not here or not (enough or self._clock() - self._begun_s > self.settings.gather_s):
            return
        if self.shards.spec is None:
            if not self._first_is_there:
                self._first = min(seat.rank for seat in here)
                self._ask_first()
            return
        self.shards.fill()
        if self.shards.ready:
            self._begin(here)
        elif len(self.shards.seats) == self.shards.count and (
            self._first is None or self.workers[self._first].line is None
        ):
            self._first = min(seat.rank for seat in here)
            self._ask_first()

    @property
    def _first_is_there(self) -> bool:
        return self._first is not None and self.workers[self._first].line is not None

    def _ask_first(self) -> None:
        seat = self.workers[self._first] if self._first is not None else None
        if seat is not None and seat.line is not None:
            tell(seat.line, Welcome(0, first=True))

    def _learn(self, seat: WorkerSeat, digest: str, payload: memoryview | None) -> None:
        """What is trained."""
        spec = Spec.of(payload if payload is not None else b"")
        if spec.digest != digest or seat.rank != self._first:
            raise TransportError("a worker told of another model than its own")
        if self.shards.spec is None:
            self._train(spec)
            self.memory.spec = json.loads(spec.to_json())
            self.memory.write(self.settings.state)
            for other in list(self.workers.values()):
                if other.hi.digest != digest and other.line is not None:
                    tell(other.line, Refused("its model or optimizer is not that of the first worker"))
        self.shards.fill()

    def _begin(self, here: Iterable[WorkerSeat]) -> None:
        """All shards and workers are there."""
        reports = [self.shards.seats[number].report for number in range(self.shards.count)]
        deciding = self.deciding
        deciding.recover([r.tail for r in reports], [r.done for r in reports], [r.version for r in reports])
        released = _newest(named for report in reports for named in report.released)
        settled = _newest(named for report in reports for named in report.settled)
        for entry in deciding.entries.values():
            for one in entry.release:
                released[one.worker] = max(released.get(one.worker, -1), one.number)
            for worker, number in (*entry.used, *((one.worker, one.number) for one in entry.release)):
                settled[worker] = max(settled.get(worker, -1), number)
        used = {named for entry in deciding.entries.values() for named in entry.used}
        held = [g for g in reports[0].holds if (g.worker, g.number) not in used]
        kept = [g for g in held if g.number <= released.get(g.worker, -1)]
        deciding.number = settled
        self.shards.tell_missing()
        deciding.begin(self._in_force, [seat.rank for seat in here], kept, self.iteration_s())
        if not self.memory.begun:
            self.memory.begun = True
            self.memory.write(self.settings.state)
        for seat in here:
            self._seat_worker(seat, released.get(seat.rank, -1))
        self._tell_places()
        self.record.version = deciding.version
        self._note_switch(
            self._in_force, self._in_force, "the training begins" if not deciding.version else "another head"
        )

    def _seat_worker(self, seat: WorkerSeat, released: int) -> None:
        """What a worker that is there at the begin waits for, if it does."""
        hi, settled = seat.hi, self.deciding.number.setdefault(seat.rank, -1)
        if hi.number < 0 and hi.waits < 0:
            number = settled + 2 if settled >= 0 else 0
            seat.tell(Welcome(number, first=False))
            self.deciding.wanted(seat.rank, number)
        elif hi.arrived is not None and hi.arrived.number > settled:
            self._take_up(seat)
        elif hi.waits > released:
            self.deciding.release(seat.rank, hi.waits)

    # What follows.

    def _flush(self) -> None:
        """Tell the shards what was decided, and the record."""
        deciding = self.deciding
        if deciding.out:
            out, deciding.out = deciding.out, []
            for entry in out:
                self.shards.tell(entry)
                now_s = self._clock()
                for one in entry.release:
                    if one.worker in self.workers:
                        self.workers[one.worker].released_s = now_s
        if deciding.updates:
            updates, deciding.updates = deciding.updates, []
            for update, mode, released in updates:
                self._note(update, mode, released)

    def _note(self, update: Any, mode: Mode, released: tuple[int, ...]) -> None:
        for worker in update.contributors:
            if worker in self.workers:
                self.workers[worker].contributions += 1
        close = Close(
            self.memory.epoch,
            update.onto,
            0,
            update.gradients,
            update.weights,
            released,
            serial=update.onto,
            floor=self.deciding.floor,
        )
        self.record.closed(close, mode)

    def _tell_places(self) -> None:
        places = self.shards.places
        for worker in self.workers.values():
            worker.tell(places)

    # The mode.

    def want(self, mode: Mode, asked_by: str, reason: str = "") -> None:
        """Move the job to another mode, from the next update on.

        Raises:
            FrozenError: it is to stay as it is.
        """
        if self.memory.frozen_by:
            raise FrozenError(f"the mode is frozen by {self.memory.frozen_by}: unfreeze it first")
        before, self.wish = self._in_force, mode
        self._in_force = mode
        self._keep_wish(asked_by)
        self.deciding.switch(mode, self.iteration_s(), self._clock())
        self._note_switch(before, mode, reason)
        self._flush()

    def freeze(self, by: str) -> None:
        """The mode stays as it is, for whoever it is; with "" it may change again, an advisor's way too."""
        self.memory.frozen_by = by
        self.overrule(self.advised.operator if by else "")

    def overrule(self, by: str) -> None:
        """The mode is this one's choice from now on, and no advisor's."""
        self.advised.overruled(by)
        self.memory.operator = by
        self.memory.write(self.settings.state)

    def advise(self, word: Word) -> None:
        """An advisor has spoken; see `Advised.said`."""
        self.advised.said(word, self._clock())

    def _keep_wish(self, asked_by: str) -> None:
        self.memory.mode, self.memory.options = self.wish.name, dict(self.wish.options)
        self.memory.asked_by = asked_by
        self.memory.write(self.settings.state)

    def _note_switch(self, before: Mode, after: Mode, reason: str) -> None:
        switch = Switch(time.time(), self.deciding.version, before, after, self.memory.asked_by, reason, 0.0)
        self.record.switched(switch, self.memory.epoch)
        say(f"mode {after.name} from version {self.deciding.version} on, asked for by {self.memory.asked_by}")

    def iteration_s(self) -> dict[int, float]:
        """What each worker's last iteration has taken by itself, where that is known."""
        return {rank: seat.own_s for rank, seat in self.workers.items() if seat.own_s}

    @property
    def in_force(self) -> Mode:
        """The mode that updates are made in."""
        return self._in_force

    # Time.

    def _tick(self) -> None:
        assert self.hub is not None
        self.hub.later(TICK_S, self._tick)
        now_s = self._clock()
        for seat in self.workers.values():
            self._look_at(seat, now_s)
        for shard in self.shards.all:
            if shard.line is not None and now_s - shard.heard_s > self.settings.silent_s:
                shard.line.end("it is silent")
        if self.deciding.wake_at_s is not None and now_s >= self.deciding.wake_at_s:
            self.deciding.woken(now_s)
        self._gather()
        self._predict(now_s)
        if not self.memory.frozen_by:  # what is frozen stays, also without the advisor that moved it there
            self.advised.tick(now_s)
        self._flush()
        self.record.tick()
        self._look_at_end(now_s)

    def _predict(self, now_s: float) -> None:
        """Groups that are not given follow the workers' speed."""
        follows = self._in_force.name == "dynamic-x" and "groups" not in self._in_force.options
        if follows and now_s - self._predicted_s > PREDICT_EVERY_S:
            self._predicted_s = now_s
            self.deciding.predicted(self.iteration_s(), now_s)

    def _look_at(self, seat: WorkerSeat, now_s: float) -> None:
        if seat.line is not None:
            if now_s - seat.heard_s > self.settings.silent_s:
                seat.line.end("it is silent")
        elif seat.state == "disconnected" and now_s - seat.heard_s > self.settings.lease_s:
            seat.state = "lost"
            say(f"worker {seat.rank} is taken for lost")
            if self.deciding.policy is not None:
                self.deciding.left(seat.rank, now_s)

    def _look_at_end(self, now_s: float) -> None:
        if any(seat.state in ("connected", "disconnected") for seat in self.workers.values()):
            self._last_worker_s, self._all_left_s = now_s, None
            return
        if now_s - self._last_worker_s > self.settings.idle_s:
            self._end("no worker is there", done=False)
        if self.workers and all(seat.state == "left" for seat in self.workers.values()):
            self._all_left_s = now_s if self._all_left_s is None else self._all_left_s
            if now_s - self._all_left_s > self.settings.linger_s:
                self._end("all workers have left", done=not self.settings.keep)

    def _end(self, why: str, *, done: bool) -> None:
        assert self.hub is not None
        self.why_over = why
        for seat in self.shards.all:
            seat.tell(Dismissed() if done else Refused(why))
        self.hub.later(TICK_S, self.hub.stop)


def _newest(named: Iterable[Named]) -> dict[int, int]:
    """Of each worker, the greatest number."""
    newest: dict[int, int] = {}
    for one in named:
        newest[one.worker] = max(newest.get(one.worker, -1), one.number)
    return newest
