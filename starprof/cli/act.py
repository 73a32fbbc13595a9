"""`starprof act JOB ACTUATOR VALUE`: move processor time and bandwidth between processes of a running job, and back."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from starprof.errors import StarprofError, UsageError

if TYPE_CHECKING:
    from starprof.control.actuators.hand import Undone
    from starprof.control.actuators.job import JobHere
    from starprof.control.actuators.journal import Entry
    from starprof.control.actuators.measure import Seen

LISTED = ("list", "status", "undo", "loaders")
"""What is no actuator, but can be asked for in the place of one."""


SPARE_S = 15.0
"""Ranks go back by themselves so much later than this command would tell them to, which normally comes first."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("act", context_settings={"ignore_unknown_options": True})(act)


def act(
    job: Path = typer.Argument(help="Run file of a job that is being recorded on this machine."),
    what: str = typer.Argument(help="An actuator, or list, status, undo, loaders."),
    value: str | None = typer.Argument(None, help="What to set; `list` tells what each takes. With undo: a number."),
    rank: list[int] = typer.Option([], "--rank", help="Only this rank; may be repeated. Default: all on this machine."),
    helpers: bool | None = typer.Option(
        None, "--only-helpers/--only-ranks", help="Only what ranks have started, such as loader workers; or only ranks."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would be changed, and change nothing."),
    hold_s: float | None = typer.Option(
        None, "--for", metavar="SECONDS", min=0.1, help="Take it back after this time, or when this command ends."
    ),
    measure_s: float = typer.Option(
        0.0, "--measure", metavar="SECONDS", min=0.0, max=600.0, help="Watch the job before and after, and tell."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Change what a running job's processes use of their machine; every old value is kept on disk and put back."""
    from starprof.control.actuators.job import JobHere
    from starprof.control.actuators.repair import repair

    tell_undone(repair(), "left by a process that was killed: ")
    if what == "list":
        _print_list(as_json)
        return
    here = JobHere.of(job)
    if what == "status":
        _print_status(here, as_json)
    elif what == "undo":
        _undo(here, value, as_json)
    elif what == "loaders":
        _print_loaders(here, measure_s or 5.0, as_json)
    else:
        _act(here, what, value, tuple(rank) or None, helpers, dry_run, hold_s, measure_s, as_json)


def _act(
    here: JobHere,
    what: str,
    value: str | None,
    ranks: tuple[int, ...] | None,
    helpers: bool | None,
    dry_run: bool,
    hold_s: float | None,
    measure_s: float,
    as_json: bool,
) -> None:
    from starprof.control.actuators import hand
    from starprof.control.actuators.base import Request
    from starprof.control.actuators.registry import ACTUATORS
    from starprof.control.actuators.watchdog import watched

    actuator = ACTUATORS.get(what)
    if actuator is None:
        raise UsageError(f"there is no actuator {what!r}; there are {', '.join([*ACTUATORS, *LISTED])}")
    if value is None:
        raise UsageError(f"{what} takes {actuator.takes}")
    end_ns = None if hold_s is None else time.monotonic_ns() + round((hold_s + 2 * measure_s + SPARE_S) * 1e9)
    changes = actuator.plan(Request(here, value, ranks, helpers, end_ns))
    if dry_run:
        told: dict[str, Any] = {"would": [change.to_json() for change in changes]}
        _print(told if as_json else None, [f"would change {change.words}" for change in changes])
        return
    before = _watched(here, measure_s)
    if hold_s is None:
        entry = hand.make(here, what, changes, standing=True)
        _tell_made(here, entry, before, measure_s, as_json)
        print(f"take it back: starprof act {here.spool.root.with_suffix('')} undo {entry.number}", file=sys.stderr)
        return
    with watched(), _signals_wait():
        entry = hand.make(here, what, changes, standing=False)
        try:
            _tell_made(here, entry, before, measure_s, as_json)
            signal.sigtimedwait(ENDING, hold_s)
        finally:
            tell_undone(hand.take_back(here.key, [entry.number]))


def _tell_made(here: JobHere, entry: Entry, before: Seen | None, measure_s: float, as_json: bool) -> None:
    from starprof.control.actuators.measure import heard

    if measure_s:
        heard(here)
    after = _watched(here, measure_s)
    told = {"action": entry.number, "changes": [c.to_json() for c in entry.changes], "effect": _effect(before, after)}
    lines = [*(f"changed {change.words}" for change in entry.changes), *_effect_lines(before, after)]
    _print(told if as_json else None, lines)
    sys.stdout.flush()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Whoever wants this command to end waits until it has put everything back; one that came ends it then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_waits() -> Iterator[None]:
    """Whoever wants this command to end is heard at once, as an exception in this thread: what follows is put back."""

    def end(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(here: JobHere, seconds: float) -> Seen | None:
    from starprof.control.actuators.measure import Watch

    if not seconds:
        return None
    watch = Watch(here)
    try:
        time.sleep(seconds)
        return watch.end()
    finally:
        watch.close()


def _effect(before: Seen | None, after: Seen | None) -> dict[str, Any] | None:
    if before is None or after is None:
        return None
    return {
        "iteration_s": [before.mean_iteration_s, after.mean_iteration_s],
        "cores": [before.all_cores, after.all_cores],
    }


def _effect_lines(before: Seen | None, after: Seen | None) -> Iterable[str]:
    if before is None or after is None:
        return
    lengths = [seen.mean_iteration_s for seen in (before, after)]
    told = " -> ".join("no step" if s is None else f"{1e3 * s:.4g} ms" for s in lengths)
    yield f"effect: a step takes {told}; the job uses {before.all_cores:.2f} -> {after.all_cores:.2f} cores"


def _undo(here: JobHere, number: str | None, as_json: bool) -> None:
    from starprof.control.actuators import hand
    from starprof.control.actuators.journal import Journal

    known = {entry.number for entry in Journal.of_job(here.key).entries()}
    if number is not None and number not in known:
        raise UsageError(f"there is no action {number}; there are {', '.join(sorted(known)) or 'none'}")
    undone = hand.take_back(here.key, None if number is None else [number])
    left = [one.left for one in undone if one.left]
    _print({"undone": len(undone), "left": left} if as_json else None, [f"put back: {len(undone) - len(left)} values"])
    tell_undone(undone)
    if any(one.failed for one in undone):
        raise StarprofError("not everything could be put back; it is tried again next time")


def _print_status(here: JobHere, as_json: bool) -> None:
    from starprof.control.actuators.journal import Journal
    from starprof.control.actuators.measure import report

    entries = Journal.of_job(here.key).entries()
    lines = [f"{entry.number}  {entry.actuator}: {change.words}" for entry in entries for change in entry.changes]
    told: dict[str, Any] = {
        "actions": [
            {"action": e.number, "actuator": e.actuator, "changes": [c.to_json() for c in e.changes]} for e in entries
        ],
        "ranks": [],
    }
    for member in here.members():
        found = None if member.helper else report(here, member)
        if found is not None:
            told["ranks"].append(found)
            lines += [f"{member.words} says: {words}" for words in dict(found["told"]).values()]
            lines += [f"{member.words} refuses {name}: {why}" for name, why in dict(found["refused"]).items()]
            lines += [f"{member.words}: {words}" for words in list(found["left"])]
    _print(told if as_json else None, lines or ["nothing is changed"])


def _print_list(as_json: bool) -> None:
    from starprof.control.actuators.registry import ACTUATORS

    lines = []
    for actuator in ACTUATORS.values():
        why = actuator.missing()
        lines.append(f"{actuator.name:<9} {actuator.takes:<20} {actuator.does}; needs {actuator.needs}")
        if why:
            lines.append(f"{'':<30} not here: {why}")
    told = [
        {"name": a.name, "takes": a.takes, "does": a.does, "needs": a.needs, "missing": a.missing()}
        for a in ACTUATORS.values()
    ]
    _print({"actuators": told} if as_json else None, lines)


def _print_loaders(here: JobHere, seconds: float, as_json: bool) -> None:
    from dataclasses import asdict

    from starprof.control.actuators.loaders import advise

    seen = _watched(here, seconds)
    assert seen is not None
    found = advise(seen, here.members())
    told = {"loaders": [asdict(one) for one in found]}
    _print(told if as_json else None, [f"rank {one.rank}: {one.why}" for one in found] or ["no rank has made a step"])


def _print(told: dict[str, Any] | None, lines: Iterable[str]) -> None:
    from starprof.reports.plain import printable

    if told is not None:
        print(json.dumps({"schema": 1, **told}, indent=2))
        return
    for line in lines:
        print(printable(line))


def tell_undone(undone: Iterable[Undone], prefix: str = "") -> None:
    """Say what was put back after a kill, and what could not be."""
    from starprof.reports.plain import printable

    for one in undone:
        if one.left:
            print(printable(f"starprof: {one.left}"), file=sys.stderr)
        elif prefix:
            print(printable(f"starprof: put back, {prefix}{one.change.words}"), file=sys.stderr)
