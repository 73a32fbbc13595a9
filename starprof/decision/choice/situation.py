"""What a choice of a mode is made from: times to expect, the noise of the gradients, limits, and free resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice.progress import UNKNOWN_MOMENTUM

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

UNKNOWN_NOISE_BATCHES = 10.0
"""Gradient noise scales up to this many total batches are thought possible where none was measured."""


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """Gradient noise scale, tr(cov)/|grad|^2, in samples, as an interval.

    A mode must pay at both ends of it: a measurement that may be wrong must not carry a choice.

    Attributes:
        low: smallest value that the measurement allows.
        high: largest.
        measured: whether it was measured at all.
    """

    low: float
    high: float
    measured: bool = True

    @property
    def middle(self) -> float:
        """Geometric middle; the arithmetic one where the interval begins at 0."""
        return float(np.sqrt(self.low * self.high)) if self.low > 0 else (self.low + self.high) / 2.0

    @classmethod
    def unknown(cls, total_batch: float) -> NoiseScale:
        """Anything from no noise to noise that dwarfs the total batch."""
        return cls(0.0, UNKNOWN_NOISE_BATCHES * total_batch, measured=False)


@dataclass(frozen=True, slots=True)
class Resources:
    """What is free where gradients are gathered, and what one gradient costs there; measured, per model.

    Attributes:
        free_cores: that nobody uses.
        free_bytes_per_s: of the network interface.
        core_s_per_gradient: CPU time to receive and apply one gradient and to send parameters.
        bytes_per_gradient: through that interface, both ways together.
    """

    free_cores: float
    free_bytes_per_s: float
    core_s_per_gradient: float
    bytes_per_gradient: float

    def refusal(self, more_per_s: float) -> str:
        """Why so many more gradients per second don't fit; "" when they do."""
        cores, rate = more_per_s * self.core_s_per_gradient, more_per_s * self.bytes_per_gradient
        if cores > self.free_cores:
            return f"it needs {cores:.2g} more cores where gradients are gathered, {self.free_cores:.2g} are free"
        if rate > self.free_bytes_per_s:
            return f"it needs {rate / 1e6:.3g} MB/s more there, {self.free_bytes_per_s / 1e6:.3g} MB/s are free"
        return ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a mode may do at most.

    Attributes:
        accuracy_risk: see `progress.accuracy_risk`; 0: only fresh gradients, 0.5: with shuffled data a mean delay of
            1 - momentum full steps, which without momentum allows asgd.
        staleness: of any gradient, in updates; None: no limit.
        shuffled: data are dealt out anew in each epoch, so that dropping one worker's gradients biases nothing.
        momentum: of the user's optimizer; of Adam and its like the first beta.
        worst_gain: over ssgd, at the worst noise and learning rate that are possible; below 1 a loss that is put up
            with where much is likely to be gained, above 1 what must be gained whatever is the case. With noise that
            was not measured nothing may be lost.
    """

    accuracy_risk: float = 0.5
    staleness: int | None = None
    shuffled: bool = True
    momentum: float = UNKNOWN_MOMENTUM
    worst_gain: float = 0.95

    def __post_init__(self) -> None:
        """Reject what is no momentum."""
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is from 0 to below 1, not {self.momentum}")


@dataclass(frozen=True)
class Situation:
    """Inputs of one choice.

    Attributes:
        workers: their ranks, in order.
        iteration_s: expected times of each worker's own work, shape (W, N): W equally likely iterations, one row each.
            One row: times without any scatter.
        batch: samples of one worker's gradient.
        noise: gradient noise scale; None: not measured.
        limits: of risk and staleness.
        resources: None: not measured, which bars nothing.
        barred: modes that can't be had here, with the reason.
        node_groups: workers by node, for the hierarchical mode.
        micro_batches: into which a gradient is divided.
    """

    workers: tuple[int, ...]
    iteration_s: Floats
    batch: float
    noise: NoiseScale | None = None
    limits: Limits = field(default_factory=Limits)
    resources: Resources | None = None
    barred: Mapping[str, str] = field(default_factory=dict)
    node_groups: Sequence[Sequence[int]] = ()
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Reject what no choice can be made from."""
        if self.iteration_s.ndim != 2 or self.iteration_s.shape[1] != len(self.workers) or not self.iteration_s.size:
            raise ValueError(f"times of {len(self.workers)} workers need shape (W, N), not {self.iteration_s.shape}")
        if not (np.isfinite(self.iteration_s).all() and (self.iteration_s > 0).all()):
            raise ValueError("iteration times must be positive numbers")
        if not self.batch > 0:
            raise ValueError(f"a gradient needs samples, not {self.batch}")

    @property
    def least_worst_gain(self) -> float:
        """See `Limits.worst_gain`."""
        wanted = self.limits.worst_gain
        return wanted if self.noise_or_unknown.measured else max(1.0, wanted)

    @property
    def noise_or_unknown(self) -> NoiseScale:
        """The measured noise, or all that it could be."""
        return self.noise or NoiseScale.unknown(self.batch * len(self.workers))


def expected_times(prediction_s: Floats, history_s: Floats) -> Floats:
    """Predicted times with the scatter that each worker showed, shape (W, N).

    Args:
        prediction_s: of each worker, shape (N,).
        history_s: its last iterations, oldest first, shape (W, N); NaN: no record.
    """
    with np.errstate(invalid="ignore"):
        usual = np.nanmean(np.where(history_s > 0, history_s, np.nan), axis=0)
        ratio = history_s / usual
    return prediction_s * np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
