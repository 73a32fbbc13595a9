"""Collects what a simulated job's history is made of."""

from __future__ import annotations

import math
from array import array

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.simulation.history import Evaluation, History, Iterations, Step


class Recording:
    """The history of one job in the making.

    Attributes:
        steps: so far.
        evaluations: so far.
        switches: so far.
        dropped: gradients that were thrown away.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []
        self.switches: list[tuple[float, str]] = []
        self.dropped = 0
        self._worker, self._number = array("q"), array("q")
        self._begun_s, self._own_s, self._waited_s = array("d"), array("d"), array("d")
        self._waits: dict[int, int] = {}

    @property
    def gradients(self) -> int:
        """How many have been handed in."""
        return len(self._worker)

    def since(self, gradients: int) -> tuple[Ints, Floats]:
        """Worker and own time of all iterations but the first so many."""
        return np.array(self._worker[gradients:], np.int64), np.array(self._own_s[gradients:], np.float64)

    def handed_in(self, worker: int, number: int, begun_s: float, own_s: float) -> None:
        """An iteration is done; its worker waits."""
        self._waits[worker] = len(self._worker)
        self._worker.append(worker)
        self._number.append(number)
        self._begun_s.append(begun_s)
        self._own_s.append(own_s)
        self._waited_s.append(math.nan)

    def released(self, worker: int, at_s: float) -> None:
        """It waits no longer."""
        place = self._waits.pop(worker, None)
        if place is not None:
            self._waited_s[place] = max(0.0, at_s - self._begun_s[place] - self._own_s[place])

    def history(self, name: str, mode: str, end_s: float, stopped: str, busy: dict[str, float]) -> History:
        """All of it."""
        return History(
            name,
            mode,
            end_s,
            stopped,
            tuple(self.steps),
            tuple(self.evaluations),
            Iterations(
                np.array(self._worker, np.int64),
                np.array(self._number, np.int64),
                np.array(self._begun_s, np.float64),
                np.array(self._own_s, np.float64),
                np.array(self._waited_s, np.float64),
            ),
            self.dropped,
            tuple(self.switches),
            busy,
        )
