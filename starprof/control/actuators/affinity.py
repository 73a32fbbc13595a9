"""Processors that ranks and their helpers may run on, by number or by NUMA node."""

from __future__ import annotations

import os
from pathlib import Path

from starprof.control.actuators.base import Actuator, Request, each
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.job import Member
from starprof.control.actuators.processes import threads
from starprof.errors import UsageError


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    wanted = processors(request.value)

    def of(member: Member) -> list[Change]:
        known = list(threads(member.pid))
        changes = []
        for tid, start in known:
            target: dict[str, object] = {"pid": member.pid, "start": member.start, "tid": tid, "tid_start": start}
            if tid == member.pid:
                target["heirs"] = [list(each_thread) for each_thread in known]
            try:
                old = sorted(os.sched_getaffinity(tid))
            except ProcessLookupError:
                continue
            words = f"{member.words}, thread {tid}: processors {_shown(old)} -> {_shown(wanted)}"
            changes.append(Change("affinity", target, old, wanted, words))
        return changes

    return each(request.members("affinity"), of)


def processors(text: str, sys: Path = Path("/sys")) -> list[int]:
    """Numbers in `0-3,8`, of `numa:0`, or of `all`.

    Raises:
        UsageError: it is no such text.
        RefusedError: this machine has none of them.
    """
    if text == "all":
        text = (sys / "devices/system/cpu/online").read_text().strip()
    elif text.startswith("numa:"):
        try:
            text = (sys / f"devices/system/node/node{int(text[5:])}/cpulist").read_text().strip()
        except (OSError, ValueError) as error:
            raise RefusedError(f"this machine has no NUMA node {text[5:]}") from error
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError as error:
        raise UsageError(f"processors are written as 0-3,8 or numa:0 or all, not {text!r}") from error
    there = found & set(range(os.cpu_count() or 1))
    if not there:
        raise RefusedError(f"this machine has no processor {text}")
    return sorted(there)


def _shown(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


ACTUATOR = Actuator(
    "affinity", "CPUS|numa:N|all", "processors for each thread of ranks and loader workers", "the job's user", plan
)
