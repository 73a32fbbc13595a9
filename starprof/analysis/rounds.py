"""Steps in rounds: what a rank needs for itself tells there what it always does, but nobody waits for the slowest.

So ranks are compared over all steps, and what matters is what a slowness would cost in native steps; what it has cost
is counted in native steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starprof.analysis.arrays import Bools, Ints
from starprof.analysis.cost import Reduction, replay
from starprof.analysis.own_time import OwnTime
from starprof.analysis.slowness import Slowness


def native_part(own: OwnTime, reduction: Reduction) -> Reduction:
    """What would be gone in native steps."""
    if not own.rounds.any():
        return reduction
    rows = {row: np.where(own.rounds, 0.0, values) for row, values in reduction.rows.items()}
    transfer = None if reduction.transfer is None else np.where(own.rounds, 0.0, reduction.transfer)
    return Reduction(rows, transfer)


def native_if_any(own: OwnTime, columns: Ints) -> Ints:
    """Those of some columns that are native steps; all of them where none is."""
    native = columns[~own.rounds[columns]]
    return native if len(native) else columns


def rounds_words(own: OwnTime, found: Sequence[Slowness]) -> list[str]:
    """What verdicts on jobs in rounds have to say besides.

    Args:
        own: own time.
        found: slownesses of late ranks, with what they take away in all steps.
    """
    count = int(own.rounds.sum())
    if not count:
        return []
    words = f"{count} of {len(own.rounds)} steps were made in rounds, where nobody waits for the slowest: "
    spared_us = _spared_us(own, [s.reduction for s in found])
    if spared_us <= 0:
        return [f"{words}costs are those of native steps."]
    return [f"{words}costs are those of native steps, and about {spared_us / 1e6:.1f} s more were spared."]


def _spared_us(own: OwnTime, parts: Sequence[Reduction]) -> float:
    """What late ranks would have cost in the steps in rounds; those that they have passed over count as the others."""
    if not parts:
        return 0.0
    whole, native = replay(own, parts), replay(own, [native_part(own, part) for part in parts])
    rows = sorted({row for part in parts for row in part.rows})
    seen: Bools = ~np.isnan(own.work[rows]).all(axis=0) & own.rounds
    return float((whole.total_us - native.total_us) * own.rounds.sum() / max(1, seen.sum()))
