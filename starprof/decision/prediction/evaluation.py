"""How good predictions are: the error of times, and the straggler tag of 20 % at several horizons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice.stragglers import TAG, straggles
from starprof.decision.prediction.baselines import BASELINES, Predictor

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.decision.prediction.history import Series

HORIZONS = (1, 10, 30)
TAGS = tuple(round(0.04 + 0.02 * step, 2) for step in range(14))
"""Thresholds on predicted times that are tried: predictions are smoother than what they predict, and who goes beyond
20 % in truth need not do so in a mean."""
EVERY = 7
"""Windows of held-out runs begin this many iterations apart."""
DRAWS = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Quality:
    """A predictor at one horizon, over all workers of all windows.

    Attributes:
        horizon: iterations ahead.
        error: mean absolute error of the time, as a share of the true one.
        accuracy: share of right tags.
        precision: share of the tagged that straggle; 1 where nobody is tagged.
        recall: share of the stragglers that are tagged; 1 where there are none.
        f1: harmonic mean of both.
    """

    horizon: int
    error: float
    accuracy: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Counted:
    """Right and wrong tags of one run at one horizon, and its errors."""

    hits: int
    false: int
    missed: int
    rest: int
    error_sum: float
    count: int


def counted(predicted: Floats, after: Floats, horizon: int, tag: float) -> Counted:
    """Predictions of one run against what came, both of shape (K, N, ROLLOUT)."""
    told, true = predicted[..., horizon - 1], after[..., horizon - 1]
    whole = np.isfinite(true).all(axis=-1)
    told, true = told[whole], true[whole]
    if not true.size:
        return Counted(0, 0, 0, 0, 0.0, 0)
    tagged, late = straggles(told, tag), straggles(true)
    return Counted(
        int((tagged & late).sum()),
        int((tagged & ~late).sum()),
        int((~tagged & late).sum()),
        int((~tagged & ~late).sum()),
        float((np.abs(told - true) / true).sum()),
        int(true.size),
    )


def quality(horizon: int, parts: Sequence[Counted]) -> Quality:
    """All runs together."""
    hits, false, missed = (sum(getattr(part, name) for part in parts) for name in ("hits", "false", "missed"))
    count = max(1, sum(part.count for part in parts))
    precision = hits / (hits + false) if hits + false else 1.0
    recall = hits / (hits + missed) if hits + missed else 1.0
    f1 = 2 * hits / (2 * hits + false + missed) if hits + false + missed else 1.0
    right = hits + sum(part.rest for part in parts)
    return Quality(horizon, sum(p.error_sum for p in parts) / count, right / count, precision, recall, f1)


@dataclass(frozen=True)
class Contest:
    """Predictors on held-out runs, and who is used.

    Attributes:
        qualities: by predictor, one each horizon.
        used: predictor by horizon.
        margins: by horizon, 95 % interval of the network's F1 less the best baseline's, over runs drawn anew; empty
            without a network.
    """

    qualities: dict[str, tuple[Quality, ...]]
    used: dict[int, str]
    margins: dict[int, tuple[float, float]]


def fitted_tags(runs: Sequence[Series], predictor: Predictor) -> dict[int, float]:
    """Threshold on predicted times that tags best, by F1, at each horizon; from runs that are not held out."""
    parts = [(predictor.predict(past), after) for past, after in (run.windows(EVERY) for run in runs)]

    def f1(horizon: int, tag: float) -> float:
        return quality(horizon, [counted(told, after, horizon, tag) for told, after in parts]).f1

    return {horizon: max(TAGS, key=lambda tag: (f1(horizon, tag), -abs(tag - TAG))) for horizon in HORIZONS}


def contest(held_out: Sequence[Series], tags: Mapping[str, Mapping[int, float]], network: Predictor | None) -> Contest:
    """Compare on runs that nothing was trained on; the network is used only where it wins beyond chance.

    Args:
        held_out: those runs.
        tags: threshold by predictor and horizon.
        network: None: only the baselines.
    """
    rivals = (*BASELINES, *((network,) if network is not None else ()))
    parts: dict[str, dict[int, list[Counted]]] = {rival.name: {h: [] for h in HORIZONS} for rival in rivals}
    for series in held_out:
        past, after = series.windows(EVERY)
        for rival in rivals:
            predicted = rival.predict(past)
            for horizon in HORIZONS:
                parts[rival.name][horizon].append(counted(predicted, after, horizon, tags[rival.name][horizon]))
    qualities = {name: tuple(quality(h, of[h]) for h in HORIZONS) for name, of in parts.items()}
    used, margins = {}, {}
    for place, horizon in enumerate(HORIZONS):
        best = max((one.name for one in BASELINES), key=lambda name: qualities[name][place].f1)
        used[horizon] = best
        if network is not None:
            margins[horizon] = _margin(parts[network.name][horizon], parts[best][horizon], horizon)
            if margins[horizon][0] > 0:
                used[horizon] = network.name
    return Contest(qualities, used, margins)


def _margin(network: Sequence[Counted], rival: Sequence[Counted], horizon: int) -> tuple[float, float]:
    """Interval of the difference in F1, runs drawn with replacement, the same ones for both."""
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(DRAWS):
        drawn = rng.integers(len(network), size=len(network))
        ours = quality(horizon, [network[at] for at in drawn])
        differences.append(ours.f1 - quality(horizon, [rival[at] for at in drawn]).f1)
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
