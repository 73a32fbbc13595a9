"""`starprof serve`: one server that takes in the records of many jobs, watches them and writes their run files."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from starprof.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("serve")(serve)


def serve(
    folder: Path = typer.Argument(Path(), help="Folder of the run files (default: this one)."),
    listen: str = typer.Option(
        "127.0.0.1:7411", "--listen", metavar="HOST:PORT", help="Take in nodes at this address."
    ),
    token_file: str | None = typer.Option(
        None, "--token-file", metavar="FILE", help="File with the secret that all jobs share (or STARPROF_TOKEN)."
    ),
    token_dir: Path | None = typer.Option(
        None, "--token-dir", metavar="DIR", help="Folder with a secret for each job, in a file named after the job."
    ),
    metrics: str | None = typer.Option(
        None, "--metrics", metavar="HOST:PORT", help="Serve OpenMetrics over HTTP here, such as 127.0.0.1:9465."
    ),
    max_size: str | None = typer.Option(
        None, "--max-size", metavar="SIZE", help="Keep each run file below SIZE (500M, 2G): old counters are rolled up."
    ),
    show_reader_token: bool = typer.Option(
        False, "--show-reader-token", help="Print what a reader of metrics on another machine has to show, and leave."
    ),
) -> None:
    """Take in the records of many jobs: `starprof record --join HOST:PORT --job NAME -- CMD` on every node."""
    from starprof.launch.address import split_address
    from starprof.launch.prepare import size_bytes
    from starprof.launch.secret import reader_token, secret_of
    from starprof.model import env
    from starprof.serve import server

    if token_dir is not None and token_file is not None:
        raise UsageError("--token-dir holds a secret for each job, --token-file one for all: give one of them")
    given = bool(token_file or os.environ.get(env.TOKEN))
    if token_dir is None and not given:
        raise UsageError(f"server and nodes share a secret: give --token-file, --token-dir or {env.TOKEN}")
    secret = None if token_dir is not None else secret_of(token_file)
    if show_reader_token:
        if secret is None:
            raise UsageError("the reader's token is made of the secret that all jobs share: give --token-file")
        print(reader_token(secret))
        return
    server.serve(
        server.Wish(
            folder=folder.absolute(),
            address=split_address(listen, "--listen"),
            secret=secret,
            token_dir=token_dir,
            metrics=None if metrics is None else split_address(metrics, "--metrics"),
            max_size_bytes=None if max_size is None else size_bytes(max_size),
        )
    )
