"""How near the longest wait in a collective came to the limit at which the watchdog ends the job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.causes.base import ms, rank_names
from starprof.analysis.own_time import OwnTime
from starprof.model.rundata import TIMEOUT_S, RunData

NEAR = 0.8


@dataclass(frozen=True)
class NearLimit:
    """A wait that would soon have ended the job.

    Attributes:
        column: column of the step in the own times; None when it is no kept step.
        words: what was waited for how long, and what that means.
    """

    column: int | None
    words: str


def near_limit(run: RunData, own: OwnTime) -> NearLimit | None:
    """The longest wait, when it used up most of the limit; None when it did not, or no limit is known."""
    blocked = run.steps.columns.get("blocked_us")
    limits = [_limit_s(info.detail.get(TIMEOUT_S)) for info in run.ranks]
    known = [limit for limit in limits if limit > 0]
    if blocked is None or not known or not np.isfinite(blocked).any():
        return None
    limit_s = min(known)
    row, column = np.unravel_index(int(np.nanargmax(blocked)), blocked.shape)
    longest_s = float(blocked[row, column]) / 1e6
    used = longest_s / limit_s
    if used < NEAR:
        return None
    step = int(run.steps.steps[column])
    waited = f"{rank_names((run.ranks[int(row)].rank,)).capitalize()} waited {ms(longest_s * 1e6)} in step {step}"
    kept = np.flatnonzero(own.columns == column)
    return NearLimit(
        column=int(kept[0]) if len(kept) else None,
        words=f"{waited}: {_percent(used)} of the limit of {limit_s:.0f} s, after which the watchdog ends the job. A "
        "higher limit keeps the job alive, and makes nothing faster.",
    )


def _limit_s(told: object) -> float:
    """Seconds; 0 when nothing usable is told."""
    usable = isinstance(told, int | float) and not isinstance(told, bool) and np.isfinite(told)
    return float(told) if usable else 0.0  # type: ignore[arg-type]


def _percent(share: float) -> str:
    """Two figures more near the limit, where they matter."""
    return f"{100 * share:.1f} %"
