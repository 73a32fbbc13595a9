"""Processes of the job that keep ever more files open: a leak that ends in an error, and often slows the job before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.counters import Counters, numbers
from starprof.analysis.statistics import rank_correlation

MIN_SAMPLES = 6
MIN_MORE = 40
"""Descriptors that must be added: loaders and libraries open some at the start."""
MIN_FACTOR = 1.5
MIN_CORRELATION = 0.9
SETTLED = 0.2
"""Share of the samples at the start that is left out."""


@dataclass(frozen=True)
class Leak:
    """Open files of one process: what it started with, ended with, and may have (NaN when not known)."""

    rank: int
    pid: int
    first: float
    last: float
    limit: float

    def words(self) -> str:
        """A sentence with the numbers."""
        bound = f" of {self.limit:.0f} that it may have" if self.limit == self.limit else ""
        return (
            f"Open file descriptors of process {self.pid} of rank {self.rank} rose steadily from {self.first:.0f} to "
            f"{self.last:.0f}{bound}: a leak, and a candidate for the cause (files, sockets or shared memory that are "
            "never closed; at the limit every open fails)."
        )


def leaks(counters: Counters) -> list[Leak]:
    """Processes of ranks whose descriptors rose all along, the largest growth first."""
    found = []
    for (_, rank, pid), rows in counters.series("process_sample", ("node", "rank", "pid")).items():
        if rank < 0:
            continue
        open_files = numbers(rows, "fds")
        known = open_files[~np.isnan(open_files)]
        settled = known[int(SETTLED * len(known)) :]
        if len(settled) < MIN_SAMPLES or settled[-1] < MIN_FACTOR * settled[0] or settled[-1] - settled[0] < MIN_MORE:
            continue
        if rank_correlation(np.arange(float(len(settled))), settled) < MIN_CORRELATION:
            continue
        limits = numbers(rows, "fds_limit")
        limit = float(np.nanmax(limits)) if np.isfinite(limits).any() else float("nan")
        found.append(Leak(int(rank), int(pid), float(settled[0]), float(settled[-1]), limit))
    return sorted(found, key=lambda leak: leak.first - leak.last)
