"""Runs the ingester: a short process that folds the spool into file or database; never two at work at a time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starprof.launch.children import Child, start_helper
from starprof.launch.environment import helper_argv
from starprof.launch.plan import INGEST_SPOOL_BYTES
from starprof.launch.signals import name
from starprof.spool.layout import Spool

LOOK_EVERY_S = 2.0
MAX_BACKOFF_S = 120.0
FINAL_TRIES = 3
_RESULT_BYTES = 64 * 1024


@dataclass
class IngestRunner:
    """Decides when an ingester is due and keeps track of it."""

    spool: Spool
    target: str
    max_size_bytes: int | None
    every_s: float
    environment: Mapping[str, str]
    log: Path
    failures: int = 0
    _child: Child | None = None
    _last_s: float = 0.0
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        self._last_s = time.monotonic()

    def tend(self) -> None:
        """Reap an ingester that has ended, start one when the spool is large or old enough."""
        if self.running():
            return
        now_s = time.monotonic()
        backoff_s = min(MAX_BACKOFF_S, self.every_s * 2**self.failures) if self.failures else 0.0
        if now_s - self._last_s < backoff_s or now_s - self._looked_s < min(LOOK_EVERY_S, self.every_s):
            return
        self._looked_s = now_s
        size = sealed_bytes(self.spool)
        if size > INGEST_SPOOL_BYTES or (size and now_s - self._last_s >= self.every_s):
            self._start()

    def running(self) -> bool:
        """Whether an ingester runs; notes the outcome of one that has ended."""
        if self._child is None:
            return False
        if self._child.running():
            return True
        self.failures = 0 if self._child.status == 0 else self.failures + 1
        self._child = None
        self._last_s = time.monotonic()
        return False

    def kill(self) -> None:
        """End the ingester; the spool still holds whatever it had not committed."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)

    def _start(self) -> None:
        argv = helper_argv("starprof.store.ingest", *self.arguments)
        self._last_s = time.monotonic()
        self._child = start_helper(argv, self.environment, log=self.log)

    @property
    def arguments(self) -> list[str]:
        """What to fold, and into what."""
        limit = [] if self.max_size_bytes is None else ["--max-size", str(self.max_size_bytes)]
        return [str(self.spool.root), self.target, *limit]


@dataclass(frozen=True, slots=True)
class Folded:
    """Outcome of the last run: ranks, steps and bytes of the file, files left in the spool, "" or why it failed."""

    ranks: int = 0
    steps: int = 0
    bytes: int = 0
    left: int = 0
    error: str = ""


@dataclass
class LastFold:
    """The last run, of a process that is started early and waits for the word."""

    child: Child
    log: Path
    _go: int
    _result: int

    @classmethod
    def prepare(cls, runner: IngestRunner) -> LastFold:
        """Start it; it loads what it needs and then waits.

        Raises:
            OSError: it can't be started.
        """
        go_reader, go_writer = os.pipe2(os.O_CLOEXEC)
        result_reader, result_writer = os.pipe2(os.O_CLOEXEC)
        try:
            argv = helper_argv("starprof.launch.lastfold", *runner.arguments)
            # The job is over: nobody is left to stand back for.
            child = start_helper(
                argv, runner.environment, log=runner.log, stdin=go_reader, stdout=result_writer, niceness=0
            )
        except OSError:
            os.close(go_writer)
            os.close(result_reader)
            raise
        finally:
            os.close(go_reader)
            os.close(result_writer)
        return cls(child, runner.log, go_writer, result_reader)

    def go(self) -> None:
        """Let it fold."""
        try:
            os.write(self._go, b"go\n")
        except BrokenPipeError:
            return  # it was killed: that shows in the result
        finally:
            os.close(self._go)

    def result(self) -> Folded:
        """What came of it; asked only once, after its end."""
        with os.fdopen(self._result, "rb") as pipe:
            text = pipe.read(_RESULT_BYTES)
        try:
            return Folded(**json.loads(text))
        except (ValueError, TypeError):
            how = name(self.child.ended_by) if self.child.ended_by else f"exit code {self.child.exit_code}"
            return Folded(error=f"the ingester ended: {how}, see {self.log}")


def sealed_bytes(spool: Spool) -> int:
    """Bytes in segments that wait to be folded in."""
    total = 0
    try:
        with os.scandir(spool.segments) as entries:
            for entry in entries:
                if entry.name.endswith(".seg"):
                    total += entry.stat().st_size
    except OSError:  # a segment that is folded in while we look is no news
        pass
    return total
