"""Step numbers of a log: epochs laid end to end, and which records later attempts have made void."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEARLY_ALL = 0.95
STRAY_RECORDS = 3


@dataclass(frozen=True)
class Numbering:
    """What the numbers of a log's records mean.

    Attributes:
        numbers: step of each record over all epochs, shape (N,).
        kept: records that count: in order, each step once, by the latest attempt that reached it, shape (N,).
        parts: number of the stretch without a jump that each record lies in, shape (N,).
        restarts: first steps of later attempts.
        repeated: records that a later attempt made void.
    """

    numbers: Ints
    kept: NDArray[np.bool_]
    parts: Ints
    restarts: tuple[int, ...]
    repeated: int


def numbering(steps: Floats, epochs: Floats, totals: Floats) -> Numbering:
    """Make sense of step numbers in the order in which they were logged.

    Args:
        steps: as logged, shape (N,).
        epochs: NaN where not told, shape (N,).
        totals: steps of an epoch or of the run, NaN where not told, shape (N,).
    """
    jumps = np.flatnonzero(np.diff(steps) < 0) + 1
    parts = np.zeros(len(steps), np.int64)
    parts[jumps] = 1
    parts = np.cumsum(parts)
    offsets, again = _offsets(steps, epochs, totals, jumps)
    numbers = steps.astype(np.int64) + offsets[parts]
    lengths = np.bincount(parts)
    # A lone low number is a summary or a message, no attempt of its own.
    stray = (lengths < STRAY_RECORDS) & bool((lengths >= STRAY_RECORDS).any())
    counted = ~stray[parts]
    following = np.minimum.accumulate(np.where(counted, numbers, np.iinfo(np.int64).max)[::-1])[::-1]
    kept = counted.copy()
    kept[:-1] &= numbers[:-1] < following[1:]
    begins = [int(numbers[jump]) for jump, back in zip(jumps.tolist(), again, strict=True) if back and counted[jump]]
    same = np.r_[(np.diff(numbers) == 0) & (np.diff(parts) == 0), False]  # a bar that was drawn twice
    return Numbering(numbers, kept, parts, tuple(begins), int((counted & ~kept & ~same).sum()))


def _offsets(steps: Floats, epochs: Floats, totals: Floats, jumps: Ints) -> tuple[Ints, list[bool]]:
    """Steps before each part, and whether each jump is a restart (not the next epoch)."""
    offset, known = 0, {float(epochs[0]) if len(epochs) else 0.0: 0}
    offsets, again = [0], []
    for jump in jumps.tolist():
        before, epoch = jump - 1, float(epochs[jump])
        total, last = float(totals[before]), int(steps[before])
        length = int(total) if total >= last else last + 1
        next_epoch = epoch > epochs[before] or (np.isnan(epoch) and total > 0 and last >= NEARLY_ALL * total)
        if next_epoch:
            offset += length
            known[epoch] = offset
        elif epoch in known:
            offset = known[epoch]
        offsets.append(offset)
        again.append(not next_epoch)
    return np.array(offsets, np.int64), again
