"""`starprof store push|pull|list|remove|schema`: runs in a ClickHouse database, see docs/clickhouse.md."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import typer

JSON_SCHEMA = 1

_URL = "clickhouse://[USER@]HOST[:PORT][/DATABASE"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    store = typer.Typer(
        help="Keep runs in a ClickHouse database, many runs for many readers.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (push, pull, list_, remove, schema):
        store.command(command.__name__.rstrip("_"))(command)
    app.add_typer(store, name="store")


def push(
    run: Path = typer.Argument(help="Run file (NAME.starprof), or a spool whose run is in the database."),
    url: str = typer.Argument(metavar="URL", help=f"{_URL}]."),
    force: bool = typer.Option(False, "--force", help="Replace a run of the same id that holds something else."),
) -> None:
    """Copy a run file to the database; readers see all of it or nothing."""
    from starprof.spool.layout import Spool
    from starprof.store.clickhouse.address import parse
    from starprof.store.clickhouse.transfer import push as push_file
    from starprof.store.reunite import is_bare_spool

    address = parse(url)
    if is_bare_spool(run):
        from starprof.store.clickhouse.folding import fold_into_database

        report = fold_into_database(Spool(run), url, final=True)
        print(f"Wrote {report.rows} rows from {run} to {address.text}", file=sys.stderr)
        return
    done = push_file(run, address, force=force)
    if done.was_there:
        print(f"{done.place} holds these {done.rows} rows already", file=sys.stderr)
    else:
        print(f"Wrote {done.place} ({done.rows} rows)", file=sys.stderr)


def pull(
    url: str = typer.Argument(metavar="URL", help=f"{_URL}/RUN]]: the run's id, the beginning of it, or its name."),
    output: Path = typer.Option(..., "-o", "--output", metavar="RUN", help="The new run file (NAME.starprof)."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file if it exists."),
) -> None:
    """Copy a run from the database to a run file."""
    from starprof.store.clickhouse.address import parse
    from starprof.store.clickhouse.transfer import pull as pull_run

    rows = pull_run(parse(url), output, force=force)
    print(f"Wrote {output} ({rows} rows)", file=sys.stderr)


def list_(
    url: str = typer.Argument(metavar="URL", help=f"{_URL}]."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object with the runs."),
) -> None:
    """List the runs of the database, the newest first."""
    from dataclasses import asdict

    from starprof.reports.plain import printable
    from starprof.store.clickhouse.address import parse
    from starprof.store.clickhouse.transfer import runs_in

    runs = runs_in(parse(url))
    if as_json:
        print(json.dumps({"schema": JSON_SCHEMA, "runs": [asdict(run) for run in runs]}))
        return
    for run in runs:
        began = "" if run.started_unix_ns is None else time.strftime("%F %T", time.localtime(run.started_unix_ns / 1e9))
        state = "" if run.ended_unix_ns or not run.started_unix_ns else "  no end"
        print(f"{run.run_id:<32}  {began:<19}  {run.ranks:>6} ranks  {printable(run.name or '')}{state}")


def remove(url: str = typer.Argument(metavar="URL", help=f"{_URL}/RUN]].")) -> None:
    """Delete a run from the database."""
    from starprof.store.clickhouse.address import parse
    from starprof.store.clickhouse.transfer import remove as remove_run

    print(f"Removed run {remove_run(parse(url))}", file=sys.stderr)


def schema(
    database: str = typer.Option("starprof", "--database", metavar="NAME", help="Name of the database."),
    cluster: str = typer.Option("", "--cluster", metavar="NAME", help="Spread the tables over this cluster's shards."),
    keep_days: int = typer.Option(0, "--keep-days", metavar="N", min=0, help="Drop runs that began longer ago."),
) -> None:
    """Print the SQL that makes the tables, for whoever has the right to run it."""
    from starprof.store.clickhouse.tables import Layout, statements

    for statement in statements(database, Layout(cluster, keep_days)):
        print(f"{statement};")
