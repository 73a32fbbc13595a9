"""Makes changes and takes them back: written down first, checked again at the moment they are made.

A value that somebody else has changed in the meantime is left as it is, and told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starprof.control.actuators.change import Change, GoneError, RefusedError
from starprof.control.actuators.job import JobHere
from starprof.control.actuators.journal import Entry, Journal, new_entry
from starprof.control.actuators.knobs import KNOBS


@dataclass(frozen=True, slots=True)
class Undone:
    """What became of one change when it was taken back.

    Attributes:
        change: which.
        left: why the old value is not there again; "" when it is.
        failed: it is tried again next time.
    """

    change: Change
    left: str = ""
    failed: bool = False


def make(
    job: JobHere,
    actuator: str,
    changes: Sequence[Change],
    *,
    standing: bool,
    before_each: Callable[[Change], None] = lambda _change: None,
) -> Entry:
    """Make changes of a job, all of them or none.

    Args:
        job: that they are for.
        actuator: that has planned them.
        changes: planned ones; their old values are looked at again.
        standing: they stay when this process ends; else whoever starts next takes them back if this one can't.
        before_each: called before each; may raise.

    Raises:
        RefusedError: one can't be made; those before are taken back.
        JournalError: they can't be written down.
    """
    journal = Journal.of_job(job.key)
    with journal.held():
        fresh = [_looked_at(change) for change in changes]
        entry = new_entry(actuator, job.key, fresh, standing=standing)
        journal.begin(entry)
        done: list[Change] = []
        try:
            for change in entry.changes:
                before_each(change)
                done.append(_made(change))
        except (GoneError, OSError, RefusedError) as error:
            for undone in take_back_changes(entry.changes):
                if undone.failed:
                    raise RefusedError(f"{actuator}: {_why(error)}; and {undone.left}") from error
            journal.undone(entry.number)
            raise RefusedError(f"{actuator}: {_why(error)}; nothing is changed") from error
        entry = replace(entry, changes=tuple(done), made=True)
        journal.made(entry)
    return entry


def take_back(job: str, numbers: Sequence[str] | None = None) -> list[Undone]:
    """Take a job's actions back, the newest first.

    Args:
        job: its key.
        numbers: of the entries; None: all.
    """
    journal = Journal.of_job(job)
    with journal.held():
        return take_back_held(journal, [e for e in journal.entries() if numbers is None or e.number in numbers])


def take_back_held(journal: Journal, entries: Sequence[Entry]) -> list[Undone]:
    """The same for whoever holds the journal."""
    found = []
    for entry in reversed(entries):
        undone = take_back_changes(entry.changes)
        found += undone
        if not any(one.failed for one in undone):
            journal.undone(entry.number)
    return found


def take_back_changes(changes: Sequence[Change]) -> list[Undone]:
    """Put old values back, the last one first."""
    return [_taken_back(change) for change in reversed(changes)]


def _looked_at(change: Change) -> Change:
    try:
        return replace(change, old=KNOBS[change.knob].read(change.target))
    except (GoneError, OSError) as error:
        raise RefusedError(f"{change.words or change.knob}: {_why(error)}") from error


def _made(change: Change) -> Change:
    knob = KNOBS[change.knob]
    knob.write(change.target, change.new)
    return replace(change, new=knob.read(change.target))


def _taken_back(change: Change) -> Undone:
    knob = KNOBS[change.knob]
    try:
        now = knob.read(change.target)
        if now == change.old:
            return Undone(change)
        if now != change.new:
            return Undone(change, f"{_what(change)} is {_shown(now)} by now, which is not of our making: left as it is")
        knob.write(change.target, change.old)
    except GoneError:
        return Undone(change)
    except (OSError, RefusedError) as error:
        return Undone(change, f"{_what(change)} can't be put back: {_why(error)}", failed=True)
    return Undone(change)


def _what(change: Change) -> str:
    return change.words or f"{change.knob} {dict(change.target)}"


def _shown(value: Any) -> str:
    return str(value)[:200]


def _why(error: Exception) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error)
