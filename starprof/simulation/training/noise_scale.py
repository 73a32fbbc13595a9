"""Training as a formula, for large sweeps: what an update teaches, from the noise of its gradient.

A gradient over B samples has a noise of phi/B times its squared length, phi the gradient noise scale. A step of
length s along it, in units of the step that is best for the batch of all workers (B_N samples), lowers the loss by

    Delta(s) = 2 s - s^2 (1 + phi/B) / (1 + phi/B_N)

in units of what that best step does: our own derivation, with the user's learning rate kept and scaled by the weights,
where `1 + phi/B` alone assumes the best rate for each batch size. A gradient that is R iterations old is worth
1 / (1 + c R) of a fresh one; R counts the progress since its parameters, not the updates, since N updates of weight 1/N
move as far as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.simulation.training.base import Training, TrainingRun
from starprof.sync.policies import Gradient, Update


@dataclass(frozen=True)
class NoiseScale(Training):
    """See the module.

    Attributes:
        phi: gradient noise scale in samples; or pairs of (what has been learned, phi there), between which it is
            interpolated.
        staleness_cost: c, for an iteration of staleness.
        rate: the user's learning rate, in units of the best for one step of all workers; training that goes on for
            long is better off well below 1.
    """

    phi: float | tuple[tuple[float, float], ...] = 0.0
    staleness_cost: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1 or self.staleness_cost < 0:
            raise ValueError(f"the rate {self.rate} must be in (0, 1], the cost {self.staleness_cost} at least 0")

    def start(self, batches: dict[int, int], seed: int) -> TrainingRun:  # noqa: ARG002 - nothing is drawn
        """See `Training`."""
        return _Running(self, sum(batches.values()))


def gain(step: float, batch: float, full_batch: float, phi: float, rate: float = 1.0) -> float:
    """What an update teaches, in units of one of all workers; negative: it does harm.

    Args:
        step: sum of its weights.
        batch: samples that its noise is that of.
        full_batch: samples of all workers together.
        phi: gradient noise scale, in samples.
        rate: see `NoiseScale`.
    """
    noise = (1 + phi / batch) / (1 + phi / full_batch)
    return (2 * step - rate * step**2 * noise) / (2 - rate)


class _Running(TrainingRun):
    def __init__(self, model: NoiseScale, full_batch: int) -> None:
        self.model = model
        self.full_batch = full_batch
        self.learned = 0.0
        self._progress = [0.0]  # at each version
        self._points = None if isinstance(model.phi, (int, float)) else np.array(model.phi, float)

    def _phi(self) -> float:
        if self._points is None:
            return float(self.model.phi)  # type: ignore[arg-type]
        return float(np.interp(self.learned, self._points[:, 0], self._points[:, 1]))

    def _fresh(self, onto: int, version: int) -> float:
        """Worth of a gradient of that version."""
        if version >= onto:
            return 1.0
        last = len(self._progress) - 1
        between = self._progress[min(onto, last)] - self._progress[min(version, last)]
        return 1.0 / (1.0 + self.model.staleness_cost * between)

    def _learn(self, amount: float) -> float:
        before, self.learned = self.learned, max(0.0, self.learned + amount)
        return self.learned - before

    def begin(self, gradient: Gradient) -> None:
        """Nothing is computed."""

    def drop(self, gradient: Gradient) -> None:
        """Nothing is kept."""

    def update(self, update: Update, progress: float) -> float:
        """See `TrainingRun`."""
        weights = update.weights
        scale = sum(weights)
        if scale <= 0:
            return 0.0
        batch = scale**2 / sum(w * w / g.samples for w, g in zip(weights, update.gradients, strict=True))
        amount = gain(scale, batch, self.full_batch, self._phi(), self.model.rate)
        if update.members is None:
            worth = sum(w * self._fresh(update.onto, g.version) for w, g in zip(weights, update.gradients, strict=True))
            amount *= worth / scale
            self._progress.append(progress + scale)
            return self._learn(amount)
        return 0.0  # a group's own steps count when groups are averaged

    def step_locally(self, gradient: Gradient, progress: float) -> None:
        """Counts when states are averaged."""

    def average(self, members: Sequence[int], steps: float) -> float:  # noqa: ARG002
        """As many steps of all workers: each is fresh where it is made. That states drift apart is not counted."""
        self._progress.append(self._progress[-1] + steps)
        return self._learn(steps)

    def score(self, gradient: Gradient) -> float:
        """A gradient is good as long as its step would be."""
        share = gradient.samples / self.full_batch
        return gain(share, gradient.samples, self.full_batch, self._phi(), self.model.rate)
