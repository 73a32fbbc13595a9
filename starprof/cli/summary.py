"""`starprof summary RUN`: the verdict in the terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.cli.baseline import BASELINE, profiles
from starprof.cli.price import GPU_HOUR_PRICE, priced
from starprof.cli.runs import run_and_verdict

if TYPE_CHECKING:
    from starprof.model.rundata import RunData
    from starprof.model.verdict import Verdict
    from starprof.reports.terminal import Terminal


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("summary")(summary)


def summary(
    run: Path = typer.Argument(help="Run file (NAME.starprof), or clickhouse://HOST/DATABASE/RUN."),
    as_json: bool = typer.Option(False, "--json", help="Print exactly the verdict object as JSON."),
    gpu_hour_price: float | None = GPU_HOUR_PRICE,
    baseline: list[str] = BASELINE,
) -> None:
    """Say who is slow, why, what it costs and what to do."""
    from starprof.analysis.baseline import against, profile_of

    known = profiles(baseline)
    data, verdict = run_and_verdict(run)
    if known:
        verdict = against(verdict, profile_of(data), known)
    verdict = priced(verdict, gpu_hour_price)
    show(data, verdict, as_json=as_json)
    if verdict.steps is None and verdict.verdict == "inconclusive":  # no samples are not a healthy run
        raise typer.Exit(1)


def show(data: RunData, verdict: Verdict, *, as_json: bool) -> None:
    """Print a verdict on stdout. The JSON has no place for what to know about the run itself: that goes to stderr."""
    from starprof.reports.plain import printable

    if not as_json:
        sys.stdout.write(rendered(data, verdict))
        return
    if data.info["note"]:
        print(f"starprof: {printable(str(data.info['note']))}", file=sys.stderr)
    print(json.dumps(verdict.to_json(), indent=2))


def rendered(data: RunData, verdict: Verdict) -> str:
    """The summary as it is printed on this terminal."""
    from starprof.reports import terminal

    return terminal.render(data, verdict, terminal_here())


def terminal_here() -> Terminal:
    """Where stdout goes."""
    from starprof.reports.terminal import Terminal

    return Terminal(
        width=shutil.get_terminal_size().columns,
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        encoding=sys.stdout.encoding or "ascii",
    )
