"""`starprof ps serve|spare|move`: a parameter server's processes, and which of them is where."""

from __future__ import annotations

import os
import secrets
import sys
from enum import Enum
from pathlib import Path

import typer

from starprof.cli.options import options_of
from starprof.errors import UsageError


class Do(Enum):
    """What can be asked for."""

    SERVE = "serve"
    SPARE = "spare"
    MOVE = "move"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("ps")(ps)


def ps(
    do: Do = typer.Argument(help="serve: head and shards; spare: processes that shards can move to; move: one shard."),
    folder: Path = typer.Argument(help="serve, spare: of the state that outlives the processes. move: as of `ctl`."),
    workers: int = typer.Option(1, "--workers", min=1, help="With `serve`: that are waited for at the start."),
    shards: int = typer.Option(1, "--shards", min=1, help="With `serve` or `spare`: processes to start."),
    mode: str = typer.Option("ssgd", "--mode", help="With `serve`: of synchronisation at the start."),
    option: list[str] = typer.Option([], "--option", help="With `serve`: an option of the mode, such as m=3."),
    clip_norm: float = typer.Option(
        0.0, "--clip-norm", min=0.0, help="With `serve`: greatest norm of an update; 0: any."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="With `serve` or `spare`: address to listen on."),
    port: int = typer.Option(0, "--port", min=0, max=65_535, help="With `serve`: of the head; 0: any."),
    head: str | None = typer.Option(None, "--head", help="With `spare`: HOST:PORT of the head."),
    to_disk: bool = typer.Option(False, "--to-disk", help="What is acknowledged outlives the machine, not only us."),
    shard: int | None = typer.Option(None, "--shard", min=0, help="With `move`: which one."),
    to: str = typer.Option("", "--to", help="With `move`: host or HOST:PORT of a spare process; any if not given."),
) -> None:
    """Run a parameter server, or move a shard of a running one."""
    if do is Do.MOVE:
        _move(folder, shard, to)
        return
    if shard is not None or to:
        raise UsageError(f"{do.value} takes no --shard or --to")
    told: dict[str, object] = {"state": str(folder), "shards": shards, "host": host, "to_disk": to_disk}
    if do is Do.SPARE:
        if head is None:
            raise UsageError("spare processes need --head HOST:PORT")
        from starprof.ps.speech import address_of

        address_of(head)
        told["head"] = head
    else:
        from starprof.ps.head import modes

        options = options_of(option)
        modes.mode(mode, options, range(workers))
        told |= {"workers": workers, "folder": str(folder), "mode": mode, "options": options, "clip": clip_norm}
        told |= {"port": port, "keep": True, "idle_s": 1e9}
    _run(told, do)


def _run(told: dict[str, object], do: Do) -> None:
    import signal

    from starprof.ps.server import Server
    from starprof.ps.speech import SERVER, TOKEN

    secret = os.environ.get(TOKEN, "")
    if not secret and do is Do.SPARE:
        raise UsageError(f"no secret: set {TOKEN} to that of the server")
    made = secret or secrets.token_hex(32)
    server = Server(told, made)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    address = server.start()
    print(f"{SERVER}={address[0]}:{address[1]}")
    if not secret:
        print(f"{TOKEN}={made}")
    sys.stdout.flush()
    try:
        server.run()
    except KeyboardInterrupt:
        server.stop()


def _move(folder: Path, shard: int | None, to: str) -> None:
    from starprof.control.controlsocket import ask, folder_of
    from starprof.errors import StarprofError

    if shard is None:
        raise UsageError("which one? --shard NUMBER")
    answer = ask(folder_of(folder), {"do": "move", "shard": shard, "to": to})
    if answer.get("ok") is not True:
        what = str(answer.get("error", "the head refused"))
        raise UsageError(what) if answer.get("usage") else StarprofError(what)
    print(f"shard {answer['shard']} moves to {answer['to']}")
