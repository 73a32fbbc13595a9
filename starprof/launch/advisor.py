"""Keeps the advisor running beside the job, where one was asked for."""

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

AGAIN_S = 5.0
"""One that has died is started again after this time: its lease is over soon, and the next one finds a native job."""

PATIENCE_S = 5.0
_POLL_S = 0.01


@dataclass
class AdvisorKeeper:
    """Of node 0; does nothing where `asked` is None."""

    spool: Path
    asked: str | None
    environment: Mapping[str, str]
    log: Path
    _child: Child | None = None
    _due_s: float = 0.0

    def start(self) -> None:
        """Start it, if one was asked for."""
        if self.asked is None:
            return
        settings = {**json.loads(self.asked), "spool": str(self.spool), "parent": os.getpid()}
        self._due_s = time.monotonic() + AGAIN_S
        argv = helper_argv("starprof.advisor", json.dumps(settings))
        try:
            # As quick as the job itself: what it costs is little, and it must not come late where all cores are busy.
            self._child = start_helper(argv, self.environment, log=self.log, niceness=0)
        except OSError:
            self._child = None

    def tend(self) -> None:
        """Start it again when it is gone."""
        if self.asked is None or (self._child is not None and self._child.running()):
            return
        if time.monotonic() >= self._due_s:
            self.start()

    def stop(self) -> None:
        """The job has ended: let it write what it knows, and end it."""
        child, self._child = self._child, None
        if child is None:
            return
        child.send(signal.SIGTERM)
        deadline_s = time.monotonic() + PATIENCE_S
        while child.running() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        child.send(signal.SIGKILL)
