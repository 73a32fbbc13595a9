"""`starprof serve`: the server of many jobs, in the foreground until it is told to end.

It takes in the records; the watch and the ingesters are processes of their own, which may die and are started again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starprof.errors import SpoolError, UsageError
from starprof.launch import environment, runinfo
from starprof.launch.agent import WatchKeeper
from starprof.launch.children import Child, start_helper
from starprof.launch.console import say
from starprof.launch.ingest import IngestRunner
from starprof.launch.plan import INGEST_EVERY_S
from starprof.launch.post import Post
from starprof.launch.secret import is_loopback, reader_token
from starprof.model import env
from starprof.serve.hall import Hall, Job, Tokens
from starprof.spool.audit import Audit

TICK_S = 0.5
LAST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Wish:
    """What to serve.

    Attributes:
        folder: where run files go.
        address: on which nodes are taken in.
        secret: the one that all jobs share, None with `token_dir`.
        token_dir: folder with a secret for each job.
        metrics: address of the metrics, None for none.
        max_size_bytes: limit of each run file.
    """

    folder: Path
    address: tuple[str, int]
    secret: bytes | None = None
    token_dir: Path | None = None
    metrics: tuple[str, int] | None = None
    max_size_bytes: int | None = None
    ingest_every_s: float = INGEST_EVERY_S


@dataclass
class _Folding:
    """The ingester of one run; `ended` when nothing more will come."""

    runner: IngestRunner
    job: Job
    ended: bool = False
    last: Child | None = None
    tries: int = 0


@dataclass
class Server:
    """One server.

    Raises:
        UsageError: it would be open to everybody.
        TransportError: the address can't be listened on.
        SpoolError: the folder can't be used.
    """

    wish: Wish
    told: Callable[[str], None] = say
    stop: threading.Event = field(default_factory=threading.Event)
    _foldings: dict[Path, _Folding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wish = self.wish
        if wish.secret is None and wish.token_dir is None:
            raise UsageError("server and nodes share a secret: without one everybody could come in")
        if wish.metrics is not None and wish.secret is None and not is_loopback(wish.metrics[0]):
            raise UsageError("metrics for other machines need the reader's token, which --token-file gives")
        self._lock = _lock(wish.folder)
        tokens = Tokens(shared=wish.secret, folder=wish.token_dir)
        self._hall = Hall(wish.folder, tokens, Audit(wish.folder / "serve.audit"))
        self._hall.resume()
        self._post = Post(self._hall, wish.address, self._hall.inboxes)
        self._log = wish.folder / "serve.log"
        self._environment = environment.for_helpers(os.environ, pythonpath=os.environ.get("PYTHONPATH"))
        self._watch = self._keeper()

    @property
    def address(self) -> tuple[str, int]:
        """On which it really listens."""
        return self._post.address

    def run(self) -> None:
        """Until `stop` is set."""
        self._post.start()
        self._watch.start()
        try:
            while not self.stop.wait(TICK_S):
                self._tick()
        finally:
            self._end()

    def _keeper(self) -> WatchKeeper:
        wish = self.wish
        arguments: list[str] = ["--many"]
        helper = dict(self._environment)
        if wish.metrics is not None:
            host, port = wish.metrics
            arguments += ["--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
            if wish.secret is not None:
                helper[env.READER_TOKEN] = reader_token(wish.secret)
        return WatchKeeper(helper, self._log, spool=wish.folder, arguments=tuple(arguments))

    def _tick(self) -> None:
        self._watch.tend()
        for job in self._hall.jobs():
            self._folding(job).runner.tend()
        for job in self._hall.over(time.monotonic()):
            self._close(job)
        for folding in list(self._foldings.values()):
            if folding.ended:
                self._finish(folding)

    def _folding(self, job: Job) -> _Folding:
        folding = self._foldings.get(job.run_file)
        if folding is None:
            wish, spool, target = self.wish, job.inbox.spool, str(job.run_file)
            runner = IngestRunner(spool, target, wish.max_size_bytes, wish.ingest_every_s, self._environment, self._log)
            folding = self._foldings[job.run_file] = _Folding(runner, job)
        return folding

    def _close(self, job: Job) -> None:
        """Nothing more will come of a job."""
        folding = self._folding(job)
        folding.ended = True
        with contextlib.suppress(SpoolError, OSError):  # a full disk: the last ingester says so
            job.inbox.close()
            job.info["ended_unix_ns"] = time.time_ns()
            runinfo.write(job.inbox.spool.run_json, job.info)
        self._hall.note("job-ended", job=job.name, run=job.inbox.run_id, rows=job.inbox.rows)

    def _finish(self, folding: _Folding) -> None:
        """The last ingester of a run, tried again if it fails; then the spool is removed."""
        if folding.runner.running():
            return
        spool, run_file = folding.job.inbox.spool, folding.job.run_file
        if folding.last is None:
            argv = environment.helper_argv("starprof.store.ingest", *folding.runner.arguments, "--final")
            folding.last = start_helper(argv, self._environment, log=self._log)
            folding.tries += 1
        elif not folding.last.running():
            failed = folding.last.status != 0
            folding.last = None
            if failed and folding.tries < LAST_TRIES:
                return
            del self._foldings[run_file]
            if not failed:
                shutil.rmtree(spool.root, ignore_errors=True)
            os.close(folding.job.lock)
            if failed:
                self.told(
                    f"not everything of {run_file.name} could be folded in: `starprof summary {run_file}` tries again"
                )
            else:
                self.told(f"wrote {run_file}")

    def _end(self) -> None:
        """Finish what is over. Runs that go on stay as they are, for a server that comes after us (or `summary`)."""
        self._watch.ask_to_stop()
        self._post.close()
        deadline_s = time.monotonic() + 60.0
        while (ended := [f for f in self._foldings.values() if f.ended]) and time.monotonic() < deadline_s:
            for folding in ended:
                self._finish(folding)
            time.sleep(0.05)
        os.close(self._lock)


def _lock(folder: Path) -> int:
    """One server for each folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "serve.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpoolError(f"can't use {folder}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(f"another server uses {folder}") from None
    return fd


def serve(wish: Wish) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        StarprofError: it can't be.
    """
    server = Server(wish)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop.set())
    host, port = server.address
    say(f"listening on {host}:{port}, runs go to {wish.folder}; on the nodes: starprof record --join {host}:{port}")
    server.run()
