"""Asking a server: at the socket in a run's spool, or over an authenticated connection from anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starprof.control.controlsocket import MAX_LINE_BYTES, ask_at
from starprof.errors import NoDataError, TransportError, UsageError
from starprof.launch import kinds
from starprof.launch.address import DEFAULT_PORT, split_address
from starprof.launch.secret import secret_of
from starprof.serve.desk import SOCKET
from starprof.spool.layout import RUN_SUFFIX, SPOOL_SUFFIX, Spool
from starprof.wire.channel import as_object, connect

ANSWER_S = 15.0
CONNECT_S = 5.0
_HINT = "is the job running, for ten seconds or more (or recorded with --live)?"


def ask_local(place: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Ask the server of a run on this machine.

    Args:
        place: the run file, its spool, or the folder of a server of many jobs.
        question: see `desk`.

    Raises:
        NoDataError: the run is over.
        NobodyListensError: no server is there.
        TransportError: it did not answer.
    """
    folder = place if place.is_dir() else Spool.beside(place).root
    if not folder.is_dir():
        what = (
            "is not being recorded any more: `starprof summary` tells all of it" if place.exists() else "does not exist"
        )
        raise NoDataError(f"{place} {what}")
    return ask_at(folder, SOCKET, question, ANSWER_S, who="server", hint=_HINT)


def local_place(where: str) -> Path | None:
    """The run or the folder that is meant, with or without its suffix; None when it can only be a host."""
    path = Path(where)
    if path.is_dir() or "/" in where or where.endswith(RUN_SUFFIX):
        return path
    named = path.with_name(path.name + RUN_SUFFIX)
    return named if named.exists() or Spool.beside(named).root.exists() else None


def ask_remote(where: str, token_file: str | None, question: dict[str, Any]) -> dict[str, Any]:
    """Ask a server over the network; both sides prove that they know the job's secret.

    Args:
        where: HOST or HOST:PORT.
        token_file: file with the secret; None: STARPROF_TOKEN.
        question: see `desk`.

    Raises:
        TransportError: it can't be reached, or does not accept the secret.
    """
    host, _, port = where.rpartition(":") if ":" in where else (where, "", str(DEFAULT_PORT))
    address = split_address(f"{host}:{port}", "HOST:PORT")
    channel = connect(address, kinds.NODE_0, secret_of(token_file), CONNECT_S)
    try:
        channel.send_json(kinds.ASK, **question)
        parts = bytearray()
        while True:
            kind, payload = channel.receive(ANSWER_S)
            parts += payload
            if kind == kinds.ANSWER:
                return as_object(bytes(parts))
            if kind != kinds.PART or len(parts) > MAX_LINE_BYTES:
                raise TransportError(f"{where} answered with something else than an answer")
    finally:
        channel.close()


def running_here(folder: Path) -> Path:
    """The one run that is recorded in a folder.

    Raises:
        UsageError: there are several.
        NoDataError: there is none.
    """
    found = sorted(folder.glob(f"*{RUN_SUFFIX}{SPOOL_SUFFIX}/{SOCKET}"), key=os.fspath)
    if not found:
        raise NoDataError(f"no job that can be watched is recorded in {folder}: give its run file, or HOST:PORT")
    if len(found) > 1:
        names = ", ".join(path.parent.name.removesuffix(SPOOL_SUFFIX) for path in found[:10])
        raise UsageError(f"which one? there are: {names}")
    return found[0].parent
