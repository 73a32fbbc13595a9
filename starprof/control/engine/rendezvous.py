"""Where the ranks of one model find each other's coordinator, and what that is started with."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from starprof.control import modes
from starprof.control.coordinator.settings import TOKEN
from starprof.control.engine.home import Address, Home, starter
from starprof.control.link import CoordinatorLink
from starprof.errors import UsageError
from starprof.hook import identity
from starprof.model import env
from starprof.spool.layout import Spool
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.messages import Hello, Objects, ToRank


@dataclass(frozen=True, slots=True)
class Wish:
    """What control was asked for.

    Attributes:
        mode: that is wanted from the start.
        options: of the mode.
        max_lag: rounds that a rank may be behind; None: as many as there is room for.
        health: ranks tell the coordinator their loss now and then.
    """

    mode: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)
    max_lag: int | None = None
    health: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Wish | None:
        """What the launcher asked for; None: nothing, and off means off."""
        told = environ.get(env.CONTROL)
        if not told or environ.get(env.DISABLE) == "1":
            return None
        wanted = json.loads(told)
        return cls(
            str(wanted.get("mode", "native")),
            dict(wanted.get("options", {})),
            wanted.get("max_lag"),
            wanted.get("health") is True,
        )


@dataclass
class Rendezvous:
    """Of one model.

    Attributes:
        wish: what control was asked for.
        place: counts the models of the process.
    """

    wish: Wish
    place: int

    def store(self) -> Any:
        """The job's store, for this model only."""
        store = dist.distributed_c10d._get_default_store()
        return dist.PrefixStore(f"starprof/{identity.attempt()}/{self.place}", store)

    def members(self) -> tuple[int, ...]:
        """Who speaks to the coordinator."""
        return tuple(range(dist.get_world_size()))

    def lag(self) -> LagLimit | None:
        """How far a rank may be behind before it takes another one's state: the same on all ranks of a job."""
        return None

    def link(
        self,
        store: Any,
        secret: bytes,
        rank: int,
        hello: Callable[[], Hello | Objects],
        on_message: Callable[[ToRank], None],
        lock: threading.RLock,
        on_hopeless: Callable[[str], None] = lambda _why: None,
        before: Callable[[], None] = lambda: None,
    ) -> CoordinatorLink:
        """The connection to the coordinator, not yet started; its thread calls `before` before it looks for it."""
        start = starter(self._settings(self.members()), _environ(secret), reachable_host(), None)
        home = Home(store, rank, start, on_hopeless=on_hopeless)

        def address() -> Address:
            before()
            return home.address()

        return CoordinatorLink(
            address,
            secret,
            rank,
            hello=hello,
            on_message=on_message,
            on_lost=lambda: None,
            lock=lock,
            on_dialled=home.dialled,
        )

    def _possible(self, world: tuple[int, ...]) -> Wish:
        """What is wanted, if these ranks can have it; the launcher did not know how many there are."""
        try:
            modes.mode(self.wish.mode, self.wish.options, world)
        except UsageError as error:
            if dist.get_rank() == world[0]:
                told = f"starprof: {error}: the job stays with native steps until another mode is asked for\n"
                os.write(2, told.encode("utf-8", "replace"))
            return replace(self.wish, mode=modes.NATIVE_NAME, options={})
        return self.wish

    def _settings(self, world: tuple[int, ...]) -> dict[str, object]:
        wish, lag = self._possible(world), self.lag()
        settings: dict[str, object] = {
            "ranks": len(world) if world == tuple(range(len(world))) else list(world),
            "state": str(state_folder()),
            "mode": wish.mode,
            "options": dict(wish.options),
            "attempt": identity.attempt(),
            "node": identity.node(),
            "max_lag": None if lag is None else lag.rounds,
        }
        spool = os.environ.get(env.SPOOL)
        if spool:
            settings["segments"] = str(Spool(Path(spool)).segments)
        return settings


def state_folder() -> Path:
    """Where the coordinator's control socket goes: beside the recording, else a folder of this job's own."""
    spool = os.environ.get(env.SPOOL)
    if spool:
        return Path(spool)
    job = os.environ.get("TORCHELASTIC_RUN_ID", "") or str(os.getppid())
    folder = Path(tempfile.gettempdir()) / f"starprof-{os.getuid()}-{job.replace('/', '_')}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def reachable_host(environ: Mapping[str, str] = os.environ) -> str:
    """Address of this machine that the other ranks can reach: the one towards the job's master. Nothing is sent."""
    master = environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _environ(secret: bytes) -> dict[str, str]:
    """For the coordinator: never recorded itself, and with the secret."""
    left_out = {env.SPOOL, env.CONTROL, "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    home = os.environ.get(env.HOME) or str(Path(__file__).resolve().parents[3])
    return {**kept, "PYTHONPATH": home, TOKEN: secret.decode()}
