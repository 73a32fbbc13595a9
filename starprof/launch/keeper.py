"""Keeps a helper running while the job runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starprof.launch.children import Child, start_helper
from starprof.launch.signals import name

HEALTHY_S = 10.0
"""A helper that lived this long is restarted at once, and the back-off begins anew."""

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0


@dataclass
class Keeper:
    """Starts a helper, and starts it again when it dies: at once at first, ever more slowly when it keeps dying."""

    environment: Mapping[str, str]
    log: Path
    restarts: int = 0
    _child: Child | None = None
    _started_s: float = 0.0
    _delay_s: float = 0.0
    _due_s: float = 0.0
    _how: str = "it could not be started"

    def argv(self) -> list[str]:
        """Its command line."""
        raise NotImplementedError

    def restarted(self, how: str) -> None:
        """It was started again; `how` the one before ended."""

    def start(self) -> None:
        """Start it; when even that fails, it is tried again like a restart."""
        self._started_s = time.monotonic()
        try:
            self._child = start_helper(self.argv(), self.environment, log=self.log)
        except OSError:
            self._plan_restart()

    def tend(self) -> None:
        """Notice a dead one, and restart it when it is due."""
        if self._child is not None and not self._child.running():
            self._how = name(self._child.ended_by) if self._child.ended_by else f"exit code {self._child.exit_code}"
            self._child = None
            self._plan_restart()
        if self._child is None and time.monotonic() >= self._due_s:
            self.restarts += 1
            self.start()
            self.restarted(self._how)

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a planned restart; None when it runs."""
        return None if self._child is not None else max(0.0, self._due_s - time.monotonic())

    def ask_to_stop(self) -> None:
        """Let it end in its own time."""
        if self._child is not None:
            self._child.send(signal.SIGTERM)

    def running(self) -> bool:
        """Whether it still runs."""
        return self._child is not None and self._child.running()

    def stopped_cleanly(self) -> bool:
        """Whether it has ended by itself, with everything done."""
        return self._child is not None and not self._child.running() and self._child.exit_code == 0

    def kill(self) -> None:
        """End one that does not stop."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)

    def _plan_restart(self) -> None:
        lived_s = time.monotonic() - self._started_s
        healthy = lived_s >= HEALTHY_S
        self._delay_s = 0.0 if healthy else min(MAX_DELAY_S, max(FIRST_DELAY_S, 2 * self._delay_s))
        self._due_s = time.monotonic() + self._delay_s
