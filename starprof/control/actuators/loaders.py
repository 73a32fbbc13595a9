"""Advice about a DataLoader's workers: by how long ranks wait for batches, and which processors are idle.

Workers belong to the loop that has made the loader; nobody else can start more of them. So this one only tells.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from starprof.control.actuators.job import Member
from starprof.control.actuators.measure import Seen

WORTH_A_CHANGE = 0.05
"""Share of a step below which waiting for batches is no matter."""
BUSY = 0.9


@dataclass(frozen=True, slots=True)
class LoaderAdvice:
    """About one rank.

    Attributes:
        rank: whose loader.
        workers: that it has now.
        wanted: that it should have.
        why: in words.
    """

    rank: int
    workers: int
    wanted: int
    why: str


def advise(seen: Seen, members: Sequence[Member], cores: int | None = None) -> list[LoaderAdvice]:
    """What to do about each rank's loader.

    Args:
        seen: what the job did for a while.
        members: its processes.
        cores: processors of the machine.
    """
    cores = cores or os.cpu_count() or 1
    idle = max(0.0, cores - seen.all_cores)
    ranks = sorted(seen.iteration_s)
    found = []
    for rank in ranks:
        workers = sum(member.helper and member.rank == rank for member in members)
        wait, whole = seen.data_wait_s.get(rank, 0.0), seen.iteration_s[rank]
        share = wait / whole if whole > 0 else 0.0
        found.append(_advice(rank, workers, share, seen.helper_cores.get(rank, 0.0), int(idle / len(ranks))))
    return found


def _advice(rank: int, workers: int, share: float, used: float, spare: int) -> LoaderAdvice:
    waits = f"{100 * share:.0f} % of a step waits for batches"
    if share < WORTH_A_CHANGE:
        return LoaderAdvice(rank, workers, workers, f"{waits}: nothing to win")
    if workers and used < BUSY * workers:
        return LoaderAdvice(
            rank, workers, workers, f"{waits}, but its {workers} workers use {used:.1f} cores: storage holds them up"
        )
    if not spare:
        return LoaderAdvice(rank, workers, workers, f"{waits}, and no processor is idle: load less, or cache")
    wanted = workers + max(1, min(spare, round((workers or 1) * share / (1 - min(share, 0.9)))))
    write = f"DataLoader(..., num_workers={wanted}, prefetch_factor=4, persistent_workers=True)"
    return LoaderAdvice(rank, workers, wanted, f"{waits}, and its {workers} workers are busy: {write}")
