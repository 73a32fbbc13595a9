"""Weights and quotas of control groups, v1 and v2.

Version 1: a group of our own inside of the one that the processes are in, so that every limit around it
goes on to hold.
Version 2 lets no processes beside such a group: there the files of the present group are set, and only when all
that is in it belongs to the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from starprof.collectors.cgroup import Mount, find_mounts
from starprof.collectors.procfile import read_once
from starprof.control.actuators.base import Actuator, Request
from starprof.control.actuators.change import Change, RefusedError
from starprof.control.actuators.groups import pids_of
from starprof.control.actuators.job import JobHere, Member
from starprof.errors import UsageError

CPU = frozenset({"cpu"})
PERIOD_US = 100_000
SHARES_PER_WEIGHT = 1024 / 100
"""A weight of 100 is what a group has without being asked, in both versions."""


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`; the value is `weight=N` (1 to 10,000, usual 100) and `cores=X`, or one of them."""
    return plan_on(request, request.members("cgroup"), Path("/proc"), Path("/sys"))


def plan_on(request: Request, members: Iterable[Member], proc: Path, sys: Path) -> list[Change]:
    """The same on a given tree."""
    weight, cores = _wanted(request.value)
    mounts = find_mounts(read_once(proc / "self" / "mountinfo"), sys, CPU)
    if not mounts:
        raise RefusedError("no control group hierarchy with a cpu controller is mounted here")
    mount = mounts[0]
    groups: dict[Path, list[Member]] = {}
    for member in members:
        groups.setdefault(_folder(mount, proc, member), []).append(member)
    if mount.version == 1:
        return [_own_group(request.job, folder, inside, weight, cores) for folder, inside in groups.items()]
    return [change for folder, inside in groups.items() for change in _present_group(folder, inside, weight, cores)]


def _wanted(text: str) -> tuple[int | None, float | None]:
    match = re.fullmatch(r"(?:weight=(\d+))?,?(?:cores=(\d+(?:\.\d+)?))?", text)
    if match is None or not (match[1] or match[2]):
        raise UsageError(f"a group is asked for as weight=50 or cores=1.5 or weight=50,cores=1.5, not {text!r}")
    weight = int(match[1]) if match[1] else None
    cores = float(match[2]) if match[2] else None
    if (weight is not None and not 1 <= weight <= 10_000) or (cores is not None and not 0.01 <= cores <= 4096):
        raise UsageError("a weight is 1 to 10000, a quota at least 0.01 cores")
    return weight, cores


def _folder(mount: Mount, proc: Path, member: Member) -> Path:
    """The group that a process is in."""
    for line in read_once(proc / str(member.pid) / "cgroup").decode(errors="replace").splitlines():
        _, names, path = line.split(":", 2)
        if (mount.version == 2 and not names) or (mount.version == 1 and "cpu" in names.split(",")):
            return list(mount.levels(path))[-1][-1]
    raise RefusedError(f"{member.words} is in no group of the cpu controller")


def _own_group(job: JobHere, folder: Path, members: list[Member], weight: int | None, cores: float | None) -> Change:
    files: dict[str, str] = {}
    if weight is not None:
        files["cpu.shares"] = str(max(2, round(weight * SHARES_PER_WEIGHT)))
    if cores is not None:
        files["cpu.cfs_period_us"] = str(PERIOD_US)
        files["cpu.cfs_quota_us"] = str(max(1000, round(cores * PERIOD_US)))
    name = f"starprof-{members[0].pid}-{members[0].start}"
    if folder.name.startswith("starprof-"):
        raise RefusedError(f"{members[0].words} is in a group of ours already: take that back first")
    target: Mapping[str, object] = {
        "folder": str(folder),
        "inode": folder.stat().st_ino,
        "name": name,
        "files": sorted(files),
        "pids": [[member.pid, member.start] for member in members],
    }
    who = ", ".join(member.words for member in members)
    told = ", ".join(f"{file} {text}" for file, text in files.items())
    return Change("own-group", target, None, files, f"{who}: a group {name} in {folder} with {told} ({job.name})")


def _present_group(folder: Path, members: list[Member], weight: int | None, cores: float | None) -> list[Change]:
    strangers = pids_of(folder) - {member.pid for member in members}
    if strangers:
        raise RefusedError(
            f"{folder} holds processes that are not meant, such as {min(strangers)}: start the job in its own group"
        )
    files = {"cpu.weight": None if weight is None else str(weight)}
    files["cpu.max"] = None if cores is None else f"{max(1000, round(cores * PERIOD_US))} {PERIOD_US}"
    changes = []
    for file, value in files.items():
        if value is None:
            continue
        if not (folder / file).exists():
            raise RefusedError(f"{folder} has no {file}: the cpu controller is not delegated to it")
        target = {"folder": str(folder), "inode": folder.stat().st_ino, "file": file}
        old = (folder / file).read_text().strip()
        who = ", ".join(member.words for member in members)
        changes.append(Change("group-file", target, old, value, f"{who}: {folder / file} {old} -> {value}"))
    return changes


ACTUATOR = Actuator(
    "cgroup",
    "weight=N,cores=X",
    "weight and quota of processor time in a control group",
    "the job's consent, and the right to write its group (root, or delegation)",
    plan,
)
