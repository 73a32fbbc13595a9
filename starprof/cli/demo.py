"""`starprof demo`: a real training job with a real fault, recorded and diagnosed in front of you."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.cli.summary import show

if TYPE_CHECKING:
    from starprof.demo.run import Request

EXIT_WRONG_DIAGNOSIS = 3
BAR_WIDTH = 40
LINE_EVERY_STEPS = 40


class FaultName(enum.StrEnum):
    """What `--fault` takes; the scenarios are in `starprof.demo.scenarios`."""

    backward = "backward"
    loader = "loader"
    cpu = "cpu"
    net = "net"
    none = "none"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("demo")(demo)


def demo(
    fault: FaultName = typer.Option(FaultName.backward, help="What goes wrong half-way through."),
    rank: int = typer.Option(1, help="The rank that it happens to (0 to 3)."),
    out: Path = typer.Option(Path("demo-out"), metavar="DIR", help="Folder for the run file and the report."),
    steps: int = typer.Option(160, help="Training steps."),
    advise: bool = typer.Option(
        False, "--advise", help="Let the live advisor act while the fault lasts, and watch it."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print exactly the verdict object as JSON."),
) -> None:
    """Train a small model on 4 ranks, break one of them, and find out which and why.

    Exit code 0 when the diagnosis is what was injected, 3 when it is not.
    """
    from starprof.demo import netlab, run
    from starprof.demo.scenarios import SCENARIOS, describe_found, matches

    request = run.Request(SCENARIOS[fault.value], rank, out, steps)
    run.check(request)
    if advise:
        _advised(request)
        return
    if request.scenario.hosts:
        netlab.enter_own_namespace([sys.executable, "-m", "starprof", *sys.argv[1:]])
    progress = _Progress(request)
    truth = run.train(request, progress.step)
    progress.end()
    data, verdict = run.diagnose(request)
    show(data, verdict, as_json=as_json)
    _say(f"Wrote {request.run_file}")
    _say(f"Wrote {request.report}")
    _say(f"injected: {truth.describe()}")
    _say(f"found:    {describe_found(verdict)}")
    if not matches(verdict, truth):
        _say("the diagnosis is NOT what was injected")
        raise typer.Exit(EXIT_WRONG_DIAGNOSIS)


def _advised(request: Request) -> None:
    """The advisor's story, its rates, and its report; exit code 3 when it did not do what it is for."""
    from dataclasses import replace

    from starprof.demo import advised, run
    from starprof.reports.sections.advisor import headline

    request = replace(request, name="advisor")
    _say("starprof demo: 4 ranks train a small CNN under `starprof record --advise=apply`; starting torch ...")
    pace = advised.train(request, _say)
    data, _ = run.diagnose(request)
    for what in advised.PARTS:
        rate = pace.per_s(what)
        print(f"{what:<24}{'-' if rate is None else f'{rate:.1f} steps/s'}")
    if data.advisor_actions is None:
        _say("the advisor did NOT act")
        raise typer.Exit(EXIT_WRONG_DIAGNOSIS)
    print(headline(data.advisor_actions))
    _say(f"Wrote {request.run_file}")
    _say(f"Wrote {request.report}")
    stages = set(data.advisor_actions["stage"])
    if not {"kept", "native"} <= stages:
        _say("the advisor did NOT do what it is for")
        raise typer.Exit(EXIT_WRONG_DIAGNOSIS)


class _Progress:
    """Training progress on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.bar = sys.stderr.isatty()
        story = request.scenario.story.format(rank=request.rank, step=request.fault_step)
        _say(f"starprof demo: 4 ranks train a small CNN on scikit-learn's digits; {story}")
        _say("starting torch in 4 ranks ...")

    def step(self, done: int) -> None:
        """`done` steps are finished."""
        steps = self.request.steps
        broken = done > self.request.fault_step and self.request.scenario.causes
        note = " (fault on)" if broken else ""
        if self.bar:
            filled = "#" * (BAR_WIDTH * done // steps)
            print(f"\r[{filled:<{BAR_WIDTH}}] step {done}/{steps}{note}", end="", file=sys.stderr, flush=True)
        elif done % LINE_EVERY_STEPS == 0:
            _say(f"step {done}/{steps}{note}")

    def end(self) -> None:
        """Training is over."""
        if self.bar:
            print(file=sys.stderr)
        _say("diagnosing ...")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
