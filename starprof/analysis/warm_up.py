"""What the first steps of a run took, which are no part of the comparison: compiling above all."""

from __future__ import annotations

import numpy as np

from starprof.analysis.causes.base import ms, rank_names
from starprof.analysis.own_time import OwnTime
from starprof.model.rundata import RunData

MIN_STEPS_LOST = 10.0
"""Compiling in the first steps is told from this many healthy steps on."""


def warm_up_words(run: RunData, own: OwnTime) -> list[str]:
    """A sentence on who compiled in the steps that count as warm-up, when it took long."""
    compiled = run.steps.columns.get("compile_us")
    if compiled is None or len(own.columns) == 0 or own.columns[0] == 0:
        return []
    spent = np.nan_to_num(compiled[own.rows, : own.columns[0]], nan=0.0)
    per_rank = spent.sum(axis=1)
    late = np.flatnonzero((per_rank > 0) & (per_rank >= MIN_STEPS_LOST * own.healthy_step_us))
    if len(late) == 0:
        return []
    columns = np.flatnonzero((spent[late] > 0).any(axis=0))
    first, last = int(run.steps.steps[columns[0]]), int(run.steps.steps[columns[-1]])
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    who = rank_names(tuple(own.rank(int(row)) for row in late)).capitalize()
    waited = "; the others waited" if len(late) < own.shape[0] else ""
    return [
        f"{who} compiled for {'up to ' if len(late) > 1 else ''}{ms(float(per_rank.max()))} in {where}{waited}: that "
        "is warm-up, and no part of the comparison."
    ]
