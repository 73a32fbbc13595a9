"""Ranks of a job that are not in its trace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd

import numpy as np

from starprof.analysis.causes.base import rank_names
from starprof.analysis.whatif.trace import Workers
from starprof.model.rundata import WORLD_SIZE, RunData

SHOWN = 4


@dataclass(frozen=True)
class Unseen:
    """Who is not there.

    Attributes:
        places: pipeline and stage of which nothing was recorded although both are in the trace.
        each: ranks that share each place (tensor or sequence parallelism), of which the trace holds one.
        numbered: their numbers follow each other: a rank stands for itself and those up to the next number.
    """

    places: tuple[tuple[int, int], ...]
    each: int
    numbered: bool

    @property
    def words(self) -> str:
        """The places, in a sentence."""
        some = ", ".join(f"stage {pp} of pipeline {dp}" for dp, pp in self.places[:SHOWN])
        more = f" and {len(self.places) - SHOWN} more places" if len(self.places) > SHOWN else ""
        return f"Nothing was recorded of {some}{more}, which may be what others wait for: trace all ranks."

    def sharing(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """That a rank stands for several, as evidence; empty when it does not, or when nobody is named."""
        if self.each < 2 or not ranks:
            return ()
        who = ""
        if self.numbered:
            meant = tuple(other for rank in ranks for other in range(rank, rank + self.each))
            who = f", {rank_names(meant)}," if len(meant) <= 64 else ""
        return (
            f"The trace holds one of {self.each} ranks that share each place (tensor or sequence parallelism) and wait "
            f"for each other in every layer: any of those{who} may be the slow one.",
        )


def unseen(run: RunData, workers: Workers) -> Unseen:
    """Holes in the grid of pipelines and stages, and how many ranks share a place."""
    there = set(zip(workers.dp.tolist(), workers.pp.tolist(), strict=True))
    grid = [(int(dp), int(pp)) for pp in np.unique(workers.pp) for dp in np.unique(workers.dp)]
    missing = tuple(place for place in grid if place not in there)
    told = [size for info in run.ranks if isinstance(size := info.detail.get(WORLD_SIZE), int)]
    by_size = max(told, default=0) // len(grid)
    by_number = reduce(gcd, (int(rank) for rank in workers.rank), 0) if len(workers.rank) > 1 else 1
    numbered = by_number > 1 and (not told or by_number == by_size)
    return Unseen(missing, max(1, by_size, by_number if numbered else 1), numbered)
