"""What the run file tells of a cell's job: own time of steps, whose gradients went in, how old they were, switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from starprof.model.rundata import RunData
from starprof.reports.synchronised import Synchronised
from starprof.store.query import load_run

SETTLED_STEPS = 60
"""Steps of each rank that are left out: control begins in them, and its coordinator is a program that starts."""


def told(path: Path, iterations: int) -> dict[str, Any]:
    """Figures of a run whose training took so many iterations."""
    run = load_run(path)
    return {"own_ms": own_ms(run), **contributions(run, iterations), "switches": switches(run)}


def own_ms(run: RunData) -> list[float]:
    """Median time of each rank's steps without what it waited for others."""
    own = (run.steps["dur_us"] - np.nan_to_num(run.steps["blocked_us"]))[:, SETTLED_STEPS:] / 1e3
    return [round(float(np.nanmedian(rank)), 3) for rank in own]


def contributions(run: RunData, iterations: int) -> dict[str, Any]:
    """How many gradients of each rank went in, by the iterations of the training; and their staleness.

    Native steps hold everybody's gradient.
    """
    gradients = Synchronised(run).gradients
    native = max(0.0, iterations - float(gradients.weight.sum()))
    used = np.bincount(gradients.row, minlength=len(run.ranks)) + native
    stale = gradients.staleness
    return {
        "used": [round(float(share), 3) for share in used / iterations],
        "staleness": round(float(stale.mean()), 3) if len(stale) else 0.0,
        "staleness_max": int(stale.max(initial=0)),
        "updates": len(gradients.version),
    }


def switches(run: RunData) -> list[dict[str, Any]]:
    """Each change of the mode: when, from which to which, and how long after the wish."""
    frame = run.sync_switches
    if frame is None:
        return []
    kept = frame[frame["version"].notna()].sort_values("mono_ns")
    return [
        {
            "at_s": cells["mono_ns"] / 1e9,
            "before": cells["from_mode"],
            "after": cells["to_mode"],
            "took_ms": 0.0 if pd.isna(cells["took_us"]) else round(float(cells["took_us"]) / 1e3, 2),
        }
        for cells in kept.to_dict("records")
    ]
