"""`starprof placement RUN...`: which node makes runs slow, from many runs on different nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from starprof.errors import InputError
from starprof.spool.layout import RUN_SUFFIX


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("placement")(placement)


def placement(
    paths: list[str] = typer.Argument(
        metavar="RUN...", help="Run files, logs with host lists, or tables of runs with times and hosts."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as JSON."),
) -> None:
    """Say which nodes make runs slow, and which can't be told apart."""
    from dataclasses import replace

    from starprof.analysis.placement import RunOn, judge
    from starprof.cli.runs import run_as_shown
    from starprof.cli.summary import terminal_here
    from starprof.importers.placed_runs import read_runs, run_on
    from starprof.reports import placement as report

    runs: list[RunOn] = []
    left: list[str] = []
    for path in (p for p in paths if p.endswith(RUN_SUFFIX)):
        told = run_on(run_as_shown(Path(path)))
        if isinstance(told, str) or not told.nodes:
            left.append(f"{path}: {told if isinstance(told, str) else 'it names no hosts'}")
        else:
            runs.append(replace(told, name=path))
    found, more = read_runs([p for p in paths if not p.endswith(RUN_SUFFIX)])
    runs, left = runs + found, left + more
    if not runs:
        raise InputError(f"no run with step times and hosts: {left[0] if left else 'name some'}")
    answer = judge(runs)
    if as_json:
        print(json.dumps(answer.to_json(), indent=2))
    else:
        sys.stdout.write(report.render(answer, left, terminal_here()))
