"""Niceness and I/O priority of every thread of a process: a process's own niceness is that of its main thread only."""

from __future__ import annotations

import os
import re

from starprof.control.actuators.base import Actuator, Request, each
from starprof.control.actuators.change import Change, GoneError, RefusedError
from starprof.control.actuators.job import Member
from starprof.control.actuators.processes import threads
from starprof.control.actuators.scheduling import IO_CLASSES, IoPriority, io_priority
from starprof.errors import UsageError

LOWEST, HIGHEST = -20, 19


def plan_nice(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    value = request.whole(LOWEST, HIGHEST, "niceness")

    def of(member: Member) -> list[Change]:
        known = list(threads(member.pid))
        changes = []
        for tid, start in known:
            try:
                old = os.getpriority(os.PRIO_PROCESS, tid)
            except ProcessLookupError:
                continue
            if value < old and os.geteuid() != 0:
                raise RefusedError(f"only root may take niceness {old} of {member.words} down to {value}")
            words = f"{member.words}, thread {tid}: niceness {old} -> {value}"
            changes.append(Change("nice", _target(member, tid, start, known), old, value, words))
        return changes

    return each(request.members("nice"), of)


def plan_io(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    match = re.fullmatch(r"(best-effort|realtime):([0-7])|idle|none", request.value)
    if match is None:
        raise UsageError(f"an I/O priority is best-effort:0 to 7, realtime:0 to 7, idle or none, not {request.value!r}")
    kind = match[1] or request.value
    if kind == "realtime" and os.geteuid() != 0:
        raise RefusedError("only root may give the I/O priority realtime")
    value = io_priority(kind, int(match[2] or 0))
    knob = IoPriority()

    def of(member: Member) -> list[Change]:
        known = list(threads(member.pid))
        changes = []
        for tid, start in known:
            try:
                old = knob.get(tid)
            except (GoneError, ProcessLookupError):
                continue
            words = f"{member.words}, thread {tid}: I/O priority {_shown(old)} -> {_shown(value)}"
            changes.append(Change("ioprio", _target(member, tid, start, known), old, value, words))
        return changes

    return each(request.members("ionice"), of)


def _target(member: Member, tid: int, start: int, known: list[tuple[int, int]]) -> dict[str, object]:
    target: dict[str, object] = {"pid": member.pid, "start": member.start, "tid": tid, "tid_start": start}
    if tid == member.pid:
        target["heirs"] = [list(thread) for thread in known]
    return target


def _shown(value: int) -> str:
    kind, level = value >> 13, value & 0x1FFF
    name = next((name for name, number in IO_CLASSES.items() if number == kind), str(kind))
    return f"{name}:{level}" if kind in (1, 2) else name


ACTUATOR = Actuator(
    "nice",
    "-20..19",
    "niceness of every thread",
    "the job's user; root for less than now",
    plan_nice,
)
IO_ACTUATOR = Actuator(
    "ionice", "CLASS[:LEVEL]", "I/O priority of every thread", "the job's user; root for realtime", plan_io
)
