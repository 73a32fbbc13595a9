"""What watches a simulated job from outside: who predicts iteration times, and who changes the mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starprof.simulation.setting import PolicyMaker

KEPT = 64
"""Iterations of each worker that are shown."""


@dataclass(frozen=True)
class Seen:
    """One iteration of a worker, as seen from outside: own time without waiting, in seconds, and samples."""

    own_s: float
    samples: int


@dataclass(frozen=True)
class View:
    """A job as it is now.

    Attributes:
        at_s: simulated time.
        version: updates so far.
        progress: iterations of the training so far.
        members: workers that take part.
        recent: their last iterations, oldest first, 64 at most; a worker may have none yet.
        samples: of each one's next iteration.
        accuracy: at the last evaluation; None: training is not real.
    """

    at_s: float
    version: int
    progress: float
    members: tuple[int, ...]
    recent: Mapping[int, Sequence[Seen]]
    samples: Mapping[int, int]
    accuracy: float | None


class Predictor(Protocol):
    """Says how long workers' next iterations will take."""

    def __call__(self, view: View) -> Mapping[int, float]:
        """Seconds of each; nothing: no prediction yet."""


class Controller(Protocol):
    """Changes the mode of a running job; a fresh one for each simulation where it remembers anything."""

    def __call__(self, view: View) -> PolicyMaker | None:
        """What the job is to go on with; None: as before. Asked once an iteration of the workers."""


def mean_of_last(view: View, window: int = 5) -> dict[int, float]:
    """The default prediction: the mean of the last few times, each sample taking as long as before."""
    predicted = {}
    for worker in view.members:
        last = list(view.recent.get(worker, ()))[-window:]
        if not last:
            return {}
        predicted[worker] = view.samples[worker] * sum(s.own_s / s.samples for s in last) / len(last)
    return predicted


class Watch:
    """The last iterations of each worker."""

    def __init__(self) -> None:
        self.recent: dict[int, deque[Seen]] = {}

    def saw(self, worker: int, own_s: float, samples: int) -> None:
        """Another iteration."""
        self.recent.setdefault(worker, deque(maxlen=KEPT)).append(Seen(own_s, samples))
