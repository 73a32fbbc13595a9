"""Which jobs are run, in which order: what is compared has the same seed and is run one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

PLAIN, NEVER, APPLY = "plain", "never", "apply"
"""DDP without starprof; recorded and under control, but never moved; with the advisor, which acts by itself."""

HEALTHY = "none"
STAYS_S = (4.0, 1e9)
"""The fault strikes so many seconds after the training has begun, and stays."""
PASSES_S = (4.0, 13.0)
"""It is over after this."""

FAULTS = ("compute", "server", "loader", "stops", "hogs", "quota", "shaped", "passes")
"""The last rank's steps take it four times as long, with DDP and on a parameter server; its batches do; it is stopped
three quarters of the time; others compute on its core; it may use a twentieth of one; its interface is slow; its steps
take long for a while."""


@dataclass(frozen=True)
class Cell:
    """One job.

    Attributes:
        fault: of `FAULTS`, or `HEALTHY`.
        how: `PLAIN`, `NEVER` or `APPLY`.
        seed: of everything that is drawn.
    """

    fault: str
    how: str
    seed: int

    @property
    def name(self) -> str:
        """By which results are known."""
        return f"{self.fault} {self.how} {self.seed}"


def design(seeds: int, healthy: int, first: int = 0) -> Iterator[Cell]:
    """All cells: so many seeds of each fault, from `first` on, and so many pairs of jobs in which nobody is slow."""
    for turn in range(max(seeds, healthy)):
        seed = first + turn
        for fault in FAULTS if turn < seeds else ():
            yield from _shuffled(fault, (PLAIN, NEVER, APPLY) if fault == "compute" else (PLAIN, APPLY), seed)
        # Pairs of healthy jobs are spread over the faults' time, so that a busy hour hits both.
        for more in range(turn * healthy // seeds, (turn + 1) * healthy // seeds) if turn < seeds else ():
            yield from _shuffled(HEALTHY, (PLAIN, APPLY), first + more)


def _shuffled(fault: str, how: tuple[str, ...], seed: int) -> list[Cell]:
    cells = [Cell(fault, one, seed) for one in how]
    random.Random(f"{fault} {seed}").shuffle(cells)
    return cells
