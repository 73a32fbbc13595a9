"""Why a rank is late: the offline diagnosis of what is folded in so far, by a process of its own, now and then.

The detector for running jobs sees times only. Counters and devices are what the offline analysis reads; it takes a
second of CPU and a lot of memory, so it runs apart, at the lowest priority, only while somebody is late for certain and
nobody knows why, and once a minute at most: so often the run file grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from starprof.model import causes
from starprof.serve.jobwatch import JobWatch
from starprof.spool.layout import SPOOL_SUFFIX

EVERY_S = 60.0
RETRY_S = 15.0
"""Where nothing is folded in yet."""

MOST_S = 120.0
NICE = 19


class Why:
    """Asks for causes, one job at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._next_s: dict[str, float] = {}

    def look(self, watch: JobWatch, now_s: float) -> None:
        """Ask, if there is something to ask."""
        if self._task is not None and not self._task.done():
            return
        unknown = [b for b in watch.blames(now_s) if b.status == "confirmed" and b.cause == causes.UNKNOWN]
        if unknown and now_s >= self._next_s.get(watch.name, 0.0):
            run_file = watch.spool.root.with_name(watch.spool.root.name.removesuffix(SPOOL_SUFFIX))
            self._next_s[watch.name] = now_s + (EVERY_S if run_file.exists() else RETRY_S)
            if run_file.exists():
                self._task = asyncio.get_running_loop().create_task(self._ask(watch, str(run_file)))

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _ask(self, watch: JobWatch, run_file: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "starprof", "summary", run_file, "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=lambda: os.nice(NICE),
        )
        try:
            async with asyncio.timeout(MOST_S):
                out, _ = await process.communicate()
        except TimeoutError:
            return
        finally:
            if process.returncode is None:
                process.kill()
        with contextlib.suppress(ValueError):
            watch.causes.update(causes_of(json.loads(out)))


def causes_of(verdict: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Cause and first evidence by rank, of a verdict as JSON."""
    found: dict[int, tuple[str, str]] = {}
    for finding in verdict.get("findings", ()):
        if finding["cause"] != causes.UNKNOWN:
            for rank in finding["ranks"]:
                found.setdefault(rank, (finding["cause"], next(iter(finding["evidence"]), "")))
    return found
