"""`starprof advise RUN`: what to do about a run's stragglers, or that doing nothing is best."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from starprof.cli.runs import run_and_verdict


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("advise")(advise)


def advise(
    run: Path = typer.Argument(help="Run file (NAME.starprof)."),
    as_json: bool = typer.Option(False, "--json", help="Print the advice as one JSON object."),
) -> None:
    """Say what to do: cure the cause, change the synchronisation mode, or do nothing; and what each would save."""
    from starprof.cli.summary import terminal_here
    from starprof.reports import advised

    data, verdict = run_and_verdict(run)
    advice = advised.advice_of(data, verdict)
    if as_json:
        print(json.dumps(advice.to_json(), indent=2))
    else:
        sys.stdout.write(advised.render(advice, terminal_here()))
