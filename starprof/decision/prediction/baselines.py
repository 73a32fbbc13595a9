"""Predictions that anything better must beat: last value, moving average, first-order autoregression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from starprof.decision.prediction.history import ROLLOUT, TIME, filled

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats

EWMA_SHARE = 0.3
LARGEST_CORRELATION = 0.98


class Predictor(Protocol):
    """Something that predicts times."""

    @property
    def name(self) -> str:
        """As in the model file."""
        ...

    def predict(self, past: Floats) -> Floats:
        """Times of the next iterations in seconds, shape (..., ROLLOUT), from histories of shape (..., W, 4)."""
        ...


def _rolled(value: Floats) -> Floats:
    return np.repeat(value[..., None], ROLLOUT, axis=-1)


class LastValue:
    """The next iterations take as long as the last."""

    name = "last value"

    def predict(self, past: Floats) -> Floats:
        """See `Predictor`."""
        return _rolled(filled(past)[..., -1, TIME])


class Ewma:
    """The next iterations take the exponential moving average."""

    name = "ewma"

    def __init__(self, share: float = EWMA_SHARE) -> None:
        """Give the newest iteration this share of the average."""
        self.share = share

    def predict(self, past: Floats) -> Floats:
        """See `Predictor`."""
        times = filled(past)[..., TIME]
        weights = (1.0 - self.share) ** np.arange(times.shape[-1])[::-1]
        return _rolled(times @ (weights / weights.sum()))


class Ar1:
    """What deviates from the window's mean dies out as it did within the window, worker by worker."""

    name = "ar1"

    def predict(self, past: Floats) -> Floats:
        """See `Predictor`."""
        times = filled(past)[..., TIME]
        mean = times.mean(axis=-1, keepdims=True)
        away = times - mean
        power = (away**2).sum(axis=-1)
        together = (away[..., 1:] * away[..., :-1]).sum(axis=-1)
        correlation = np.clip(np.divide(together, power, out=np.zeros_like(power), where=power > 0), 0.0, None)
        correlation = np.minimum(correlation, LARGEST_CORRELATION)
        ahead = correlation[..., None] ** np.arange(1, ROLLOUT + 1)
        return np.asarray(mean + ahead * away[..., -1:])


BASELINES: tuple[Predictor, ...] = (LastValue(), Ewma(), Ar1())
