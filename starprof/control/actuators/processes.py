"""Processes and threads by number AND start: a number is used again, the two together never are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starprof.collectors.procfile import read_once
from starprof.collectors.procstat import parse_stat
from starprof.control.actuators.change import GoneError


def start_of(pid: int, tid: int | None = None, proc: Path = Path("/proc")) -> int:
    """When a process (or a thread of it) was started, in clock ticks since boot.

    Raises:
        GoneError: it has ended.
    """
    path = proc / str(pid) / "stat" if tid is None else proc / str(pid) / "task" / str(tid) / "stat"
    try:
        stat = parse_stat(read_once(path))
    except (OSError, ValueError, IndexError) as error:
        raise GoneError(f"process {pid if tid is None else tid} has ended") from error
    if stat.ended:
        raise GoneError(f"process {pid if tid is None else tid} has ended")
    return stat.start_ticks


def check(target: Mapping[str, Any]) -> None:
    """That the process (and thread) of a target still is the one that was meant.

    Raises:
        GoneError: it is not.
    """
    pid = int(target["pid"])
    if start_of(pid) != target["start"]:
        raise GoneError(f"process {pid} is another one by now")
    if "tid" in target and start_of(pid, int(target["tid"])) != target["tid_start"]:
        raise GoneError(f"thread {target['tid']} is another one by now")


def alive(pid: int, start: int) -> bool:
    """Whether this very process still runs."""
    try:
        return start_of(pid) == start
    except GoneError:
        return False


def threads(pid: int) -> Iterator[tuple[int, int]]:
    """Number and start of each thread of a process; none when it has ended."""
    try:
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names only
    except OSError:
        return
    for tid in numbers:
        try:
            yield tid, start_of(pid, tid)
        except GoneError:
            continue


def environment(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """What a process was started with; empty where that can't be seen."""
    try:
        data = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def boot_id() -> str:
    """Of this boot: nothing that was changed outlives it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
