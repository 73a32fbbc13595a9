"""Modes that take what waits, however old, in simulated rounds: static-x, ring-x, eager.

All candidates of a mode are simulated side by side as rows of one matrix: a round of all of them is a few numpy calls.
The renewal process: each worker computes, waits until a round takes its gradient, and computes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from starprof.analysis.arrays import Bools, Floats, Ints

    Counts = NDArray[np.int32]
    Closing = Callable[[Floats, Floats, np.random.Generator], tuple[Floats, Floats]]
    """Ready times (C, N) and present times (C,) to: when the round closes, (C,), and up to which ready time it takes
    gradients, (C,)."""

TIE = 1e-9
"""Workers that take exactly equally long are told apart by up to this share, so that x of them are x."""
SORTED_UP_TO = 100
"""Rows up to this long are sorted all at once, longer ones partitioned one by one."""
WARM_UP = 0.3
"""Share of the rounds that is not counted: everybody starts together, which wears off."""


@dataclass(frozen=True)
class Rounds:
    """Simulated rounds of C candidates, means over what was counted.

    Attributes:
        period_s: between two updates, shape (C,).
        taken: gradients in an update, shape (C,).
        taken_squared: mean square of that.
        mean_staleness: shape (C,).
        max_staleness: shape (C,).
        share: each worker's share of all contributions, shape (C, N).
        computed_per_s: gradients that workers finished, used or not, shape (C,).
    """

    period_s: Floats
    taken: Floats
    taken_squared: Floats
    mean_staleness: Floats
    max_staleness: Ints
    share: Floats
    computed_per_s: Floats

    @property
    def skew(self) -> Floats:
        """See `Outlook.skew`, shape (C,)."""
        return np.asarray(np.abs(self.share - 1.0 / self.share.shape[1]).sum(axis=1) / 2.0)


class Tally:
    """Counts what simulated rounds do."""

    def __init__(self, shape: tuple[int, int], warm_up: int) -> None:
        """Count from round `warm_up` on."""
        self.warm_up = warm_up
        self.rounds = 0
        self.begin = np.zeros(shape[0])
        self.taken = np.zeros(shape[0])
        self.squared = np.zeros(shape[0])
        self.staleness = np.zeros(shape[0])
        self.oldest = np.zeros(shape[0], np.int64)
        self.by_worker = np.zeros(shape, np.int32)
        self.computed = np.zeros(shape[0])

    def note(
        self, number: int, now: Floats, count: Counts | Bools, age: Counts | None, computed: Ints | None = None
    ) -> None:
        """An update at `now`, shape (C,).

        Args:
            number: of the round.
            now: see above.
            count: contributions of each worker, shape (C, N).
            age: their staleness, shape (C, N); None: all are fresh.
            computed: gradients that were finished since the update before, shape (C,); None: those that contribute.
        """
        if number < self.warm_up:
            self.begin = now.copy()
            return
        total = count.sum(axis=1, dtype=np.int32)
        self.rounds += 1
        self.taken += total
        self.squared += total.astype(float) ** 2
        if age is not None:
            self.staleness += age.sum(axis=1, dtype=np.int32)
            self.oldest = np.maximum(self.oldest, age.max(axis=1))
        self.by_worker += count
        self.computed += total if computed is None else computed

    def rounds_until(self, now: Floats) -> Rounds:
        """All of it; the last update was at `now`."""
        lasted = now - self.begin
        return Rounds(
            lasted / self.rounds,
            self.taken / self.rounds,
            self.squared / self.rounds,
            self.staleness / np.maximum(self.taken, 1),
            self.oldest,
            self.by_worker / np.maximum(self.taken, 1)[:, None],
            self.computed / lasted,
        )


def apart(iteration_s: Floats, rng: np.random.Generator) -> Floats:
    """The same times without ties, shape (W, N)."""
    return iteration_s * (1.0 + TIE * rng.random(iteration_s.shape[1]))


def simulate(iteration_s: Floats, closing: Closing, candidates: int, rounds: int, seed: int = 0) -> Rounds:
    """Simulate rounds that take what waits.

    Args:
        iteration_s: shape (W, N); each iteration takes its worker's time of a row drawn at random.
        closing: the rule.
        candidates: C, rows that the rule decides on.
        rounds: of each.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    times = apart(iteration_s, rng)
    rows = rng.integers(len(times), size=rounds + 1)
    shape = (candidates, times.shape[1])
    ready = np.tile(times[rows[0]], (candidates, 1))
    age = np.zeros(shape, np.int32)
    now = np.zeros(candidates)
    tally = Tally(shape, int(WARM_UP * rounds))
    for number in range(rounds):
        now, latest = closing(ready, now, rng)
        taken = ready <= latest[:, None]
        tally.note(number, now, taken, age * taken)
        ready = np.where(taken, now[:, None] + times[rows[number + 1]], ready)
        age = (age + 1) * ~taken
    return tally.rounds_until(now)


def nth(values: Floats, place: Ints) -> Floats:
    """The value at a place of each sorted row, shape (C,), from (C, N) and places (C,)."""
    if values.shape[1] <= SORTED_UP_TO:
        return np.asarray(np.take_along_axis(np.sort(values, axis=1), place[:, None], axis=1)[:, 0])
    return np.array([np.partition(row, at)[at] for row, at in zip(values, place.tolist(), strict=True)])


def first(x: Ints) -> Closing:
    """static-x: a round takes the x that came first, for each candidate its x, shape (C,)."""

    def closing(ready: Floats, now: Floats, _: np.random.Generator) -> tuple[Floats, Floats]:
        latest = nth(ready, x - 1)
        return np.maximum(now, latest), latest

    return closing


def ring(members: Bools) -> Closing:
    """ring-x: a round closes when all members of the ring are there, shape (C, N), and takes whoever waits."""

    def closing(ready: Floats, now: Floats, _: np.random.Generator) -> tuple[Floats, Floats]:
        closes = np.maximum(now, np.where(members, ready, -np.inf).max(axis=1))
        return closes, closes

    return closing


def initiator(ready: Floats, now: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Eager, majority: a round closes when a worker drawn for it is there, and takes whoever waits."""
    chosen = rng.integers(ready.shape[1], size=len(ready))
    closes = np.maximum(now, ready[np.arange(len(ready)), chosen])
    return closes, closes
