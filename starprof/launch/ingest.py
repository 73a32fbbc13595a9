"""Runs the ingester: a short process that folds the spool into the run file; never two at a time."""

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
from starprof.spool.layout import Spool

LOOK_EVERY_S = 2.0
MAX_BACKOFF_S = 120.0
FINAL_TRIES = 3
_RESULT_BYTES = 64 * 1024


@dataclass
class IngestRunner:
    """Decides when an ingester is due and keeps track of it."""

    spool: Spool
    run_file: Path
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

    def start_final(self) -> int:
        """Start the last ingester; returns the descriptor from which its result is read.

        Raises:
            OSError: it can't be started.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            self._start("--final", stdout=writer)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return reader

    def kill(self) -> None:
        """End the ingester; the spool still holds whatever it had not committed."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)

    def _start(self, *flags: str, stdout: int | None = None) -> None:
        limit = () if self.max_size_bytes is None else ("--max-size", str(self.max_size_bytes))
        argv = helper_argv("starprof.store.ingest", str(self.spool.root), str(self.run_file), *limit, *flags)
        self._last_s = time.monotonic()
        self._child = start_helper(argv, self.environment, log=self.log, stdout=stdout)


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


def read_result(descriptor: int) -> dict[str, int]:
    """What the final ingester printed: a JSON object with counts; empty when it was killed."""
    with os.fdopen(descriptor, "rb") as pipe:
        text = pipe.read(_RESULT_BYTES)
    try:
        result = json.loads(text)
    except ValueError:
        return {}
    return {k: v for k, v in result.items() if isinstance(v, int)} if isinstance(result, dict) else {}
