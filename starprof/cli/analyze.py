"""`starprof analyze PATH...`: the verdict on what other tools have recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.cli.price import GPU_HOUR_PRICE, priced

if TYPE_CHECKING:
    from starprof.model.rundata import RunData


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("analyze")(analyze)


def analyze(
    paths: list[str] = typer.Argument(metavar="PATH...", help="Files, folders, globs or archives of one job."),
    source_format: str | None = typer.Option(None, "--format", help="Format, when the content does not tell."),
    output: Path | None = typer.Option(None, "-o", "--output", metavar="RUN", help="Keep the run as RUN.starprof."),
    html: Path | None = typer.Option(None, "--html", metavar="FILE", help="Write the report as a web page."),
    as_json: bool = typer.Option(False, "--json", help="Print exactly the verdict object as JSON."),
    gpu_hour_price: float | None = GPU_HOUR_PRICE,
    force: bool = typer.Option(False, "--force", help="Overwrite files that exist."),
) -> None:
    """Say who is slow in traces, logs and counters that you already have."""
    from starprof.analysis import diagnose
    from starprof.cli.summary import show
    from starprof.importers.load import load
    from starprof.reports import html as page
    from starprof.reports import write
    from starprof.reports.words import file_size
    from starprof.spool.layout import RUN_SUFFIX

    target = output.with_name(output.name.removesuffix(RUN_SUFFIX) + RUN_SUFFIX) if output is not None else None
    for file in (target, html):
        if file is not None:
            write.check_target(file, force=force)
    run = load(paths, source_format)
    verdict = priced(diagnose(run), gpu_hour_price)
    if target is not None:
        _save(run, target)
        print(f"Wrote {target} ({file_size(target.stat().st_size)})", file=sys.stderr)
    if html is not None:
        size = write.write(html, page.render(run, verdict))
        print(f"Wrote {html} ({file_size(size)})", file=sys.stderr)
    show(run, verdict, as_json=as_json)


def _save(run: RunData, target: Path) -> None:
    """Write the run beside its place and move it there: a run that is already there stays until then."""
    import tempfile

    from starprof.errors import RunFileError
    from starprof.store.save import save_run

    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
            made = Path(place) / target.name
            save_run(run, made)
            made.replace(target)
    except OSError as error:
        raise RunFileError(f"can't write {target}: {error.strerror or error}") from error
