"""How a gauge goes to another value and back: at once, or slowly as heat does; steadily, or flickering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import lfilter

if TYPE_CHECKING:
    from starprof.analysis.arrays import Bools, Floats

POINTS = 2_000
"""Points of the grid on which a lagging gauge is computed."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """What a gauge shows while something is on.

    Attributes:
        value: where it goes.
        lag_s: time constant of an exponential approach, seconds; 0 = at once.
        share: random share of the samples that show it, as bits flicker.
        deviation: standard deviation of its noise, in its own unit.
    """

    value: float
    lag_s: float = 0.0
    share: float = 1.0
    deviation: float = 0.0


def response(times_ns: Floats, edges_ns: Floats, active: Bools, lag_s: float) -> Floats:
    """How far something has come, 0..1, at some moments: a first-order response to being on in some steps."""
    step = np.clip(np.searchsorted(edges_ns, times_ns, side="right") - 1, 0, len(active) - 1)
    if lag_s <= 0.0:
        return active[step].astype(np.float64)
    grid = np.linspace(edges_ns[0], edges_ns[-1], POINTS)
    on = active[np.clip(np.searchsorted(edges_ns, grid, side="right") - 1, 0, len(active) - 1)].astype(np.float64)
    keep = float(np.exp(-(grid[1] - grid[0]) / 1e9 / lag_s))
    level = lfilter([1.0 - keep], [1.0, -keep], on, zi=[keep * on[0]])[0]
    return np.asarray(np.interp(times_ns, grid, level))


def blended(usual: Floats, level: Floats, gauge: Gauge, rng: np.random.Generator) -> Floats:
    """The gauge on its way from the usual value to the other one, with noise; shape of `usual`."""
    shown = gauge.value + gauge.deviation * rng.standard_normal(len(usual))
    mixed = usual + level * (shown - usual)
    return np.asarray(np.where(rng.random(len(usual)) < gauge.share, mixed, usual))
