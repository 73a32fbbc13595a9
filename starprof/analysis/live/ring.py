"""The last steps of a running job, in a fixed amount of memory, with window sums at a fixed cost."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints


class Ring:
    """The newest `size` steps of R ranks: own time, and sums of lateness over any window that ends now.

    Sums are differences of running totals, so a window costs the same whatever its width. Totals are kept step by step,
    all ranks side by side, so that a window reads two places in memory however many ranks there are.
    """

    def __init__(self, ranks: int, size: int) -> None:
        self.size = size
        self.pushed = 0
        self._own = np.full((ranks, size), np.nan)
        self._transfer = np.zeros(size)
        self._steps = np.zeros(size, np.int64)
        self._total = np.zeros((size + 1, ranks))
        self._seen = np.zeros((size + 1, ranks))

    def __len__(self) -> int:
        """Steps held."""
        return min(self.pushed, self.size)

    def push(self, steps: Ints, own_us: Floats, transfer_us: Floats, late: Floats) -> None:
        """Add N steps, fewer than `size`; `late` is the lateness that counts, NaN where not recorded, shape (R, N)."""
        places = (self.pushed + np.arange(len(steps))) % self.size
        self._own[:, places] = own_us
        self._transfer[places] = transfer_us
        self._steps[places] = steps
        total, seen = self.totals(0, late)
        edges = (self.pushed + 1 + np.arange(len(steps))) % (self.size + 1)
        self._total[edges], self._seen[edges] = total[1:], seen[1:]
        self.pushed += len(steps)

    def totals(self, back: int, new: Floats) -> tuple[Floats, Floats]:
        """Running totals of lateness and records over some of the newest steps and new ones, not yet added.

        Args:
            back: how many of the newest steps, at most `len(self)`.
            new: lateness in N new steps, NaN where not recorded, shape (R, N).

        Returns:
            Totals before the first of these steps and after each, shape (back + N + 1, R) each.
        """
        edges = np.arange(self.pushed - back, self.pushed + 1) % (self.size + 1)
        unknown = np.isnan(new).T
        more, records = np.where(unknown, 0.0, new.T), np.where(unknown, 0.0, 1.0)
        if len(more) == 1:
            more, records = self._total[edges[-1:]] + more, self._seen[edges[-1:]] + records
        else:
            more = np.cumsum(np.concatenate([self._total[edges[-1:]], more]), axis=0)[1:]
            records = np.cumsum(np.concatenate([self._seen[edges[-1:]], records]), axis=0)[1:]
        return np.concatenate([self._total[edges], more]), np.concatenate([self._seen[edges], records])

    def edge_totals(self, edges: Ints) -> tuple[Floats, Floats]:
        """Running totals of each rank after its own number of steps since the first, `edges` and results (N, R)."""
        places, rows = edges % (self.size + 1), np.arange(edges.shape[1])
        return self._total[places, rows], self._seen[places, rows]

    def sums(self, back: Ints, rows: Ints | None = None) -> tuple[Floats, Floats]:
        """Sums of lateness and numbers of records over the newest steps, shape (W, R) each.

        Args:
            back: how many steps each window holds, at most `len(self)`, shape (W,).
            rows: of these ranks only.
        """
        now, then = self._edge(0), (self.pushed - back) % (self.size + 1)
        if rows is None:
            return self._total[now] - self._total[then], self._seen[now] - self._seen[then]
        each = then[:, None]
        return self._total[now, rows] - self._total[each, rows], self._seen[now, rows] - self._seen[each, rows]

    def sums_each(self, back: Ints, rows: Ints) -> tuple[Floats, Floats]:
        """The same with one window for each of these ranks, `back`, `rows` and results of shape (R,)."""
        now, then = self._edge(0), (self.pushed - back) % (self.size + 1)
        return self._total[now, rows] - self._total[then, rows], self._seen[now, rows] - self._seen[then, rows]

    def lateness(self, row: int) -> Floats:
        """One rank's lateness over the held steps, 0 where not recorded, oldest first, shape (len,)."""
        return np.diff(self._total[self._edges(), row])

    def recorded(self, row: int) -> Bools:
        """Whether a rank has a record of each held step, oldest first, shape (len,)."""
        recorded: Bools = np.diff(self._seen[self._edges(), row]) > 0
        return recorded

    def newest(self, count: int) -> Floats:
        """Lateness in each of the newest steps, 0 where not recorded, shape (count, R)."""
        return np.diff(self._total[(self.pushed - np.arange(count, -1, -1)) % (self.size + 1)], axis=0)

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
        self._total[: len(edges)] = self._total[edges]
        self._seen[: len(edges)] = self._seen[edges]
        self.pushed = len(kept)

    def restate(self, late: Floats) -> None:
        """Replace the lateness of all held steps, oldest first, NaN where not recorded, shape (R, len)."""
        edges = self._edges()
        self._total[edges[0]] = 0.0
        self._total[edges[1:]] = np.cumsum(np.nan_to_num(late, nan=0.0), axis=1).T
        self._seen[edges[0]] = 0.0
        self._seen[edges[1:]] = np.cumsum(~np.isnan(late), axis=1).T

    def _edge(self, back: int) -> int:
        return (self.pushed - back) % (self.size + 1)

    def _edges(self) -> Ints:
        return np.arange(self.pushed - len(self), self.pushed + 1) % (self.size + 1)

    def _places(self) -> Ints:
        return np.arange(self.pushed - len(self), self.pushed) % self.size
