"""What a mode would do: how often it makes updates, of how many gradients, and how stale they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stream:
    """Updates of one kind that come again and again.

    Attributes:
        period_s: mean time between two of them.
        step: mean sum of their weights; 1 is a full step of the optimizer.
        step_squared: mean square of that sum.
        weights_squared: mean of the sum of squared weights; its inverse is the number of gradients behind a mean.
    """

    period_s: float
    step: float
    step_squared: float
    weights_squared: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """A mode with its options, and what to expect of it.

    Attributes:
        mode: its name.
        options: with which it would be started.
        streams: updates that it makes, of all kinds side by side.
        gradients_per_s: that arrive, used or not.
        max_staleness: of a gradient, in updates.
        mean_staleness: likewise.
        drift_steps: how far workers that step on their own are from common parameters, in full steps.
        skew: share of the contributions that would have to change hands for all workers to count the same.
        drops: whether gradients are thrown away.
    """

    mode: str
    options: Mapping[str, object]
    streams: tuple[Stream, ...]
    gradients_per_s: float
    max_staleness: int = 0
    mean_staleness: float = 0.0
    drift_steps: float = 0.0
    skew: float = 0.0
    drops: bool = False

    @property
    def updates_per_s(self) -> float:
        """Of all kinds."""
        return sum(1.0 / stream.period_s for stream in self.streams)

    @property
    def delay_steps(self) -> float:
        """Mean staleness in full steps: updates that came between, each by its share of a full step.

        The mean and not the maximum, as rates with learning rates that suit the delay have it (arXiv 2206.07638);
        with real gradients too it tells what modes gain better than the maximum or the root of both
        (`benchmarks/score_check.py`).
        """
        step = sum(s.step / s.period_s for s in self.streams) / self.updates_per_s
        return self.mean_staleness * step + self.drift_steps


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A mode that no outlook can be given for, and why."""

    mode: str
    reason: str
    options: Mapping[str, object] = field(default_factory=dict)
