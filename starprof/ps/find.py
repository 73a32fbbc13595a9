"""Where a job's parameter server is: one that is running already, or one that the job's first worker starts."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from starprof.control.engine.rendezvous import reachable_host, state_folder
from starprof.errors import TransportError, UsageError
from starprof.hook import identity
from starprof.model import env
from starprof.ps.children import START_S, environ_of, listening
from starprof.ps.head import modes
from starprof.ps.speech import SERVER, address_of, secret_of
from starprof.spool.layout import Spool

Address = tuple[str, int]

REACH_S = 2.0
_STARTED: list[subprocess.Popen[bytes]] = []
"""Servers that this process has started; Python complains of children that it forgets while they run."""
_wrapped = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a server is started with, as `wrap` takes it."""

    mode: str = "ssgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    shards: int = 1
    clip_norm: float = 0.0
    state: str | None = None


def world_size() -> int:
    """How many workers there are at the start."""
    if identity.in_process_group():
        return int(dist.get_world_size())
    return identity.first_number(identity.WORLD_SIZE_VARIABLES, os.environ) or 1


def found(wish: Wish, rank: int, world: int, server: str | None) -> tuple[Address, bytes]:
    """The head's address and the job's secret.

    Raises:
        StarprofError: there is no server, and none could be started.
    """
    global _wrapped
    told = server or os.environ.get(SERVER)
    if told:
        return address_of(told), secret_of()
    modes.mode(wish.mode, wish.options, range(world))
    place, _wrapped = _wrapped, _wrapped + 1
    if world == 1:
        secret = secrets.token_hex(32)
        return _started(wish, world, place, secret), secret.encode()
    store = dist.PrefixStore(f"starprof-ps/{place}", _store())
    try:
        secret = bytes(store.compare_set("secret", "", secrets.token_hex(32))).decode()
        key = f"at/{identity.attempt()}"
        if rank == 0:
            address = _former(store, identity.attempt()) or _started(wish, world, place, secret)
            store.set(key, f"{address[0]}:{address[1]}")
        else:
            store.wait([key], timedelta(seconds=START_S))
        return address_of(bytes(store.get(key)).decode()), secret.encode()
    except RuntimeError as error:  # torch's stores have no narrower type
        raise TransportError(f"the first worker has started no parameter server: {error}") from error


def _store() -> Any:
    if identity.in_process_group():
        return dist.distributed_c10d._get_default_store()
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if host and port.isdecimal() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=START_S))
    raise UsageError(
        "the workers can't find each other: use torchrun, or call init_process_group before, or start a server and set "
        f"{SERVER}"
    )


def _former(store: Any, attempt: int) -> Address | None:
    """The server of the job's attempt before this one, if it is still there: it has what was trained so far."""
    for before in reversed(range(attempt)):
        if store.check([f"at/{before}"]):
            address = address_of(bytes(store.get(f"at/{before}")).decode())
            try:
                socket.create_connection(address, REACH_S).close()
            except OSError:
                return None
            return address
    return None


def _started(wish: Wish, world: int, place: int, secret: str) -> Address:
    """Start a server on this machine, in a session of its own: it outlives the worker that has started it."""
    folder = state_folder()
    state = Path(wish.state) if wish.state else folder / f"ps-{place}-{os.getpid()}"
    spool = os.environ.get(env.SPOOL)
    told = {
        "workers": world,
        "shards": wish.shards,
        "folder": str(folder if not place else state),
        "state": str(state),
        "host": reachable_host(),
        "mode": wish.mode,
        "options": dict(wish.options),
        "clip": wish.clip_norm,
        "node": identity.node(),
        "attempt": identity.attempt(),
        "keep": wish.state is not None,
        "segments": str(Spool(Path(spool)).segments) if spool else None,
    }
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "server.log").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "starprof.ps.server", json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environ_of(secret),
            start_new_session=True,
        )
    _STARTED.append(process)
    return listening(process, state / "server.log")
