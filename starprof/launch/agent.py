"""Keeps this node's agent running while the job runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starprof.launch.children import Child, start_helper
from starprof.launch.environment import helper_argv
from starprof.launch.journal import Journal
from starprof.launch.signals import name
from starprof.model import events

HEALTHY_S = 10.0
"""An agent that lived this long is restarted at once, and the back-off begins anew."""

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 30.0


@dataclass
class AgentKeeper:
    """Starts the agent, and starts it again when it dies: at once at first, ever more slowly when it keeps dying."""

    spool: Path
    node: int
    rate_hz: float
    environment: Mapping[str, str]
    log: Path
    journal: Journal
    restarts: int = 0
    _child: Child | None = None
    _started_s: float = 0.0
    _delay_s: float = 0.0
    _due_s: float = 0.0
    _how: str = "it could not be started"

    def start(self) -> None:
        """Start the agent; when even that fails, it is tried again like a restart."""
        arguments = ["--spool", str(self.spool), "--node", str(self.node), "--rate", f"{self.rate_hz:g}"]
        self._started_s = time.monotonic()
        try:
            self._child = start_helper(
                helper_argv("starprof.agent", *arguments, "--parent", str(os.getpid())), self.environment, log=self.log
            )
        except OSError:
            self._plan_restart()

    def tend(self) -> None:
        """Notice a dead agent, and restart it when it is due."""
        if self._child is not None and not self._child.running():
            self._how = name(self._child.ended_by) if self._child.ended_by else f"exit code {self._child.exit_code}"
            self._child = None
            self._plan_restart()
        if self._child is None and time.monotonic() >= self._due_s:
            self.restarts += 1
            self.start()
            self._note_restart()

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a planned restart; None when the agent runs."""
        return None if self._child is not None else max(0.0, self._due_s - time.monotonic())

    def ask_to_stop(self) -> None:
        """Let the agent drain the rings a last time and end."""
        if self._child is not None:
            self._child.send(signal.SIGTERM)

    def running(self) -> bool:
        """Whether the agent still runs."""
        return self._child is not None and self._child.running()

    def stopped_cleanly(self) -> bool:
        """Whether the agent has ended by itself, with everything drained."""
        return self._child is not None and not self._child.running() and self._child.exit_code == 0

    def kill(self) -> None:
        """End an agent that does not stop; what it had not drained is still in the rings."""
        if self._child is not None:
            self._child.send(signal.SIGKILL)

    def _plan_restart(self) -> None:
        lived_s = time.monotonic() - self._started_s
        healthy = lived_s >= HEALTHY_S
        self._delay_s = 0.0 if healthy else min(MAX_DELAY_S, max(FIRST_DELAY_S, 2 * self._delay_s))
        self._due_s = time.monotonic() + self._delay_s

    def _note_restart(self) -> None:
        # The gap that this leaves is told by the new agent: it knows when the old one wrote last.
        self.journal.event(events.AGENT_RESTART, value=self.restarts, detail=f"the agent ended: {self._how}")
