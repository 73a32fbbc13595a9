"""Puts the step records of all ranks together, step by step, as the running job's detector wants them.

Records of one step come from many nodes at different times. A step is handed on as soon as every rank that is expected
has told it, or when the rest has been late for `PATIENCE_S`: a node that is cut off must not stop the view of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.model.columns import INT_NULL
from starprof.model.tables.job import STEP

PATIENCE_S = 3.0
"""Agents bring their records once a second; who has brought none for this long is not waited for."""

_CELLS = 4_000_000
_LEAST_WINDOW, _MOST_WINDOW = 64, 4096
_AT = {name: place for place, name in enumerate(STEP.names)}
_SPECIAL = [_AT[f"{name}_us"] for name in ("gc", "checkpoint", "eval", "compile")]


@dataclass(frozen=True, slots=True)
class Whole:
    """Steps that are complete, oldest first.

    Attributes:
        steps: shape (S,).
        own_us: regular own time as in `analysis.own_time`: the optimizer counts to the step after, special work is left
            out; NaN where there is no record, shape (R, S).
        blocked_us: time in collectives, likewise.
        dur_us: the whole step, likewise.
        end_ns: end of the step in the clock of the rank's node, 0 where there is no record, shape (R, S).
    """

    steps: Ints
    own_us: Floats
    blocked_us: Floats
    dur_us: Floats
    end_ns: Ints


class Assembler:
    """Of the ranks of one attempt.

    Attributes:
        late_rows: records that came after their step had been handed on; the run file has them all the same.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        """Wait for these ranks; rows of the matrices are in the same order."""
        self.late_rows = 0
        count = len(ranks)
        self.window = int(np.clip(_CELLS // max(1, count), _LEAST_WINDOW, _MOST_WINDOW))
        order = np.argsort(np.asarray(ranks, dtype=np.int64), kind="stable")
        self._order, self._sorted = order, np.asarray(ranks, dtype=np.int64)[order]
        shape = (count, self.window)
        self._own, self._blocked, self._dur, self._optimizer = (np.full(shape, np.nan) for _ in range(4))
        self._end = np.zeros(shape, np.int64)
        self._since_s = np.full(self.window, np.inf)
        self._base: int | None = None
        self._top = -1
        self._optimizer_before = np.full(count, np.nan)
        self._ahead: list[Ints] = []

    def add(self, cells: Ints, now_s: float) -> None:
        """Rows of table `step` of this attempt, as packed integers, shape (N, columns)."""
        place = np.searchsorted(self._sorted, cells[:, _AT["rank"]])
        known = place < len(self._sorted)
        known[known] = self._sorted[place[known]] == cells[known, _AT["rank"]]
        cells, rows = cells[known], self._order[place[known]]
        if not len(cells):
            return
        steps = cells[:, _AT["step"]]
        if self._base is None:
            self._base = int(steps.min())
        kept = (steps >= self._base) & (steps < self._base + self.window)
        self.late_rows += int((steps < self._base).sum())
        if not kept.all():
            self._ahead.append(cells[steps >= self._base + self.window])
            cells, rows, steps = cells[kept], rows[kept], steps[kept]
        self._put(rows, steps, cells, now_s)

    def _put(self, rows: Ints, steps: Ints, cells: Ints, now_s: float) -> None:
        if not len(steps):
            return
        columns = steps % self.window
        on_gpu = cells[:, _AT["gpu_blocked_us"]] != INT_NULL
        dur = _us(cells[:, _AT["dur_us"]])
        blocked = np.nan_to_num(_us(np.where(on_gpu, cells[:, _AT["gpu_blocked_us"]], cells[:, _AT["blocked_us"]])))
        optimizer = _us(np.where(on_gpu, cells[:, _AT["gpu_optimizer_us"]], cells[:, _AT["optimizer_us"]]))
        special = np.nan_to_num(_us(cells[:, _SPECIAL])).sum(axis=1)
        self._own[rows, columns] = dur - blocked - special
        self._blocked[rows, columns] = blocked
        self._dur[rows, columns] = dur
        self._optimizer[rows, columns] = np.nan_to_num(optimizer)
        start = cells[:, _AT["start_mono_ns"]]
        ends = np.where(start == INT_NULL, 0, start + 1000 * np.maximum(cells[:, _AT["dur_us"]], 0))
        self._end[rows, columns] = ends
        np.minimum.at(self._since_s, columns, now_s)
        self._top = max(self._top, int(steps.max()))

    def take(self, now_s: float, absent: Bools | None = None) -> Whole | None:
        """The steps that are complete now; None when there is none.

        Args:
            now_s: as for `add`.
            absent: ranks that are known to be cut off, shape (R,): they are not waited for.
        """
        if self._base is None or self._top < self._base:
            return None
        count = min(self._top - self._base + 1, self.window)
        columns = (self._base + np.arange(count)) % self.window
        told = ~np.isnan(self._dur[:, columns])
        if absent is not None and absent.any():
            told |= absent[:, None]
        # Of a step that nobody has told anything of, while later ones came, the wait began with those.
        since_s = np.minimum.accumulate(self._since_s[columns][::-1])[::-1]
        waiting = ~told.all(axis=0) & (now_s - since_s < PATIENCE_S)
        full = any(len(cells) for cells in self._ahead)  # what is missing has been late for very many steps
        ready = int(np.argmax(waiting)) if waiting.any() and not full else count
        if ready == 0:
            return None
        whole = self._cut(columns[:ready])
        ahead, self._ahead = self._ahead, []
        for cells in ahead:
            self.add(cells, now_s)
        return whole

    def _cut(self, columns: Ints) -> Whole | None:
        """Hand these columns on and make room."""
        assert self._base is not None
        steps = self._base + np.arange(len(columns))
        optimizer = self._optimizer[:, columns]
        before = np.concatenate([self._optimizer_before[:, None], optimizer[:, :-1]], axis=1)
        before = np.where(np.isnan(before), optimizer, before)
        own = self._own[:, columns] - optimizer + before
        whole = Whole(steps, own, self._blocked[:, columns], self._dur[:, columns], self._end[:, columns])
        self._optimizer_before = optimizer[:, -1].copy()
        for matrix in (self._own, self._blocked, self._dur, self._optimizer):
            matrix[:, columns] = np.nan
        self._end[:, columns] = 0
        self._since_s[columns] = np.inf
        self._base += len(columns)
        told = ~np.isnan(whole.dur_us).all(axis=0)
        if told.all():
            return whole
        if not told.any():
            return None
        return Whole(
            steps[told], whole.own_us[:, told], whole.blocked_us[:, told], whole.dur_us[:, told], whole.end_ns[:, told]
        )


def _us(cells: Ints) -> Floats:
    """Packed integers as numbers, NaN for NULL."""
    values: Floats = np.where(cells == INT_NULL, np.nan, cells.astype(np.float64))
    return values
