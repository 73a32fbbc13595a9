"""The spool's run.json: what is recorded, written before the job starts and again when it has ended."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

from starprof import __version__
from starprof.launch.plan import Plan


def describe(plan: Plan, *, run_id: str, node: int) -> dict[str, Any]:
    """Description of a run that begins now; times are wall clock, in ns."""
    return {
        "run_id": run_id,
        "name": plan.path.stem,
        "command": shlex.join(plan.command),
        "starprof_version": __version__,
        "started_unix_ns": time.time_ns(),
        "ended_unix_ns": None,
        "exit_code": None,
        "node": node,
        **({} if plan.store is None else {"store": plan.store}),
    }


def write(path: Path, info: dict[str, Any]) -> None:
    """Replace the file atomically.

    Raises:
        OSError: it can't be written.
    """
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        json.dump(info, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
