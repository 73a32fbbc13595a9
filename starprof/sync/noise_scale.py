"""Gradient noise scale: how many batches an update must average before more of them stop helping.

An update is the weighted mean of n gradients, each of one batch. With g the gradient of the whole loss, S the trace of
the covariance of one batch's gradient, and weights w that sum to 1,

    E [sum w_i |g_i|^2] = |g|^2 + S              the local mean square
    E [|sum w_i g_i|^2] = |g|^2 + S sum w_i^2    the square of the update

and both are solved for |g|^2 and S; with equal weights that is (n G - L)/(n - 1) and (L - G) n/(n - 1), as of
arXiv 1812.06162. Their ratio S/|g|^2 is the noise scale in batches; times the batch size it is in samples. One update
tells little, and a ratio of few updates is far off: numerator and denominator are averaged apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NEWEST = 0.02
"""Weight of the newest update, once there are as many as that: a training changes slowly."""

Z = 1.959964
"""Of 95 % of a normal distribution."""

LEAST = 8
"""Updates before there is an interval."""


@dataclass(frozen=True, slots=True)
class Squares:
    """What one update tells.

    Attributes:
        local: mean of the squared norms of the gradients, by their weights.
        update: squared norm of their weighted mean.
        share: sum of the squared weights; 1/n for equal ones, and less than 1.
    """

    local: float
    update: float
    share: float

    @property
    def signal(self) -> float:
        """Estimate of |g|^2; of a single update it may be negative."""
        return (self.update - self.share * self.local) / (1.0 - self.share)

    @property
    def noise(self) -> float:
        """Estimate of the trace of one batch's covariance."""
        return (self.local - self.update) / (1.0 - self.share)


def squares_of(own: Sequence[float], weights: Sequence[float], update: float) -> Squares | None:
    """Of the gradients that made up an update.

    Args:
        own: squared norm of each.
        weights: factor of each, of any sum.
        update: squared norm of their weighted sum.

    Returns:
        None where that tells nothing: fewer than two gradients, or a number that is not finite.
    """
    total = math.fsum(weights)
    if len(own) < 2 or not total > 0 or not all(map(math.isfinite, (*own, update))):
        return None
    parts = [weight / total for weight in weights]
    local = math.fsum(part * square for part, square in zip(parts, own, strict=True))
    return Squares(local, update / total**2, math.fsum(part**2 for part in parts))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A noise scale in batches of one gradient.

    Attributes:
        scale: noise over signal; infinite while no signal is seen.
        low: lower end of its interval of about 95 %.
        high: upper end; infinite where the signal may be nothing.
        noise: trace of the covariance of one batch's gradient.
        signal: squared norm of the whole gradient.
        updates: that were looked at.
    """

    scale: float
    low: float
    high: float
    noise: float
    signal: float
    updates: int


class NoiseScale:
    """Running means of noise and signal, and of how they scatter: the newest updates count most."""

    def __init__(self, newest: float = NEWEST) -> None:
        """Begin with nothing.

        Args:
            newest: weight of the newest update; the first ones count alike, until there are 1/newest.
        """
        self._newest = newest
        self._updates = 0
        self._noise = self._signal = 0.0
        self._noise2 = self._signal2 = self._both = 0.0
        self._squared_weights = 1.0

    def add(self, seen: Squares) -> None:
        """One more update."""
        self._updates += 1
        part = max(self._newest, 1.0 / self._updates)
        noise, signal = seen.noise - self._noise, seen.signal - self._signal
        # Weighted means and central moments, in one pass (West 1979).
        self._noise += part * noise
        self._signal += part * signal
        self._noise2 = (1.0 - part) * (self._noise2 + part * noise * noise)
        self._signal2 = (1.0 - part) * (self._signal2 + part * signal * signal)
        self._both = (1.0 - part) * (self._both + part * noise * signal)
        self._squared_weights = (1.0 - part) ** 2 * self._squared_weights + part**2

    def estimate(self) -> Estimate | None:
        """As of now; None before the first update."""
        if not self._updates:
            return None
        noise, signal = max(self._noise, 0.0), self._signal
        scale = noise / signal if signal > 0 else math.inf
        low, high = self._interval() if self._updates >= LEAST else (0.0, math.inf)
        return Estimate(scale, low, high, noise, signal, self._updates)

    def _interval(self) -> tuple[float, float]:
        """All ratios that the two means don't contradict (Fieller 1954): right also where the signal may be nothing."""
        count = 1.0 / self._squared_weights  # of equal updates that would tell as much
        t = _t(count - 1.0)
        scatter = t * t / (count - 1.0)
        a = self._signal**2 - scatter * self._signal2
        b = self._noise * self._signal - scatter * self._both
        c = self._noise**2 - scatter * self._noise2
        root = math.sqrt(max(b * b - a * c, 0.0))
        if a > 0 and self._signal > 0:
            return max((b - root) / a, 0.0), max((b + root) / a, 0.0)
        # The signal may be nothing: there is no upper end.
        return ((b - root) / a if a < 0 < c else 0.0), math.inf


def _t(freedom: float) -> float:
    """Of 95 % of Student's distribution, by its expansion in 1/freedom."""
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
