"""`starprof analyze PATH...`: the verdict on what other tools have recorded, for each job in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.cli.baseline import BASELINE, profiles
from starprof.cli.price import GPU_HOUR_PRICE, priced
from starprof.errors import InputError

if TYPE_CHECKING:
    from starprof.analysis.baseline import Profile
    from starprof.cli.jobs import Done, Outputs
    from starprof.importers.jobs import Jobs


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("analyze")(analyze)


def analyze(
    paths: list[str] = typer.Argument(
        metavar="PATH...", help="Files, folders, globs or archives, of one job or many; or runs in a database."
    ),
    source_format: str | None = typer.Option(None, "--format", help="Format, when the content does not tell."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="RUN", help="Keep the run as RUN.starprof; several jobs as RUN-JOB.starprof."
    ),
    html: Path | None = typer.Option(
        None,
        "--html",
        metavar="FILE",
        help="Write the report as a web page, and of several jobs one each.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the verdict object as JSON, of several jobs all."),
    gpu_hour_price: float | None = GPU_HOUR_PRICE,
    baseline: list[str] = BASELINE,
    force: bool = typer.Option(False, "--force", help="Overwrite files that exist."),
) -> None:
    """Say who is slow in traces, logs and counters that you already have."""
    from starprof.cli.jobs import Outputs, run_target
    from starprof.importers.jobs import opened
    from starprof.reports import write

    outputs = Outputs(run_target(output), html, force)
    for file in (outputs.run, html):
        if file is not None:
            write.check_target(file, force=force)
    known = profiles(baseline)
    with opened(paths, source_format) as jobs, outputs.open():
        done = _diagnosed(jobs, outputs, known, gpu_hour_price)
        _with_siblings(done, outputs)
        _show(done, jobs.left, outputs, as_json=as_json)


def _diagnosed(jobs: Jobs, outputs: Outputs, known: list[Profile], gpu_hour_price: float | None) -> list[Done]:
    """Every job's verdict; its run is gone when the next one is read."""
    from starprof.analysis.baseline import against, profile_of
    from starprof.analysis.long.choice import diagnosed
    from starprof.cli.jobs import Done
    from starprof.cli.summary import rendered
    from starprof.importers.jobs import Failed
    from starprof.reports.overview import note_of

    done: list[Done] = []
    for job, run in jobs.each():
        if isinstance(run, Failed):
            done.append(Done(job, None, error=run.reason))
            continue
        told, verdict = diagnosed(run)
        profile = profile_of(told)
        if known:
            verdict = against(verdict, profile, known)
        verdict = priced(verdict, gpu_hour_price)
        outputs.make(len(done), run, verdict, told)
        done.append(Done(job, verdict, profile, rendered(told, verdict), note_of(told)))
    return done


def _with_siblings(done: list[Done], outputs: Outputs) -> None:
    """Runs that lie beside each other are held against each other; those that this changes are read once more."""
    from starprof.analysis.baseline import clean_sibling, with_sibling
    from starprof.analysis.long.choice import shown
    from starprof.cli.summary import rendered
    from starprof.importers.jobs import names_of

    if len(done) < 2:
        return
    names = names_of([one.job for one in done])
    known = [(one.verdict, one.profile) for one in done if one.verdict is not None and one.profile is not None]
    for number, one in enumerate(done):
        if one.verdict is None or one.profile is None:
            continue
        sibling = clean_sibling(one.verdict, one.profile, known)
        if sibling is None:
            continue
        name = next(n for n, other in zip(names, done, strict=True) if other.profile is sibling)
        one.verdict = with_sibling(one.verdict, sibling, name)
        run = one.job.read()
        told = shown(run)
        outputs.make(number, run, one.verdict, told)
        one.text = rendered(told, one.verdict)


def _show(done: list[Done], left: Mapping[str, str], outputs: Outputs, *, as_json: bool) -> None:
    if len(done) == 1:
        _show_one(done[0], outputs, as_json=as_json)
    else:
        _show_all(done, left, outputs, as_json=as_json)


def _show_one(one: Done, outputs: Outputs, *, as_json: bool) -> None:
    from starprof.reports.plain import printable

    if one.verdict is None:
        raise InputError(one.error)
    outputs.place([""], "")
    if not as_json:
        sys.stdout.write(one.text)
        return
    if one.note:
        print(f"starprof: {printable(one.note)}", file=sys.stderr)
    print(json.dumps(one.verdict.to_json(), indent=2))


def _show_all(done: list[Done], left: Mapping[str, str], outputs: Outputs, *, as_json: bool) -> None:
    from starprof.cli.jobs import beside, fit_names, told
    from starprof.cli.summary import terminal_here
    from starprof.importers.jobs import names_of
    from starprof.model.jobs import to_json
    from starprof.reports import overview

    names = names_of([one.job for one in done])
    jobs, files = told(names, done), fit_names(names, done)
    if all(one.verdict is None for one in done):
        raise InputError(f"{len(done)} jobs, and none of them can be read: {done[0].error}")
    pages = [beside(outputs.page, file).name if file and outputs.page else "" for file in files]
    outputs.place(files, overview.page(jobs, pages, left))
    if as_json:
        print(json.dumps(to_json(jobs, left), indent=2))
        return
    terminal = terminal_here()
    sys.stdout.write(overview.lines(jobs, left, terminal))
    in_full = overview.worth_showing(jobs)
    for number, (name, one) in enumerate(zip(names, done, strict=True)):
        if number in in_full:
            sys.stdout.write(overview.heading(name, number + 1, len(done), terminal) + one.text)
    sys.stdout.write(overview.closing(jobs, in_full))
