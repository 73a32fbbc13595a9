"""Whether extra work now and then is saving: the bytes that a rank's processes write fall into those steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.causes.base import Case
from starprof.analysis.counters import growth, numbers

MOST_BYTES = 0.8
"""Share of the written bytes that must fall into the late steps."""
FAR_LESS = 5.0
MIN_BYTES = 1e6
"""Bytes per save below which it is logging rather than saving."""


@dataclass(frozen=True)
class Saved:
    """Bytes that were written per late step, and their share of all that were written."""

    bytes_per_step: float
    share: float


def saved(case: Case) -> Saved | None:
    """The bytes that the processes of the first late rank wrote in its late steps; None when they explain nothing."""
    info, starts = case.own.infos[case.rows[0]], case.own.start_ns[case.rows[0]]
    samples = case.counters.series("process_sample", ("node", "rank")).get((float(info.node), float(info.rank)))
    late = np.flatnonzero(case.steps & (starts > 0))
    if samples is None or len(late) == 0:
        return None
    length = case.own.cycle[case.rows[0]] + case.own.blocked[case.rows[0]]
    ends = starts + np.nan_to_num(length, nan=0.0) * 1e3
    total, inside, covered = 0.0, 0.0, 0.0
    for _, rows in samples.groupby("pid", sort=False):
        times, written = numbers(rows, "mono_ns"), numbers(rows, "write_bytes")
        known = ~np.isnan(written)
        if known.sum() < 2:
            continue
        times, written = times[known], written[known]
        # The counter is read at most once a second: bytes show in the sample after they were written.
        slack = float(np.median(np.diff(times)))
        total += growth(times, written, times[0], times[-1]).amount
        for first, end in _joined(starts[late] - slack, ends[late] + slack):
            inside += growth(times, written, first, end).amount
            covered += (end - first) / max(1.0, times[-1] - times[0])
    if total <= 0 or inside < MIN_BYTES * len(late):
        return None
    share = min(1.0, inside / total)
    # Of what is written outside the late steps there must be far less than their part of the time would hold.
    concentrated = share >= MOST_BYTES and 1.0 - share <= (1.0 - covered) / FAR_LESS
    return Saved(inside / len(late), share) if concentrated else None


def _joined(starts: Floats, ends: Floats) -> list[tuple[float, float]]:
    """Overlapping windows as one each."""
    result: list[tuple[float, float]] = []
    for first, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((first, end))
    return result
