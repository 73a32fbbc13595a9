"""Somebody else's process computes on the rank's GPU."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools
from starprof.analysis.causes.base import COINCIDES, MIN_IN_PHASES, Case, Explanation, pct
from starprof.analysis.causes.contrast import NAN, Contrast, gauge, in_steps, of_most, over_steps
from starprof.analysis.causes.gpu import compute_share, samples_of
from starprof.analysis.counters import numbers
from starprof.model import causes

MIN_PRESENT = 0.7
MAX_USUAL = 0.3
IDLE_MEMORY_BYTES = 500e6
"""A process that was there all along and holds less (a display server, a monitor) is no evidence."""


def explain(case: Case) -> Explanation | None:
    """A foreign process is there while the rank is slow, not before, and not on the peers' GPUs."""
    if compute_share(case) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_present(case, row) for row in case.rows])
    if not found:
        return None
    share = compute_share(case) * min(1.0, sum(part.now for part in found) / len(case.rows))
    row = case.rows[0]
    held = over_steps(case, row, lambda r, steps: gauge(case, r, samples_of(case, r), "foreign_memory_bytes", steps))
    memory = f", holding {held.now / 1e9:.1f} GB" if held.now == held.now else ""
    return Explanation(
        cause=causes.GPU_FOREIGN_PROCESS,
        share=share,
        evidence=(
            f"In {pct(found[0].now)} of the late samples a process that belongs to no rank was on the GPU of "
            f"{case.who}{memory} ({found[0].words(pct)} of the samples).",
            f"{pct(share)} of the excess lies in GPU compute meanwhile.",
        ),
        action=f"Find and stop the other process on the GPU of {case.who} (nvidia-smi pmon), or set the compute mode "
        "to exclusive.",
        verify=f"With foreign_processes at 0 {case.who} must be as early as its peers; if it stays late, the other "
        "process was not the cause.",
        certainty=COINCIDES,
        partly=f"a foreign process on the GPU falls together with {pct(share)}",
        against=("How much of the GPU the other process used is not counted; it coincides in time.",),
    )


def _present(case: Case, row: int) -> Contrast | None:
    present = over_steps(case, row, lambda r, steps: _share_present(case, r, steps))
    if not present.known or present.now < MIN_PRESENT or present.usual_high > MAX_USUAL:
        return None
    has_past = present.past == present.past
    held = gauge(case, row, samples_of(case, row), "foreign_memory_bytes", case.steps)
    return present if has_past or held >= IDLE_MEMORY_BYTES else None


def _share_present(case: Case, row: int, steps: Bools) -> float:
    rows = samples_of(case, row)
    if rows is None:
        return NAN
    count = numbers(rows, "foreign_processes")
    seen = in_steps(case, row, numbers(rows, "mono_ns"), steps) & ~np.isnan(count)
    return float((count[seen] > 0).mean()) if seen.any() else NAN


def hidden(case: Case) -> bool:
    """Other processes can't be seen from where the agent runs."""
    for row in case.rows:
        rows = samples_of(case, row)
        if rows is not None and len(rows) and np.isnan(numbers(rows, "foreign_processes")).all():
            return True
    return False
