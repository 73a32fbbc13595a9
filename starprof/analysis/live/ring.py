"""The last steps of a running job, in a fixed amount of memory, with window sums at a fixed cost."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints


class Ring:
    """The newest `size` steps of R ranks: own time, and sums of lateness over any window that ends now.

    Sums are differences of running totals, so a window costs the same whatever its width.
    """

    def __init__(self, ranks: int, size: int) -> None:
        self.size = size
        self.pushed = 0
        self._own = np.full((ranks, size), np.nan)
        self._transfer = np.zeros(size)
        self._steps = np.zeros(size, np.int64)
        self._total = np.zeros((ranks, size + 1))
        self._seen = np.zeros((ranks, size + 1))

    def __len__(self) -> int:
        """Steps held."""
        return min(self.pushed, self.size)

    def push(self, step: int, own_us: Floats, transfer_us: float, late: Floats) -> None:
        """Add a step; `late` is the lateness that counts, NaN where a rank has no record, shape (R,)."""
        place = self.pushed % self.size
        self._own[:, place] = own_us
        self._transfer[place] = transfer_us
        self._steps[place] = step
        now, then = self._edge(0), self._edge(-1)
        self._total[:, then] = self._total[:, now] + np.nan_to_num(late, nan=0.0)
        self._seen[:, then] = self._seen[:, now] + ~np.isnan(late)
        self.pushed += 1

    def sums(self, back: Ints) -> tuple[Floats, Floats]:
        """Sums of lateness and numbers of records over the newest steps, shape (R, W) each.

        Args:
            back: how many steps each window holds, at most `len(self)`, shape (W,), or per rank (R, W).
        """
        now, then = self._edge(0), (self.pushed - back) % (self.size + 1)
        rows = np.arange(len(self._total))[:, None]
        return self._total[:, [now]] - self._total[rows, then], self._seen[:, [now]] - self._seen[rows, then]

    def lateness(self, row: int) -> Floats:
        """One rank's lateness over the held steps, 0 where not recorded, oldest first, shape (len,)."""
        return np.diff(self._total[row, self._edges()])

    def recorded(self, row: int) -> Bools:
        """Whether a rank has a record of each held step, oldest first, shape (len,)."""
        recorded: Bools = np.diff(self._seen[row, self._edges()]) > 0
        return recorded

    def newest(self, count: int) -> Floats:
        """Lateness in each of the newest steps, 0 where not recorded, shape (R, count)."""
        return np.diff(self._total[:, self._edges()[-count - 1 :]], axis=1)

    def own_us(self) -> Floats:
        """Own time, oldest first, shape (R, len)."""
        return self._own[:, self._places()]

    def transfer_us(self) -> Floats:
        """Transfer, oldest first, shape (len,)."""
        return self._transfer[self._places()]

    def steps(self) -> Ints:
        """Step numbers, oldest first, shape (len,)."""
        return self._steps[self._places()]

    def drop_oldest(self, count: int) -> None:
        """Forget the oldest steps; only before the ring is full."""
        kept = self._places()[count:]
        self._own[:, : len(kept)] = self._own[:, kept]
        self._transfer[: len(kept)] = self._transfer[kept]
        self._steps[: len(kept)] = self._steps[kept]
        edges = self._edges()[count:]
        self._total[:, : len(edges)] = self._total[:, edges]
        self._seen[:, : len(edges)] = self._seen[:, edges]
        self.pushed = len(kept)

    def restate(self, late: Floats) -> None:
        """Replace the lateness of all held steps, oldest first, NaN where not recorded, shape (R, len)."""
        edges = self._edges()
        self._total[:, edges[0]] = 0.0
        self._total[:, edges[1:]] = np.cumsum(np.nan_to_num(late, nan=0.0), axis=1)
        self._seen[:, edges[0]] = 0.0
        self._seen[:, edges[1:]] = np.cumsum(~np.isnan(late), axis=1)

    def _edge(self, back: int) -> int:
        return (self.pushed - back) % (self.size + 1)

    def _edges(self) -> Ints:
        return np.arange(self.pushed - len(self), self.pushed + 1) % (self.size + 1)

    def _places(self) -> Ints:
        return np.arange(self.pushed - len(self), self.pushed) % self.size
