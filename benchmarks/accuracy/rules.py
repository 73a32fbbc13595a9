"""Simple rules that other tools use, from their description: what a verdict has to be better than.

longest step       the rank with the longest mean step is slow (dashboards)
score below 0.75   median of all ranks' medians over a rank's own median compute time is below 0.75
arrives last       the rank that arrives last most often is slow
longest collective the rank whose collectives last longest on average is slow
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from starprof.model.rundata import RunData

Rule = Callable[[NDArray[np.float64], NDArray[np.float64]], list[int]]
SCORE_THRESHOLD = 0.75


def _longest_step(own: NDArray[np.float64], blocked: NDArray[np.float64]) -> list[int]:
    return [int(np.argmax(np.nanmean(own + blocked, axis=1)))]


def _score(own: NDArray[np.float64], blocked: NDArray[np.float64]) -> list[int]:  # noqa: ARG001 - one signature
    medians = np.nanmedian(own, axis=1)
    return [int(row) for row in np.flatnonzero(np.median(medians) / medians < SCORE_THRESHOLD)]


def _arrives_last(own: NDArray[np.float64], blocked: NDArray[np.float64]) -> list[int]:  # noqa: ARG001 - one signature
    last = np.argmax(np.nan_to_num(own, nan=-1.0), axis=0)
    return [int(np.bincount(last, minlength=len(own)).argmax())]


def _longest_collective(own: NDArray[np.float64], blocked: NDArray[np.float64]) -> list[int]:  # noqa: ARG001
    return [int(np.argmax(np.nanmean(blocked, axis=1)))]


RULES: Mapping[str, Rule] = {
    "longest step": _longest_step,
    "score below 0.75": _score,
    "arrives last": _arrives_last,
    "longest collective": _longest_collective,
}


def named_by(rule: Rule, run: RunData) -> frozenset[int] | None:
    """Ranks that a rule names; None where the run has no step records of several ranks to apply it to."""
    duration = run.steps.columns.get("dur_us")
    if duration is None or duration.shape[0] < 2 or not np.isfinite(duration).any(axis=1).all():
        return None
    blocked = np.nan_to_num(run.steps.columns.get("blocked_us", np.zeros_like(duration)))
    return frozenset(run.ranks[row].rank for row in rule(duration - blocked, blocked))
