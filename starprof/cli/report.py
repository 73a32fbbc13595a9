"""`starprof report RUN -o FILE.html`: the verdict as one self-contained page."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from starprof.cli.baseline import BASELINE, profiles
from starprof.cli.price import GPU_HOUR_PRICE, priced
from starprof.cli.runs import run_and_verdict


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(report)


def report(
    run: Path = typer.Argument(help="Run file (NAME.starprof), or clickhouse://HOST/DATABASE/RUN."),
    output: Path = typer.Option(..., "-o", "--output", help="HTML file to write."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file if it exists."),
    gpu_hour_price: float | None = GPU_HOUR_PRICE,
    baseline: list[str] = BASELINE,
    redact: bool = typer.Option(False, "--redact", help="Replace host names, commands, paths, addresses and UUIDs."),
) -> None:
    """Write a self-contained HTML page: who is slow, why, what it costs, with every chart."""
    from starprof.analysis.baseline import against, profile_of
    from starprof.reports import html, write
    from starprof.reports.redact import redacted
    from starprof.reports.words import file_size

    write.check_target(output, force=force)
    known = profiles(baseline)
    data, verdict = run_and_verdict(run)
    if known:
        verdict = against(verdict, profile_of(data), known)
    verdict = priced(verdict, gpu_hour_price)
    if redact:
        data, verdict = redacted(data, verdict)
    size = write.write(output, html.render(data, verdict))
    print(f"Wrote {output} ({file_size(size)})", file=sys.stderr)
