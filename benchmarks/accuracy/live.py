"""How soon the running job's detector tells a slow rank: the same run, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from truth import Truth

from starprof.analysis.live.detector import OnlineDetector
from starprof.analysis.own_time import SPECIAL
from starprof.model.rundata import RunData


@dataclass(frozen=True)
class Watched:
    """What came of it.

    Attributes:
        told: steps from the onset to the first word on the right rank, None if it never came.
        confirmed: the same until it was told from a one-off.
        wrong: ranks that were confirmed although they are not to blame.
    """

    told: int | None
    confirmed: int | None
    wrong: frozenset[int]


def watch(run: RunData, truth: Truth) -> Watched | None:
    """Feed a run to the live detector; None where no onset is known or the run has no steps of several ranks."""
    blocked = run.steps.columns.get("blocked_us")
    if truth.onset is None or not truth.ranks or blocked is None or len(run.ranks) < 2:
        return None
    special = [np.nan_to_num(run.steps.columns[f"{name}_us"]) for name in SPECIAL if f"{name}_us" in run.steps.columns]
    own = run.steps["dur_us"] - blocked - sum(special, np.zeros_like(blocked))
    detector = OnlineDetector(run.ranks)
    told: int | None = None
    confirmed: int | None = None
    wrong: set[int] = set()
    for column, step in enumerate(run.steps.steps.tolist()):
        for finding in detector.observe(step, own[:, column], blocked[:, column]):
            right = finding.rank in truth.ranks and step >= truth.onset
            sure = finding.status == "confirmed"
            if right and told is None and finding.status in ("provisional", "confirmed"):
                told = step - truth.onset + 1
            if right and sure and confirmed is None:
                confirmed = step - truth.onset + 1
            if sure and finding.rank not in truth.ranks | truth.tolerated:
                wrong.add(finding.rank)
    return Watched(told, confirmed, frozenset(wrong))
