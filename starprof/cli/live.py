"""`starprof live [RUN|HOST]`: a running job as it is now, redrawn while it runs; can be left and come back to."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from starprof.errors import NoDataError, StarprofError, TransportError, UsageError

EVERY_S = 1.0
GONE_S = 10.0
"""How long a view that has seen the job waits for a server that does not answer any more."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("live")(live)


def live(
    where: str | None = typer.Argument(
        None,
        metavar="[RUN|HOST[:PORT]]",
        help="Run file of a running job, or a server; default: the job that is recorded in this folder.",
    ),
    job: str | None = typer.Option(None, "--job", metavar="NAME", help="Which job of a server that follows several."),
    once: bool = typer.Option(False, "--once", help="Print what is known now, and leave."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: one object, or one a second without --once."),
    ranks: int = typer.Option(32, "--ranks", min=1, max=100_000, help="At most so many ranks, most harmful first."),
    token_file: str | None = typer.Option(
        None, "--token-file", metavar="FILE", help="With HOST: file with the secret of the job (or STARPROF_TOKEN)."
    ),
) -> None:
    """Watch a running job: who is late, why, what it costs, and what is done about it."""
    question: dict[str, Any] = {"do": "live", "ranks": ranks} | ({} if job is None else {"job": job})
    asked = _asker(where, token_file)

    def ask() -> dict[str, Any]:
        answer = asked(question)
        if answer.pop("ok", False) is not True:
            what = str(answer.get("error", "the server refused"))
            raise UsageError(what) if answer.get("usage") else NoDataError(what)
        return answer

    if once:
        _print(ask(), as_json)
    else:
        _follow(ask, as_json)


def _asker(where: str | None, token_file: str | None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """How to ask what is meant."""
    from starprof.serve.ask import ask_local, ask_remote, local_place, running_here

    if where is None:
        found = running_here(Path.cwd())
        return lambda question: ask_local(found, question)
    place = local_place(where)
    if place is not None:
        return lambda question: ask_local(place, question)
    return lambda question: ask_remote(where, token_file, question)


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer), flush=True)
    else:
        from starprof.cli.summary import terminal_here
        from starprof.reports.live import render

        print(render(answer, terminal_here()), end="", flush=True)


def _follow(ask: Callable[[], dict[str, Any]], as_json: bool) -> None:
    """Again and again, until the job is over or the user has seen enough."""
    answer: dict[str, Any] | None = ask()  # what is wrong from the start is told as an error
    screen = not as_json and sys.stdout.isatty()
    said = "the server does not answer any more"
    if screen:
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        seen_s = time.monotonic()
        while time.monotonic() - seen_s < GONE_S:
            if answer is not None:
                _draw(answer) if screen else _print(answer, as_json)
                seen_s = time.monotonic()
                if answer.get("ended_unix_ns"):
                    said = ""
                    break
            time.sleep(EVERY_S)
            answer = _again(ask)
    except KeyboardInterrupt:
        said = ""
    finally:
        if screen:
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()
    if said:
        raise TransportError(f"{said}: is the job over? then `starprof summary` tells all of it")


def _again(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The next answer; None while the server is away."""
    try:
        return ask()
    except StarprofError:
        return None


def _draw(answer: dict[str, Any]) -> None:
    """The whole screen anew, without a moment in which it is empty."""
    import shutil

    from starprof.cli.summary import terminal_here
    from starprof.reports.live import render

    height = shutil.get_terminal_size().lines
    lines = render(answer, terminal_here(), height=height).splitlines()[: max(1, height - 1)]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()
