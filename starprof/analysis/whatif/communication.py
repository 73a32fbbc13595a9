"""Times of transfers and collectives as series over the steps, and when they are high.

There are two references: the same link (or collective) of the others, and its own past, which also tells what is slow
for everybody for a while. Waiting for the other members is left out of all times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.base import ms
from starprof.analysis.settings import Settings
from starprof.analysis.whatif.persistence import High, high_rows
from starprof.analysis.whatif.replay import Mask, Replay
from starprof.analysis.whatif.slow_ranks import least_steps
from starprof.analysis.whatif.suspect import Taken

USUALLY = 0.25
"""The quantile over steps that tells what is usual: slowness may last for most of the run."""


def mean_us(replay: Replay, mask: Mask) -> Floats:
    """Mean of what the operations of a mask take, per step, shape (S,); NaN where there is none."""
    means = []
    for part in replay.parts:
        rows = part.takes_us[mask(part)]
        means.append(rows.mean(axis=0) if len(rows) else np.full(part.takes_us.shape[1], np.nan))
    return replay.in_step_order(means)


def logs_of(times_us: Floats) -> Floats:
    """Logarithms; NaN where nothing was measured, or no time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(times_us)
    return np.where(np.isfinite(logs), logs, np.nan)


def against_the_past(logs: Floats, ratio: float, settings: Settings) -> list[High]:
    """Rows that are high in some of the steps, against their own time in the others.

    Args:
        logs: logarithms of times, shape (S, R).
        ratio: least multiple.
        settings: thresholds.
    """
    steps = len(logs)
    known = ~np.isnan(logs).all(axis=0)
    usual = np.full(logs.shape[1], np.nan)
    usual[known] = np.nanquantile(logs[:, known], USUALLY, axis=0)
    found = high_rows(logs - usual, float(np.log(ratio)), least_steps(steps, settings), settings.replay, fewest=1)
    rest = max(settings.replay.min_steps, least_steps(steps, settings) // 2)
    return [high for high in found if steps - (high.end - high.first) >= rest]


def overlap(highs: Sequence[High]) -> float:
    """Share of all their steps in which all of them are high."""
    first, end = max(h.first for h in highs), min(h.end for h in highs)
    longest = max(h.end for h in highs) - min(h.first for h in highs)
    return max(0, end - first) / longest


def scale(replay: Replay, masks: Sequence[Mask], highs: Sequence[High], taken: Taken) -> None:
    """Operations as they would be without the slowness: a fix of a suspect."""
    for part, values in zip(replay.parts, taken, strict=True):
        step = np.searchsorted(replay.steps, part.schedule.steps)
        for mask, high in zip(masks, highs, strict=True):
            rows = np.flatnonzero(mask(part))
            values[rows] *= np.where((step >= high.first) & (step < high.end), np.exp(-high.height), 1.0)


def compared(times_us: Floats, high: High, usual_us: float, where: str) -> str:
    """Time in the slow steps against another time, in words: 60 ms, 12.0 times what it ... (5 ms)."""
    mine = float(np.nanmedian(times_us[high.inside]))
    return f"{ms(mine)}, {np.exp(high.height):.1f} times as long as {where} ({ms(usual_us)})"


def when(replay: Replay, first: int, end: int) -> str:
    """The steps of an interval in words; empty when it is the whole run."""
    steps = replay.steps
    if end - first >= len(steps):
        return ""
    if end == len(steps):
        return f" from step {int(steps[first])} on"
    return f" in steps {int(steps[first])} to {int(steps[end - 1])}"
