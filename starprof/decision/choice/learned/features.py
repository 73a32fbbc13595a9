"""What the learned chooser sees of a job, and of a mode in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.decision.choice.choice import Score

if TYPE_CHECKING:
    from starprof.analysis.arrays import Floats
    from starprof.decision.choice.situation import Situation
    from starprof.decision.choice.stragglers import Stragglers

QUANTILES = 8
OF_JOB = (
    "straggling_ratio",
    *(f"time_quantile_{number}" for number in range(QUANTILES)),
    "noise_of_one",
    "noise_of_all",
    "workers",
    "scatter",
    "moving_share",
    "churn",
    "late_together",
    "rate",
    "headroom",
    "all_reduce",
)
OF_MODE = ("heuristic_gain", "delay", "skew", "updates")
NAMES = (*OF_JOB, *OF_MODE)
UNKNOWN_RATE, UNKNOWN_HEADROOM = 0.6, 0.8


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's times don't tell.

    Attributes:
        all_reduce: gradients are reduced in a ring; else they go to servers.
        rate: learning rate over the best one for a step of all workers; None: not known.
        headroom: free share of what is scarcest where gradients are gathered; None: not known.
    """

    all_reduce: bool = False
    rate: float | None = None
    headroom: float | None = None


def of_job(situation: Situation, late: Stragglers, around: Surroundings, phi: float) -> Floats:
    """Features of the job, shape (len(OF_JOB),), for a gradient noise scale."""
    times = situation.iteration_s
    usual, workers = times.mean(axis=0), len(situation.workers)
    ordered = np.quantile(usual, np.linspace(0, 1, QUANTILES))
    return np.array(
        [
            (usual.max() - usual.mean()) / usual.mean(),
            *np.log(ordered / np.median(usual)),
            math.log1p(phi / situation.batch),
            math.log1p(phi / (situation.batch * workers)),
            math.log2(workers),
            float(np.median(times.std(axis=0) / usual)),
            late.moving_share,
            late.churn,
            math.log(float(times.max(axis=1).mean()) / float(usual.max())),
            UNKNOWN_RATE if around.rate is None else around.rate,
            UNKNOWN_HEADROOM if around.headroom is None else around.headroom,
            float(around.all_reduce),
        ]
    )


def of_mode(job: Floats, score: Score, plain: Score, gain: float) -> Floats:
    """All features of a mode in that job, shape (len(NAMES),); `gain` is the heuristic's at the same noise scale."""
    assert score.outlook is not None
    assert plain.outlook is not None
    outlook = score.outlook
    return np.concatenate(
        [
            job,
            [
                math.log(max(gain, 1e-3)),
                min(outlook.delay_steps, 10.0),
                outlook.skew,
                math.log(outlook.updates_per_s / plain.outlook.updates_per_s),
            ],
        ]
    )
