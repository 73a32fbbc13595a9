"""The contract of a collector: open its sources once, then append rows of raw counters at every tick.

A collector never computes rates and never guesses: it reports the kernel's cumulative counters as they are.
What can't be read at all raises `Unavailable` in `open` and is recorded with its reason; a single field that
can't be read is None. A collector is used by one thread only and keeps its file descriptors open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from starprof.collectors.gpu_map import Card
from starprof.collectors.procfile import TickFile
from starprof.errors import StarprofError
from starprof.model.schema import Table


class Unavailable(StarprofError):  # noqa: N818 - reads as the fact that it reports
    """A source does not exist here or may not be read; the text is the reason that the report shows."""


class Rows(Protocol):
    """Where collectors put what they read; rows are in the table's column order."""

    def add(self, table: Table, row: Sequence[object]) -> None:
        """Append one row."""
        ...


@dataclass
class NodeContext:
    """What collectors share about the node; the agent keeps it current.

    Attributes:
        node: node id within the run.
        proc: root of procfs, `/proc` or a fake tree.
        sys: root of sysfs, `/sys` or a fake tree.
        rank_pids: rank -> process id of the rank's own process, as the rings tell.
        tree: pid -> rank for every process in a rank's tree (the rank itself and its descendants).
        own_pids: processes of starprof itself: never counted as foreign load.
        supervisor_pid: process that started job, agent and ingester; None when there is none.
        gpu_cards: the physical GPUs that the GPU collector found; empty without one.
        shared: files that several collectors read, so that one tick reads them once (`procfile.shared`).
    """

    node: int = 0
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    rank_pids: dict[int, int] = field(default_factory=dict)
    tree: Mapping[int, int] = field(default_factory=dict)
    own_pids: set[int] = field(default_factory=set)
    supervisor_pid: int | None = None
    gpu_cards: Callable[[], Sequence[Card]] = tuple
    shared: dict[str, TickFile] = field(default_factory=dict)


class Collector(Protocol):
    """One source of counters.

    Attributes:
        name: short name, used in tables `gap` and `unavailable`.
        dear: sampled at 1 Hz at most instead of the agent's rate.
        slow: optional, read it as `getattr(collector, "slow", False)`. True: one `sample` may block for tens of
            milliseconds in a driver, so the agent runs this collector in a thread of its own.
    """

    name: str
    dear: bool

    def open(self, context: NodeContext, rows: Rows) -> None:
        """Open the sources and append dictionary rows (names of devices and the like).

        Raises:
            Unavailable: nothing of this source can be read here; the text says why.
        """
        ...

    def sample(self, mono_ns: int, rows: Rows) -> None:
        """Append the rows of one tick, all stamped `mono_ns`. Devices may come and go between ticks."""
        ...

    def close(self) -> None:
        """Close all descriptors."""
        ...
