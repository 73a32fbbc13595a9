"""GPU memory nearly full: the allocator flushes its cache and asks the driver again (allocator retries, per step)."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import Case, Explanation, pct
from starprof.analysis.causes.contrast import of_most
from starprof.analysis.causes.gpu import loaded_gauge
from starprof.model import causes

MIN_RETRIES = 1.0
MIN_MORE_OFTEN = 0.5


def explain(case: Case) -> Explanation | None:
    """Steps with more retries than the peers have in the same step carry the lost time, and healthy steps have none."""
    retries = case.run.steps.columns.get("alloc_retries")
    if retries is None:
        return None
    all_ranks = retries[np.ix_(case.own.rows, case.own.columns)]
    found = of_most(case, [_covered(case, row, all_ranks) for row in case.rows])
    if not found:
        return None
    share = sum(part[0] for part in found) / len(case.rows)
    per_step = float(np.mean([part[1] for part in found]))
    return Explanation(
        cause=causes.GPU_MEMORY_PRESSURE,
        share=share,
        evidence=(
            f"The allocator of {case.who} had to flush its cache and retry {per_step:.0f} times per late step; its "
            f"peers did not in the same steps, nor {case.who} in healthy ones.",
            f"Those steps carry {pct(share)} of the lost time.{_fill(case)}",
        ),
        action=f"Lower the memory use of {case.who} (batch size or sequence length, activation checkpointing, "
        "gradients set to None), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
        verify=f"alloc_retries of {case.who} must stay 0 per step, and its lateness must vanish; if it stays late "
        "without retries, memory was not the cause.",
        partly=f"steps with allocator retries carry {pct(share)}",
        against=("Retries are recoverable: this is no out-of-memory alarm. Counted is their growth in each step.",),
    )


def _covered(case: Case, row: int, retries: Floats) -> tuple[float, float] | None:
    """Share of the lost time in steps with more retries than the peers', and retries per late step."""
    lost = case.lost_us.get(row)
    if lost is None or not lost.sum() > 0 or np.isnan(retries[row]).all():
        return None
    peers = case.peers(row)
    usual = _upper(retries[peers]) if peers else np.zeros(retries.shape[1])
    more: Bools = np.nan_to_num(retries[row]) >= usual + MIN_RETRIES
    often_before = float(more[case.past].mean()) if case.past.any() else 0.0
    often = float(more[case.steps].mean())
    if often - often_before < MIN_MORE_OFTEN * often or often == 0.0:
        return None
    return float(lost[more].sum() / lost.sum()), float(np.nanmean(retries[row][case.steps & more]))


def _upper(values: Floats) -> Floats:
    """Largest of the peers' retries per step, shape (S,)."""
    highest: Floats = np.nan_to_num(values, nan=0.0).max(axis=0)
    return highest


def _fill(case: Case) -> str:
    """How full the memory is, where it was sampled."""
    row = case.rows[0]
    used = loaded_gauge(case, row, "memory_used_bytes", case.steps)
    total = loaded_gauge(case, row, "memory_total_bytes", case.steps)
    return f" {pct(used / total)} of the GPU's memory was in use." if total > 0 else ""
