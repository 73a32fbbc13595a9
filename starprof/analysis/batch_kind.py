"""Whether the steps that waited long for data had batches of one kind: larger ones, say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.causes.base import pct
from starprof.analysis.counters import Counters, numbers
from starprof.analysis.settings import Settings
from starprof.analysis.shapes import above_usual, spike_bars

if TYPE_CHECKING:
    from starprof.analysis.own_time import OwnTime
    from starprof.model.rundata import RunData

SIZES: Mapping[str, tuple[str, float]] = {
    "tokens": ("tokens", 1.0),
    "samples": ("samples", 1.0),
    "micro_batches": ("micro-batches", 1.0),
    "memory_bytes": ("GB of GPU memory in use", 1e9),
}
"""Measures of a batch: in words, and the divisor of what is shown."""
MIN_STALLS = 3
CHANCE = 0.01
MOST_STEPS = 0.5
"""A kind that more than this share of all steps is of is no kind."""
LISTED = 8
DIFFERENT = 0.01


def stalled_steps(waits: Floats, step_us: float, settings: Settings) -> Ints:
    """Columns whose wait for data stands out from the usual by much of a step.

    Args:
        waits: microseconds, NaN = not told, shape (S,).
        step_us: what a step usually takes.
        settings: thresholds.
    """
    relative = waits[None] / max(step_us, 1.0)
    return np.flatnonzero((above_usual(relative) > spike_bars(relative, settings)[:, None])[0])


def kind_words(stalled: Ints, steps: Ints, sizes: Mapping[str, Floats]) -> list[str]:
    """A sentence on what the stalled batches have in common, when chance does not explain it.

    Args:
        stalled: columns of the stalled steps.
        steps: step numbers, shape (S,).
        sizes: per key of `SIZES` the size of each step's batch, NaN where not told, shape (S,).
    """
    if len(stalled) < MIN_STALLS:
        return []
    best: tuple[float, str] | None = None
    for name, size in sizes.items():
        known = size[np.isfinite(size) & (size > 0)]
        there = size[stalled]
        if len(known) < len(size) / 2 or not np.isfinite(there).all() or np.ptp(known) <= DIFFERENT * known.max():
            continue
        low, high = float(there.min()), float(there.max())
        for share, bound, side in (
            (float((known >= low * (1 - DIFFERENT)).mean()), low, "or more"),
            (float((known <= high * (1 + DIFFERENT)).mean()), high, "or less"),
        ):
            chance = share ** len(stalled) * 2 * len(sizes)
            if share <= MOST_STEPS and chance <= CHANCE and (best is None or chance < best[0]):
                best = (chance, _words(stalled, steps, name, bound, side, share))
    return [] if best is None else [best[1]]


def _words(stalled: Ints, steps: Ints, name: str, bound: float, side: str, share: float) -> str:
    unit, divisor = SIZES[name]
    shown = ", ".join(str(int(step)) for step in steps[stalled[:LISTED]])
    more = ", ..." if len(stalled) > LISTED else ""
    return (
        f"All {len(stalled)} steps that waited long for data ({shown}{more}) had a batch with {bound / divisor:.6g} "
        f"{unit} {side}, as {pct(share)} of all steps do: only such batches stall, not all of them."
    )


def sizes_of(run: RunData, own: OwnTime, counters: Counters, row: int) -> dict[str, Floats]:
    """What is known of the sizes of a rank's batches, step by step; keys of `SIZES`."""
    columns = run.steps.columns
    found = {name: columns[name][own.rows[row], own.columns] for name in SIZES if name in columns}
    memory = _memory(own, counters, row)
    return found if memory is None else {**found, "memory_bytes": memory}


def _memory(own: OwnTime, counters: Counters, row: int) -> Floats | None:
    """Memory in use on a rank's GPU, mean of each step, shape (S,); None when it was not sampled."""
    info = own.infos[row]
    gpu = counters.gpus.get((info.node, info.gpu_uuid)) if info.gpu_uuid else None
    samples = (
        None if gpu is None else counters.series("gpu_sample", ("node", "gpu")).get((float(info.node), float(gpu.id)))
    )
    starts = own.start_ns[row].astype(np.float64)
    if samples is None or not (starts > 0).all():
        return None
    times, used = numbers(samples, "mono_ns"), numbers(samples, "memory_used_bytes")
    place = np.searchsorted(starts, times, side="right") - 1
    inside = (place >= 0) & ~np.isnan(used)
    count = np.bincount(place[inside], minlength=len(starts))
    total = np.bincount(place[inside], weights=used[inside], minlength=len(starts))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
