"""Where the coordinator is: ranks start it, and another one when it is gone, and find each other's by the job's store.

Coordinators of a job are numbered: whoever claims a number by `compare_set` starts that one, on its own node, and tells
its address. The number is the coordinator's epoch, so whatever one of before still says counts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starprof.control.engine.jobstore import OwnClient, value_of, wait_for
from starprof.errors import TransportError

GONE_S = 1.0
"""A coordinator that nothing listens for has ended; it may still be starting for this time."""
UNREACHED_S = 15.0
"""One that can't be reached for this time is given up."""
START_S = 20.0
"""A coordinator that has not told its port after this time is given up; so is one whose starter has not told it."""
FIRST_RANK_S = 2.0
"""Rank 0 starts the first coordinator unless it takes longer: a rank in another cgroup may be the throttled one."""
OWN_S = 6.0
"""More than a dropped question for a name costs; a store that is gone can't be connected to at all."""
_TOLD_BYTES = 4096
_STARTED: list[subprocess.Popen[bytes]] = []
"""Coordinators that this process has started; Python complains of children that it forgets while they run."""

Address = tuple[str, int]
Starter = Callable[[int], Address]


class Home:
    """Finds the coordinator for one rank; its connection's thread uses it."""

    def __init__(
        self,
        store: Any,
        rank: int,
        start: Starter,
        now_s: Callable[[], float] = time.monotonic,
        on_hopeless: Callable[[str], None] = lambda _why: None,
    ) -> None:
        """Look for the first coordinator.

        Args:
            store: the job's.
            rank: of this process.
            start: starts a coordinator of this epoch here, and returns its address; raises TransportError.
            now_s: clock.
            on_hopeless: called when there is no coordinator, and no store to agree on another one.
        """
        self._on_hopeless = on_hopeless
        self._known: Address | None = None
        self._store = store
        self._own = OwnClient(store)
        self._rank = rank
        self._start = start
        self._now_s = now_s
        self._epoch = 1
        self._failing_s: float | None = None

    def address(self) -> Address:
        """Where to connect to; may take some seconds. A coordinator that is there is found without the store, too.

        Raises:
            TransportError: the store is gone, or no coordinator could be started.
        """
        if self._known is None:
            self._known = self._agreed()
        return self._known

    def _agreed(self) -> Address:
        if (
            self._epoch > 1
        ):  # whoever waits in the store by the process's client may wait for what we are to bring about
            self._store = self._own.get(OWN_S) or self._store
        if self._epoch == 1 and self._rank:
            with contextlib.suppress(TransportError):  # whether the store is there shows when this rank claims it
                wait_for(self._store, ["home/1/by"], FIRST_RANK_S)
        if self._claimed():
            try:
                host, port = self._start(self._epoch)
            except TransportError:
                self._epoch += 1
                raise
            self._told(f"{host}:{port}")
            return host, port
        return self._waited_for()

    def dialled(self, error: Exception | None) -> None:
        """Whether it was there; when it is gone for a while, another one takes its place."""
        if error is None:
            self._failing_s = None
            return
        refused = isinstance(error, ConnectionRefusedError)
        now_s = self._now_s()
        if self._failing_s is None:
            self._failing_s = now_s
        if now_s - self._failing_s >= (GONE_S if refused else UNREACHED_S):
            self._failing_s = self._known = None
            self._epoch += 1

    def _claimed(self) -> bool:
        """Whether this rank has to start the coordinator of this epoch."""
        mine = f"{self._rank} {os.getpid()}"
        try:
            return bool(self._store.compare_set(f"home/{self._epoch}/by", "", mine).decode() == mine) and not bool(
                self._store.check([f"home/{self._epoch}/at"])
            )
        except RuntimeError as error:  # torch's stores have no narrower type
            self._on_hopeless(
                "the coordinator is gone, and so is the job's store: the ranks can't agree on another one, and none of "
                "them can go on without the others"
            )
            raise TransportError(f"the job's store is gone: {error}") from error

    def _told(self, address: str) -> None:
        try:
            self._store.set(f"home/{self._epoch}/at", address)
        except RuntimeError as error:
            raise TransportError(f"the job's store is gone: {error}") from error

    def _waited_for(self) -> Address:
        key = f"home/{self._epoch}/at"
        try:
            host, _, port = value_of(self._store, key, START_S).rpartition(":")
        except TransportError as error:
            self._epoch += 1  # whoever claimed it has not come to start it
            raise TransportError(f"no coordinator was started: {error}") from error
        return host, int(port)


def starter(settings: Mapping[str, object], environ: Mapping[str, str], host: str, log: Path | None) -> Starter:
    """How to start coordinators on this machine.

    Args:
        settings: of `coordinator.settings`, but for epoch and host.
        environ: of the new process, with the secret.
        host: address of this machine that all ranks can reach.
        log: where it writes what goes wrong; None: nowhere.
    """

    def start(epoch: int) -> Address:
        # Whoever has lost its launcher belongs to the machine's first process, whose place is nobody's.
        launcher = os.getppid() if os.getppid() > 1 else None
        told = json.dumps({**settings, "epoch": epoch, "host": host, "launcher": launcher})
        argv = [sys.executable, "-P", "-m", "starprof.control.coordinator", told]
        try:
            with Path(log or os.devnull).open("ab") as errors:
                # A session of its own: it outlives the rank that has started it, and ends when all ranks have.
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environ),
                    start_new_session=True,
                )
        except OSError as error:
            raise TransportError(f"the coordinator can't be started: {error}") from error
        _STARTED.append(process)
        return host, _port(process)

    return start


def _port(process: subprocess.Popen[bytes]) -> int:
    """What a new coordinator says first."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + START_S
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        ready = left_s > 0 and select.select([process.stdout], [], [], left_s)[0]
        more = os.read(process.stdout.fileno(), _TOLD_BYTES) if ready else b""
        if not more:
            process.kill()
            process.wait()
            raise TransportError("the coordinator has not told its port")
        line += more
    process.stdout.close()
    try:
        return int(json.loads(line)["listening"][1])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        process.kill()
        raise TransportError("the coordinator has not told its port") from error
