"""What an actuator is: a module with a name, what it needs, and a plan of changes for what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.job import JobHere, Member, chosen
from starprof.control.actuators.processes import environment
from starprof.errors import UsageError
from starprof.model import env


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        job: whose processes are meant.
        value: what is to be set, as the user has written it.
        ranks: numbers; None: all that run here.
        helpers: only what ranks have started (loader workers), or only ranks; None: both.
        end_ns: when ranks go back by themselves, CLOCK_MONOTONIC; None: never.
    """

    job: JobHere
    value: str
    ranks: tuple[int, ...] | None = None
    helpers: bool | None = None
    end_ns: int | None = None

    def members(self, actuator: str | None) -> list[Member]:
        """Processes that are meant, all of which may be touched; None: they are only looked at.

        Raises:
            RefusedError: nobody runs here, or the job does not allow it.
            UsageError: a rank is not there.
        """
        found = chosen(self.job.members(), self.ranks, helpers=self.helpers)
        if not found:
            raise RefusedError(f"{self.job.name} has no such process on this machine")
        if actuator is not None:
            for member in found:
                self.job.allowed(actuator, member)
        return found

    def number(self, low: float, high: float, unit: str) -> float:
        """The value as a number.

        Raises:
            UsageError: it is none, or out of range.
        """
        try:
            number = float(self.value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise UsageError(f"{self.value!r} is no number of {unit} from {low:g} to {high:g}")
        return number

    def whole(self, low: int, high: int, unit: str) -> int:
        """The same for a whole number."""
        number = self.number(low, high, unit)
        if number != int(number):
            raise UsageError(f"{self.value!r} is no whole number of {unit}")
        return int(number)


@dataclass(frozen=True, slots=True)
class Actuator:
    """One of them.

    Attributes:
        name: as users call it, and as a job's list of what may be done to it does.
        takes: what its value is.
        does: in a few words.
        needs: what has to be there.
        plan: the changes, without making any.
        missing: why it can't be used on this machine; "" when it can.
    """

    name: str
    takes: str
    does: str
    needs: str
    plan: Callable[[Request], list[Change]]
    missing: Callable[[], str] = lambda: ""


def ordered(request: Request, actuator: str | None, setting: str, value: Any, words: str) -> list[Change]:
    """Changes of what ranks are asked for.

    Raises:
        RefusedError: they would not hear it.
    """
    changes = []
    for member in request.members(actuator):
        if member.helper:
            continue
        listens(member)
        target = {"spool": request.job.key, "rank": member.rank, "setting": setting, "end_ns": request.end_ns}
        changes.append(Change("order", target, None, value, f"{member.words}: {words}"))
    return changes


def listens(member: Member) -> None:
    """That a rank looks for orders.

    Raises:
        RefusedError: it does not.
    """
    if env.CONTROL not in environment(member.pid):
        raise RefusedError(f"{member.words} takes no orders: start the job with `starprof record --control`")


def each(members: Iterable[Member], make: Callable[[Member], Iterable[Change]]) -> list[Change]:
    """Changes of all, in order."""
    return [change for member in members for change in make(member)]
