"""The coordinator's place on its machine: the launcher's, not that of the rank that has started it.

A rank may be held by a quota of its control group, or bound to few cores. Every rank waits for the coordinator: what
holds one of them must not hold it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from starprof.collectors.cgroup import find_mounts

HOLDING = frozenset({"cpu", "cpuset"})
"""Controllers that can keep a process from the processor."""


def leave_rank(launcher: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[str]:
    """Go from the groups and cores of the process that has started this one to the launcher's.

    Args:
        launcher: process id.
        proc: where processes are told.
        sys: where control groups are.

    Returns:
        Folders of the groups that it may not leave.
    """
    kept = []
    with contextlib.suppress(OSError):  # the launcher is gone, or there are no control groups
        mine, theirs = (_groups(proc / str(pid)) for pid in ("self", launcher))
        for mount in find_mounts((proc / "self" / "mountinfo").read_bytes(), sys, HOLDING):
            name = "" if mount.version == 2 else min(mount.controllers)
            here, there = mine.get(name), theirs.get(name)
            if here is None or there is None or here == there:
                continue
            now, then = (list(mount.levels(path))[-1][-1] for path in (here, there))
            try:
                (then / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                kept.append(str(now))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(launcher))
    return kept


def _groups(process: Path) -> dict[str, str]:
    """Path of a process's group by controller; the unified hierarchy's is called ""."""
    groups = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups
