"""Who takes part in a parameter server, as its head knows them: workers and shards."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from starprof.ps.messages import KIND, WORDS, Hi, Place, Report
from starprof.ps.wire import Line


@dataclass
class WorkerSeat:
    """One worker.

    Attributes:
        rank: of it.
        hi: what it has said first, on its newest connection.
        line: its connection; None: it has none now.
        heard_s: when it was last heard of.
        state: of `connected`, `disconnected`, `lost` and `left`.
        arrived_s: when its last gradient was told; None: none was yet.
        released_s: when it was last released; None: never.
        own_s: how long its last iteration took, from its release on; None: not known.
        contributions: its gradients that went into updates.
    """

    rank: int
    hi: Hi
    line: Line | None
    heard_s: float = field(default_factory=time.monotonic)
    state: str = "connected"
    arrived_s: float | None = None
    released_s: float | None = None
    own_s: float | None = None
    contributions: int = 0

    def tell(self, message: Any) -> None:
        """Say something to it, if it is there; what it misses its next hello makes good."""
        if self.line is not None:
            tell(self.line, message)


@dataclass
class ShardSeat:
    """One process that is a shard, or could be one.

    Attributes:
        report: what it has said last of itself.
        line: its connection; None: it has none now.
        heard_s: when it was last heard of.
        moving_to: the process that it hands over to.
    """

    report: Report
    line: Line | None
    heard_s: float = field(default_factory=time.monotonic)
    moving_to: ShardSeat | None = None

    @property
    def place(self) -> Place:
        """Where it is."""
        if self.line is None:
            return Place(self.report.shard, "", 0)
        return Place(self.report.shard, self.report.host, self.report.port)

    def tell(self, message: Any) -> None:
        """Say something to it, if it is there; what it misses its next report makes good."""
        if self.line is not None:
            tell(self.line, message)


def tell(line: Line, message: Any) -> None:
    """Say something."""
    line.send(KIND, WORDS.encode(message))


def say(text: str) -> None:
    """One line for whoever looks into the log."""
    sys.stderr.write(f"starprof head: {text}\n")
