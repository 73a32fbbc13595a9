"""Workers as they were recorded: own times per rank and step, resampled with their autocorrelation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.own_time import own_time
from starprof.analysis.settings import Settings
from starprof.errors import NoDataError
from starprof.model.rundata import RunData
from starprof.simulation.setting import Worker
from starprof.simulation.sources import Draw, Source

LONGEST_BLOCK = 1_000


@dataclass(frozen=True)
class Recorded(Source):
    """Own times of one rank, resampled in blocks of consecutive steps (stationary bootstrap, Politis and Romano 1994).

    Blocks begin at the same steps for all workers of a job, so that what slowed several ranks at once still does.

    Attributes:
        times_s: own time of each recorded step.
        block: mean length of a block, in steps; 0: the steps are played once in their order, and then again.
    """

    times_s: tuple[float, ...]
    block: int

    def __post_init__(self) -> None:
        if not self.times_s or min(self.times_s) <= 0:
            raise ValueError("recorded times must be there and above 0 s")

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return float(np.mean(self.times_s))

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        # The worker's index is left out: all workers of a job jump to the same steps.
        random = np.random.default_rng(seed[:-1])
        times, count, block = self.times_s, len(self.times_s), self.block
        place = [int(random.integers(count)) if block else -1, 0]

        def draw(at_s: float) -> float:  # noqa: ARG001
            if place[1] == 0 and block:
                place[:] = int(random.integers(count)), int(random.geometric(1 / block))
            else:
                place[0] = (place[0] + 1) % count
            place[1] -= 1
            return times[place[0]]

        return draw


def workers_of(run: RunData, *, batch: int = 1, in_order: bool = False) -> tuple[Worker, ...]:
    """The ranks of a recorded or imported run as workers, by their own times in it.

    Steps that a rank has no record of take its median time. Each rank is on a node of its own name, `node0` and so on.

    Args:
        run: as it was loaded.
        batch: samples that each rank computes in an iteration.
        in_order: play the recorded steps in their order, instead of resampling them.

    Raises:
        NoDataError: no rank has complete step records.
    """
    own = own_time(run, Settings())
    if own is None:
        raise NoDataError("the run holds no step records: there are no times of workers in it")
    times_s = own.cycle / 1e6
    block = 0 if in_order else block_length(times_s)
    return tuple(
        Worker(own.rank(row), Recorded(filled(times_s[row]), block), node=f"node{own.infos[row].node}", batch=batch)
        for row in range(len(own.infos))
    )


def filled(times_s: Floats) -> tuple[float, ...]:
    """The same with gaps, and what no clock can have measured, filled by the median."""
    usable = np.isfinite(times_s) & (times_s > 0)
    if not usable.any():
        raise NoDataError("a rank has no times in its records")
    return tuple(np.where(usable, times_s, np.median(times_s[usable])).tolist())


def block_length(times_s: Floats) -> int:
    """Mean length of blocks that keep the autocorrelation: twice the sum of it, over the lags where it is clear.

    Args:
        times_s: shape (R, S).
    """
    steps = times_s.shape[1]
    longest = 1
    for row in times_s:
        known = np.asarray(filled(row))
        spread = known - known.mean()
        power = float(spread @ spread)
        total, lag = 0.0, 1
        while power > 0 and lag < min(steps // 4, LONGEST_BLOCK):
            correlation = float(spread[:-lag] @ spread[lag:]) / power
            if correlation < 2 / np.sqrt(steps):
                break
            total += correlation
            lag += 1
        longest = max(longest, round(1 + 2 * total))
    return int(min(longest, max(1, steps // 4), LONGEST_BLOCK))
