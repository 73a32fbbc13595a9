"""`starprof calibrate JOB`: measure on a running job what plans of resources need to know, and take everything back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from starprof.cli.options import options_of
from starprof.errors import UsageError

_BAR = 24


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("calibrate")(calibrate)


def calibrate(
    job: Path = typer.Argument(help="Run file of a job that is being recorded with --control on this machine."),
    seconds: float = typer.Option(5.0, "--seconds", min=0.5, max=60.0, help="Length of each of its phases."),
    mode: list[str] = typer.Option(
        ["asgd"],
        "--mode",
        metavar="MODE",
        help="A mode whose need is measured; may be repeated; `none` for none.",
    ),
    option: list[str] = typer.Option([], "--option", metavar="NAME=VALUE", help="Of that mode, where there is one."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Measure what a running job frees and loses when it is delayed, throttled, or in another mode."""
    from starprof.cli.act import ending_waits, tell_undone
    from starprof.control.actuators.calibration import Calibrating, rows_of
    from starprof.control.actuators.job import JobHere
    from starprof.control.actuators.keep import keep, place
    from starprof.control.actuators.repair import repair
    from starprof.control.actuators.watchdog import watched
    from starprof.decision.resources.calibrated import calibrated

    options = options_of(option)
    if options and len(mode) != 1:
        raise UsageError("--option needs one --mode")
    tell_undone(repair(), "left by a process that was killed: ")
    here = JobHere.of(job)
    wanted = [(name, options) for name in mode if name != "none"]
    bar = _Bar()
    work = Calibrating(here, seconds, wanted, bar.show)
    node, attempt = place(here)
    with watched(), ending_waits():
        try:
            work.run()
        finally:
            bar.end()
            rows = rows_of(work.phases, node, attempt)
            keep(here, rows)
    told = calibrated(rows)
    if as_json:
        print(json.dumps({"schema": 1, "rows": rows, "skipped": work.skipped, "measured": told.to_json()}, indent=2))
        return
    from starprof.reports.plain import printable

    for line in [*told.lines(), *(f"not measured: {why}" for why in work.skipped)]:
        print(printable(line))


class _Bar:
    """How far it is, on a terminal only."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()

    def show(self, name: str, done: int, whole: int) -> None:
        """A phase begins."""
        if self._on:
            full = round(_BAR * done / whole)
            sys.stderr.write(f"\r\x1b[K[{'#' * full}{'.' * (_BAR - full)}] {done}/{whole} {name}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line empty."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
