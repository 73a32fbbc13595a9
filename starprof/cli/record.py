"""`starprof record -- CMD`: check that a recording is possible, then become the job's small supervisor."""

from __future__ import annotations

import typer

from starprof.cli.options import options_of

EPILOG = "Everything after -- is the job's own command line and is passed on untouched."


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
    app.command(
        "record",
        epilog=EPILOG,
        context_settings={"allow_interspersed_args": False},
    )(record)


def record(
    command: list[str] = typer.Argument(..., metavar="-- COMMAND", help="The job, as you would start it alone."),
    output: str | None = typer.Option(
        None,
        "-o",
        "--output",
        metavar="RUN",
        help="Run file to write; {host}, {rank} and {job} are filled in. Default: named after the script and the time.",
    ),
    rate_hz: float | None = typer.Option(
        None, "--rate", metavar="HZ", help="Sampling rate of the cheap counters (default 10, or STARPROF_RATE_HZ)."
    ),
    max_size: str | None = typer.Option(
        None, "--max-size", metavar="SIZE", help="Keep the run file below SIZE (500M, 2G): old counters are rolled up."
    ),
    store: str | None = typer.Option(
        None,
        "--store",
        metavar="URL",
        help="Instead of a run file: clickhouse://[USER@]HOST[:PORT][/DATABASE] (password: docs/clickhouse.md).",
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite an existing run file."),
    node: int | None = typer.Option(
        None, "--node-rank", metavar="N", min=0, help="Id of this node when several record (0 holds the run file)."
    ),
    listen: str | None = typer.Option(
        None, "--listen", metavar="HOST:PORT", help="Node 0: take in the records of other nodes on this address."
    ),
    join: str | None = typer.Option(
        None, "--join", metavar="HOST:PORT", help="Other nodes: send the records to node 0 at this address."
    ),
    token_file: str | None = typer.Option(
        None, "--token-file", metavar="FILE", help="File with the secret that nodes share (or STARPROF_TOKEN)."
    ),
    job: str | None = typer.Option(
        None,
        "--job",
        metavar="NAME",
        help="With --join to a server of many jobs: this one's name, the same on all nodes (default: the batch job's).",
    ),
    control: bool = typer.Option(
        False, "--control", help="Let `starprof ctl` change how the ranks synchronise while the job runs."
    ),
    mode: str | None = typer.Option(
        None, "--mode", metavar="MODE", help="With --control: synchronise this way as soon as the loop is known."
    ),
    option: list[str] = typer.Option(
        [], "--option", metavar="NAME=VALUE", help="An option of that mode, such as m=3; may be repeated."
    ),
    max_lag: int | None = typer.Option(
        None,
        "--max-lag",
        metavar="ROUNDS",
        min=1,
        help="With --control: a rank that is further behind takes another one's state (default: by the model's size).",
    ),
    buffer: str | None = typer.Option(
        None,
        "--buffer",
        metavar="SIZE",
        help="With --join: what may wait on this node's disk while node 0 can't be reached (default 4G).",
    ),
    live: bool | None = typer.Option(
        None,
        "--live/--no-live",
        help="Watch the job from its start, for `starprof live`, or never; default: once it has run for ten seconds.",
    ),
    metrics: str | None = typer.Option(
        None,
        "--metrics",
        metavar="HOST:PORT",
        help="Serve OpenMetrics over HTTP here, such as 127.0.0.1:9465.",
    ),
    advise: str | None = typer.Option(
        None,
        "--advise",
        metavar="[observe|suggest|apply]",
        help="Watch for stragglers while the job runs: log what should be done (also without a value), suggest it, or "
        "do it within the limits (implies --control).",
    ),
    limit: list[str] = typer.Option(
        [],
        "--limit",
        metavar="NAME=VALUE",
        help="With --advise: what it may do at most, such as actions_per_hour=2 or modes=m-sync,lgc; may be repeated.",
    ),
    webhook: str | None = typer.Option(
        None, "--webhook", metavar="URL", help="With --advise=suggest: post suggestions to this address."
    ),
) -> None:
    """Record a distributed training job: torchrun, python, srun, mpirun, accelerate, a shell script.

    The exit code is the job's (128 + n when signal n ended it).
    """
    from starprof.launch import start

    start.record(
        start.Wish(
            command=tuple(command),
            output=output,
            rate_hz=rate_hz,
            max_size=max_size,
            store=store,
            force=force,
            node=node,
            listen=listen,
            join=join,
            job=job,
            token_file=token_file,
            control=control,
            mode=mode,
            options=options_of(option),
            max_lag=max_lag,
            live=live,
            metrics=metrics,
            buffer=buffer,
            advise=advise,
            limits=options_of(limit),
            webhook=webhook,
        )
    )
