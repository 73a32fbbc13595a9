"""The shards as the head knows them: who is which one, what each has still to do, and who takes whose place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starprof.errors import TransportError, UsageError
from starprof.ps.head.deciding import Deciding
from starprof.ps.head.seats import ShardSeat, say, tell
from starprof.ps.messages import (
    KIND,
    WORDS,
    Dismissed,
    Done,
    Entry,
    Factor,
    GaveUp,
    Give,
    Keep,
    Norm,
    Places,
    Ready,
    Refused,
    Report,
    Stay,
    Took,
)
from starprof.ps.spec import Spec
from starprof.ps.wire import Line


class Shards:
    """Of one job.

    Attributes:
        seats: by number, those that have one.
        spares: processes that could be a shard.
        spec: the model; None: nobody has told it yet.
        deciding: the head's state machine.
        wanted: that there should be.
    """

    def __init__(self, wanted: int, deciding: Deciding, changed: Callable[[], None], moved: Callable[[], None]) -> None:
        """Begin with none.

        Args:
            wanted: how many there should be.
            deciding: the head's state machine.
            changed: called when there may be all of them, before anything is decided.
            moved: called when workers are to be told where they are.
        """
        self.seats: dict[int, ShardSeat] = {}
        self.spares: list[ShardSeat] = []
        self.spec: Spec | None = None
        self.deciding = deciding
        self.wanted = wanted
        self._changed = changed
        self._moved = moved

    @property
    def count(self) -> int:
        """That the parameters are spread over: there is a parameter for each at least."""
        return self.wanted if self.spec is None else min(self.wanted, len(self.spec.names))

    @property
    def all(self) -> list[ShardSeat]:
        """Spare ones too."""
        return [*self.seats.values(), *self.spares]

    @property
    def ready(self) -> bool:
        """Whether all have their parameters."""
        there = [seat for seat in self.seats.values() if seat.line is not None and seat.report.ready]
        return self.spec is not None and len(there) == self.count

    @property
    def places(self) -> Places:
        """Where they are."""
        count = 0 if self.spec is None else self.count
        return Places(count, tuple(seat.place for _, seat in sorted(self.seats.items())))

    def fill(self) -> None:
        """Spare processes become the shards that are missing: nothing was trained yet."""
        if self.spec is None:
            return
        for number in range(self.count):
            if number not in self.seats and self.spares:
                seat = self.spares.pop(0)
                seat.report = Report(number, seat.report.run, seat.report.host, seat.report.port)
                self.seats[number] = seat
                if seat.line is not None:
                    payload = memoryview(self.spec.to_json())
                    seat.line.send(KIND, WORDS.encode(Keep(number, self.count)), payload)
                self._moved()

    def met(self, line: Line, report: Report) -> None:
        """A shard, or what could be one, has said what it is."""
        if isinstance(line.data, ShardSeat):
            line.data.report = report  # it has become what it was told to be
            self._changed()
            return
        seat = ShardSeat(report, line)
        line.data = seat
        if report.shard < 0:
            self.spares.append(seat)
            self._changed()
        elif self.spec is None or report.digest != self.spec.digest or report.shard >= self.count:
            tell(line, Refused("what it has is not of this job"))
        else:
            self._seat(report.shard, seat)

    def _seat(self, number: int, seat: ShardSeat) -> None:
        """A shard is back, or another process has what it had; of two the one that has done more counts."""
        former = self.seats.get(number)
        known = max(self.deciding.done_by(number), former.report.done if former is not None else 0)
        if self.deciding.policy is not None and seat.report.done < known:
            say(f"what comes as shard {number} has not done all that shard {number} has: it is sent away")
            seat.tell(Dismissed())
            return
        if former is not None and former.line is not None and former is not seat:
            former.tell(Dismissed())
            former.line.data = None
        self.seats[number] = seat
        if self.deciding.policy is None:
            self._changed()
        else:
            self.deciding.done(number, seat.report.done - 1)
            for entry in self.deciding.missing(number):
                seat.tell(entry)
        self._moved()

    def heard(self, seat: ShardSeat, message: Any) -> None:
        """A shard has said something."""
        number = seat.report.shard
        match message:
            case Done(serial=serial):
                self.deciding.done(number, serial)
            case Norm(serial=serial, square=square):
                factor = self.deciding.norm(number, serial, square)
                if factor is not None:
                    self.tell(Factor(serial, factor))
            case Ready():
                old = seat.report
                seat.report = Report(number, old.run, old.host, old.port, digest=old.digest, ready=True)
                self._changed()
            case Took(report=report):
                seat.report = report
                say(f"shard {report.shard} is at {report.host}:{report.port} now")
                self._seat(report.shard, seat)
            case GaveUp(reason=reason):
                say(f"shard {number} stays where it is: {reason}")
                if seat.moving_to is not None:
                    self.spares.append(seat.moving_to)
                    seat.moving_to = None
            case _:
                raise TransportError("a shard said what no shard says")

    def lost(self, seat: ShardSeat, why: str) -> None:
        """A connection has ended."""
        seat.line = None
        for other in self.seats.values():
            if other.moving_to is seat:
                other.moving_to = None
                other.tell(Stay())
        if seat in self.spares:
            self.spares.remove(seat)
        elif self.seats.get(seat.report.shard) is seat:
            say(f"shard {seat.report.shard} is disconnected: {why}")
            self._moved()

    def move(self, number: int, to: str) -> dict[str, Any]:
        """Have a shard hand over to a spare process.

        Args:
            number: of the shard.
            to: a host, or HOST:PORT; "" for any.

        Raises:
            UsageError: there is no such shard, or no such process.
        """
        seat = self.seats.get(number)
        if seat is None or seat.line is None or self.deciding.policy is None:
            raise UsageError(f"there is no shard {number} to be moved now")
        if seat.moving_to is not None:
            raise UsageError(f"shard {number} is on its way already")
        fitting = [one for one in self.spares if to in ("", f"{one.report.host}:{one.report.port}", one.report.host)]
        if not fitting:
            at = f" at {to}" if to else ""
            raise UsageError(f"no spare process is there{at}: start one with `starprof ps spare`")
        seat.moving_to = fitting[0]
        self.spares.remove(fitting[0])
        seat.tell(Give(fitting[0].report.host, fitting[0].report.port))
        return {"shard": number, "to": f"{fitting[0].report.host}:{fitting[0].report.port}"}

    def tell(self, message: Entry | Factor) -> None:
        """All shards are told; it is encoded once."""
        data = WORDS.encode(message)
        for seat in self.seats.values():
            if seat.line is not None:
                seat.line.send(KIND, data)

    def tell_missing(self) -> None:
        """Each is told what it has not done."""
        for number, seat in self.seats.items():
            for entry in self.deciding.missing(number):
                seat.tell(entry)
