"""How far a rank's loop has come, and the training: iterations that the others have made without it are passed over."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starprof.control.engine.roles import Data

ROUNDING = 1e-6
"""Progress is a sum of weights: a whole iteration may be a little less than 1."""


@dataclass(slots=True)
class Counts:
    """What this rank has done.

    Attributes:
        iterations: of the loop, skipped ones included.
        progress: of the training, in steps of all ranks.
        skipped: iterations that were skipped.
        handed_in: gradients.
        steps: iterations that were not skipped.
        updates: of the parameters.
        replayed: updates that were made between two of the loop's own.
        without_update: iterations of which nothing came.
        waited_s: time spent waiting for others.
    """

    iterations: int = 0
    steps: int = 0
    updates: int = 0
    progress: float = 0.0
    skipped: int = 0
    handed_in: int = 0
    replayed: int = 0
    without_update: int = 0
    waited_s: float = 0.0


class Pace:
    """One rank's; used by the training thread.

    Attributes:
        counts: what the rank has done.
    """

    def __init__(self, data: Data, done: int) -> None:
        """Begin where loop and training are even.

        Args:
            data: batches of the loop.
            done: iterations that are made.
        """
        self.counts = Counts(iterations=done, steps=done, updates=done, progress=float(done))
        self._data = data

    def step(self) -> None:
        """An iteration of the loop was computed."""
        self.counts.iterations += 1
        self.counts.steps += 1

    def advance(self, by: float) -> bool:
        """The training has gone on by so many iterations; whether it has completed one."""
        before, self.counts.progress = self.counts.progress, self.counts.progress + by
        return math.floor(self.counts.progress + ROUNDING) > math.floor(before + ROUNDING)

    def catch_up(self, limit: int | None, *, keeps_last: bool) -> None:
        """Skip the iterations that the training has gone on without this rank.

        Args:
            limit: the others have paused there, so up to it in any case; None: they have not.
            keeps_last: but the newest one, which others may still call collectives in.
        """
        newest = math.floor(self.counts.progress + ROUNDING) - keeps_last
        self.pass_over((newest if limit is None else max(newest, limit)) - self.counts.iterations)

    def pass_over(self, iterations: int) -> None:
        """Skip so many, if any."""
        if iterations > 0:
            self._data.skip(iterations)
            self.counts.iterations += iterations
            self.counts.skipped += iterations

    def even(self) -> None:
        """All ranks stand together: whoever ran ahead or fell behind in the count of iterations is even with them."""
        self.counts.progress = float(self.counts.iterations)
