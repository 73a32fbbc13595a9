"""A mode, tried on what was recorded: its own policy is driven by the times that the ranks really had."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.decision.choice.progress import RATE
from starprof.sync.policies import create
from starprof.sync.policies.base import Arrived, Decision, Event, Gradient, Policy, Woken

MOST_EVENTS = 20_000


@dataclass(frozen=True, slots=True)
class DryRun:
    """What came out.

    Attributes:
        gain: time of native steps for the same progress over the mode's.
        updates: that the mode made.
        max_staleness: of a gradient that went in, in updates.
    """

    gain: float
    updates: int
    max_staleness: int


def dry_run(
    mode: str,
    options: Mapping[str, object],
    times_s: Floats,
    workers: Sequence[int],
    noise_batches: float,
    momentum: float,
) -> DryRun:
    """Play a mode over recorded times.

    Args:
        mode: its name.
        options: of it.
        times_s: own time of each worker plus the reduction, native steps or the like, shape (W, N).
        workers: of the columns.
        noise_batches: gradient noise scale, in batches of one worker.
        momentum: of the optimizer.
    """
    played = _Played(create(mode, workers, dict(options)), times_s, workers)
    played.noise, played.momentum = noise_batches, momentum
    played.run(float(times_s.max(axis=1).sum()))
    native = float(times_s.max(axis=1).mean())
    gain = native * played.progress / played.now_s if played.now_s > 0 else 0.0
    return DryRun(gain, played.updates, played.staleness)


class _Played:
    def __init__(self, policy: Policy, times_s: Floats, workers: Sequence[int]) -> None:
        self._policy = policy
        self._times = times_s
        self._place = {worker: at for at, worker in enumerate(workers)}
        self._numbers = dict.fromkeys(workers, 0)
        self._heap: list[tuple[float, int, Gradient]] = []
        self.noise = self.momentum = 0.0
        self._wake_s: float | None = None
        self.now_s = self.progress = 0.0
        self.updates = self.staleness = 0
        for worker in workers:
            self._start(worker)

    def run(self, length_s: float) -> None:
        for _ in range(MOST_EVENTS):
            woken = self._wake_s is not None and (not self._heap or self._wake_s < self._heap[0][0])
            at_s = self._wake_s if woken else self._heap[0][0] if self._heap else None
            if at_s is None or at_s > length_s:
                return
            self.now_s = max(self.now_s, at_s)
            if woken:
                event: Event = Woken(self.now_s)
            else:
                event = Arrived(heapq.heappop(self._heap)[2], self.now_s)
            self._take(self._policy.decide(event))

    def _start(self, worker: int) -> None:
        number = self._numbers[worker]
        self._numbers[worker] = number + 1
        took = float(self._times[number % len(self._times), self._place[worker]])
        gradient = Gradient(worker, number, self._policy.version)
        heapq.heappush(self._heap, (self.now_s + took, worker, gradient))

    def _take(self, decision: Decision) -> None:
        self._wake_s = decision.wake_at_s
        for update in decision.updates:
            self.updates += 1
            self.staleness = max(self.staleness, *update.staleness, 0)
            self.progress += self._worth(np.array(update.weights), np.array(update.staleness))
        for worker in decision.release:
            self._start(worker)

    def _worth(self, weights: Floats, staleness: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
        """In native steps: docs/decisions.md, "What an update is worth"; stale gradients by their mean delay."""
        step, noisy = float(weights.sum()), 1.0 + self.noise / len(self._place)
        delta = step - RATE * (step**2 + self.noise * float((weights**2).sum())) / (2.0 * noisy)
        delay = step * float(staleness.mean() if len(staleness) else 0.0)
        stale = RATE / (2.0 - RATE) * delay / (math.sqrt(1.0 - self.momentum) * noisy)
        return delta / (1.0 - RATE / 2.0) / (1.0 + stale)
