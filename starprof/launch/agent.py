"""This node's agent, and what watches the job beside it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from starprof.launch.environment import helper_argv
from starprof.launch.journal import Journal
from starprof.launch.keeper import Keeper
from starprof.model import events


@dataclass(kw_only=True)
class AgentKeeper(Keeper):
    """Keeps the agent. What one that was killed had not drained is still in the rings."""

    spool: Path
    node: int
    rate_hz: float
    journal: Journal

    def argv(self) -> list[str]:
        """Its command line."""
        arguments = ["--spool", str(self.spool), "--node", str(self.node), "--rate", f"{self.rate_hz:g}"]
        return helper_argv("starprof.agent", *arguments, "--parent", str(os.getpid()))

    def restarted(self, how: str) -> None:
        """Note it. The gap that this leaves is told by the new agent: it knows when the old one wrote last."""
        self.journal.event(events.AGENT_RESTART, value=self.restarts, detail=f"the agent ended: {how}")


@dataclass(kw_only=True)
class WatchKeeper(Keeper):
    """Keeps the server that watches the job.

    Attributes:
        module: what runs; it takes the spool, `--parent`, and `arguments`.
        after_s: how long the job runs before it is started: most trials and tests are over by then.
    """

    spool: Path
    module: str = "starprof.serve"
    arguments: tuple[str, ...] = ()
    after_s: float = 0.0
    _begun_s: float = field(default_factory=time.monotonic)

    def argv(self) -> list[str]:
        """Its command line."""
        return helper_argv(self.module, str(self.spool), "--parent", str(os.getpid()), *self.arguments)

    def tend(self) -> None:
        """Start it when its time has come, and keep it from then on."""
        if self._started_s:
            super().tend()
        elif time.monotonic() - self._begun_s >= self.after_s:
            self.start()

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it is to be started."""
        if self._started_s:
            return super().due_in_s
        return max(0.0, self._begun_s + self.after_s - time.monotonic())
