"""Environments: what the job gets on top of its own, and what our helpers must not inherit."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from starprof.model import env

HOME = Path(__file__).resolve().parents[2]
"""Directory that contains the `starprof` package."""

INJECT = HOME / "starprof" / "hook" / "inject"
"""Directory whose `sitecustomize` arms the hook in every Python process of the job."""

_NOT_FOR_HELPERS = (
    env.SPOOL,
    env.CONTROL,
    env.NODE,
    env.HOME,
    env.RATE_HZ,
    "PYTHONINSPECT",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
)


def for_job(
    base: Mapping[str, str],
    *,
    pythonpath: str | None,
    spool: Path,
    node: int,
    rate_hz: float,
    control: str | None = None,
) -> dict[str, str]:
    """The user's environment plus what arms the hook; the user's own PYTHONPATH stays, behind ours.

    The database's password is for us alone.
    """
    controlled = {} if control is None else {env.CONTROL: control}
    return {
        **{name: value for name, value in base.items() if name != env.CLICKHOUSE_PASSWORD},
        "PYTHONPATH": os.pathsep.join((str(INJECT), pythonpath) if pythonpath else (str(INJECT),)),
        env.SPOOL: str(spool),
        env.NODE: str(node),
        env.HOME: str(HOME),
        env.RATE_HZ: f"{rate_hz:g}",
        **controlled,
    }


def for_helpers(base: Mapping[str, str], *, pythonpath: str | None) -> dict[str, str]:
    """An environment in which our own processes find starprof and are never recorded themselves.

    Our directory comes last: an installed starprof wins, and a user's PYTHONPATH that holds our dependencies counts.
    """
    kept = {name: value for name, value in base.items() if name not in _NOT_FOR_HELPERS}
    paths = [p for p in (pythonpath or "").split(os.pathsep) if p and p != str(INJECT)]
    return {**kept, "PYTHONPATH": os.pathsep.join([*paths, str(HOME)])}


def helper_argv(module: str, *arguments: str) -> list[str]:
    """Command line of one of our own modules; `-P` keeps the user's working directory out of its imports."""
    return [sys.executable, "-P", "-m", module, *arguments]


def node_rank(environ: Mapping[str, str]) -> int | None:
    """Node rank that the cluster's launcher set, None when there is none."""
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        value = environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def job_id(environ: Mapping[str, str]) -> str | None:
    """Id of the batch job, None outside of one."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "TORCHELASTIC_RUN_ID"):
        value = environ.get(name)
        if value:
            return value
    return None
