"""`starprof merge A B … -o RUN`: recordings of the nodes of one job become one run file."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("merge")(merge)


def merge(
    recordings: list[Path] = typer.Argument(help="Run files or spool directories, one or more of each node."),
    output: Path = typer.Option(..., "--output", "-o", help="The new run file (NAME.starprof)."),
) -> None:
    """Merge what was recorded on several nodes of one job."""
    from starprof.store.merge import merge as merge_runs

    report = merge_runs(recordings, output)
    for note in report.notes:
        print(f"starprof: {note}", file=sys.stderr)
    print(f"Wrote {output} ({report.ranks} ranks on {report.nodes} nodes)", file=sys.stderr)
