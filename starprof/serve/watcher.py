"""The process that watches: follows the spools, judges, and answers at its local socket and over HTTP.

It brings nothing and stores nothing; those who do (`launch`) run on when it dies, and start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starprof.control.controlsocket import ControlSocket
from starprof.control.counter import Counter
from starprof.serve.desk import SOCKET, Desk
from starprof.serve.http import MetricsServer
from starprof.serve.jobwatch import JobWatch
from starprof.serve.why import Why
from starprof.spool.layout import RUN_SUFFIX, SPOOL_SUFFIX, Spool

POLL_S = 0.2
LOOK_FOR_JOBS_S = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What to watch.

    Attributes:
        place: the spool of one run, or with `many` the folder in which the spools of many come and go.
        metrics: address of the metrics, None for none.
        reader_token: what a reader of metrics from elsewhere has to show.
        parent: process without which there is nothing to do any more; None: until SIGTERM.
    """

    place: Path
    many: bool = False
    metrics: tuple[str, int] | None = None
    reader_token: str | None = None
    parent: int | None = None


class Watcher:
    """Watches until it is told to end.

    Attributes:
        jobs: by name, as they come and go.
        each_round: called with the time after everything new was taken in; for those who act on what is seen.
    """

    def __init__(self, wish: Wish) -> None:
        self.jobs: dict[str, JobWatch] = {}
        self.each_round: Callable[[float], None] = lambda _now_s: None
        self._wish = wish
        self._desk = Desk(self.jobs)
        self._why = Why()
        self._looked_s = 0.0
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM, or until the parent is gone.

        Raises:
            TransportError: an address can't be listened on.
            UsageError: the metrics would be open to everybody.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        socket = ControlSocket(self._wish.place, SOCKET)
        counter = await loop.create_unix_server(Counter(self._desk.answer).accept, sock=socket.sock)
        metrics = None
        try:
            if self._wish.metrics is not None:
                metrics = MetricsServer(self._wish.metrics, self._desk.metrics, self._wish.reader_token)
                await metrics.start()
            while not self._stop.is_set() and self._wanted():
                self._round()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), POLL_S)
        finally:
            await self._why.close()
            counter.close()
            socket.close()
            if metrics is not None:
                metrics.close()
            for watch in self.jobs.values():
                watch.close()

    def _wanted(self) -> bool:
        return self._wish.parent is None or os.getppid() == self._wish.parent

    def _round(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_FOR_JOBS_S:
            self._looked_s = now_s
            self._find_jobs()
        for watch in self.jobs.values():
            watch.poll(time.monotonic())
            self._why.look(watch, now_s)
        self.each_round(time.monotonic())

    def _find_jobs(self) -> None:
        """Jobs whose spool has appeared, or has been folded in and removed."""
        if not self._wish.many:
            there = [self._wish.place]
        else:
            there = [
                path for path in self._wish.place.glob(f"*{RUN_SUFFIX}{SPOOL_SUFFIX}") if (path / "run.json").exists()
            ]
        names = {path.name.removesuffix(SPOOL_SUFFIX).removesuffix(RUN_SUFFIX): path for path in there}
        for name in [name for name in self.jobs if name not in names]:
            self.jobs.pop(name).close()
        for name, path in names.items():
            if name not in self.jobs:
                self.jobs[name] = JobWatch(Spool(path))
