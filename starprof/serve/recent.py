"""The newest steps of a job in a fixed amount of memory: how long they took, and each rank in them."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.model.rundata import RankInfo
from starprof.serve.assembler import Whole
from starprof.serve.standing import StepTimes

_CELLS = 1_000_000
_LEAST, _MOST = 32, 1024


class Recent:
    """The window of one attempt.

    Attributes:
        last_step: newest step, None before the first.
    """

    def __init__(self, ranks: int) -> None:
        self.size = int(np.clip(_CELLS // max(1, ranks), _LEAST, _MOST))
        self.last_step: int | None = None
        self._count = 0
        self._steps = np.zeros(self.size, np.int64)
        self._own, self._dur, self._blocked = (np.full((ranks, self.size), np.nan) for _ in range(3))
        self._end = np.zeros((ranks, self.size), np.int64)

    def add(self, whole: Whole) -> None:
        """Steps that are complete; the oldest ones make room."""
        kept = slice(max(0, len(whole.steps) - self.size), None)
        steps = whole.steps[kept]
        places = (self._count + np.arange(len(steps))) % self.size
        self._steps[places] = steps
        self._own[:, places], self._dur[:, places] = whole.own_us[:, kept], whole.dur_us[:, kept]
        self._blocked[:, places], self._end[:, places] = whole.blocked_us[:, kept], whole.end_ns[:, kept]
        self._count += len(steps)
        self.last_step = int(steps[-1])

    def times(self, ranks: tuple[RankInfo, ...]) -> StepTimes | None:
        """The whole window; None before the first step."""
        places = self._places()
        if not len(places):
            return None
        matrices = (matrix[:, places] for matrix in (self._own, self._dur, self._blocked))
        return StepTimes(ranks, self._steps[places], *matrices)

    def step_ms(self) -> float | None:
        """Median over the window of the slowest rank's step."""
        places = self._places()
        if not len(places):
            return None
        return float(np.median(np.nanmax(self._dur[:, places], axis=0))) / 1e3

    def steps_per_s(self) -> float | None:
        """Over the window, by the clock of the rank that has told most of it."""
        places = self._places()
        ends = self._end[:, places]
        if len(places) < 2:
            return None
        row = int(np.argmax((ends > 0).sum(axis=1)))
        told = np.flatnonzero(ends[row] > 0)
        if len(told) < 2:
            return None
        passed_s = (ends[row, told[-1]] - ends[row, told[0]]) / 1e9
        steps = self._steps[places]
        return float(steps[told[-1]] - steps[told[0]]) / passed_s if passed_s > 0 else None

    def _places(self) -> Ints:
        """Of the held steps, oldest first."""
        held = min(self._count, self.size)
        places: Ints = (self._count - held + np.arange(held)) % self.size
        return places
