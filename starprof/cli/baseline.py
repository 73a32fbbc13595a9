"""`--baseline`, for the verbs that give a verdict: other runs, known as good, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.cli.runs import run_as_shown
from starprof.spool.layout import RUN_SUFFIX

if TYPE_CHECKING:
    from starprof.analysis.baseline import Profile

BASELINE = typer.Option(
    [],
    "--baseline",
    metavar="RUN",
    help="A run known as good (run file, or what `analyze` reads) to compare with; may be given several times.",
)


def profiles(paths: Sequence[str]) -> list[Profile]:
    """Profiles of the runs behind the paths; those without step times are left out.

    Raises:
        InputError: none of what a path holds can be read, or has step times.
        RunFileError: a run file can't be read.
    """
    from starprof.errors import InputError

    found: list[Profile] = []
    for path in paths:
        told = list(_behind(path))
        if not told:
            raise InputError(f"--baseline {path} holds no run with step times")
        found += told
    return found


def _behind(path: str) -> list[Profile]:
    from starprof.analysis.baseline import profile_of
    from starprof.importers.jobs import Failed, opened

    if path.endswith(RUN_SUFFIX):
        profile = profile_of(run_as_shown(Path(path)))
        return [profile] if profile is not None else []
    with opened([path]) as jobs:
        runs = (profile_of(run) for _, run in jobs.each() if not isinstance(run, Failed))
        return [profile for profile in runs if profile is not None]
