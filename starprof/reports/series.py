"""Counter samples as time series on a common grid: what the time lines of the report are drawn from.

Times are nanoseconds of node 0's clock. A counter's rate in a bin is the difference of the interpolated counter at
the bin's edges, so that no count is lost or drawn twice whatever the sampling period; a gauge's value is the mean of
its samples in the bin. NaN = nothing was sampled there, the counter was reset, or a gap lies in the bin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.model.rundata import RunData

Floats = NDArray[np.float64]
BINS_AT_MOST = 240
GAP_PERIODS = 5.0  # an interval this many times the usual one is a gap ...
GAP_LEAST_NS = 2.5e9  # ... unless it is shorter than this


@dataclass(frozen=True)
class Series:
    """Values of several entities (ranks or nodes) on one grid.

    Attributes:
        edges_ns: bin edges, shape (B + 1,).
        values: per entity shape (B,), NaN = not measured.
    """

    edges_ns: Floats
    values: Mapping[int, Floats]


@dataclass(frozen=True)
class Clock:
    """Brings times of every node onto node 0's clock.

    Attributes:
        shift_ns: per node what to add to its times.
        aligned: nodes without a measured offset; they are laid so that their first steps begin together.
    """

    shift_ns: Mapping[int, int]
    aligned: tuple[int, ...]


def clock(run: RunData) -> Clock:
    """Offsets of all nodes, measured or by the first step that ranks of both nodes recorded."""
    starts = _first_starts(run)
    shift, aligned = {}, []
    reference = min(starts, default=0)
    for node in sorted({rank.node for rank in run.ranks} | set(starts)):
        if node in run.clock_offset_ns:
            shift[node] = run.clock_offset_ns[node][0]
        elif node in starts and node != reference:
            shift[node] = starts[reference] + shift.get(reference, 0) - starts[node]
            aligned.append(node)
        else:
            shift[node] = 0
    return Clock(shift, tuple(aligned))


def _first_starts(run: RunData) -> dict[int, int]:
    """Start of the first common step per node."""
    starts = run.steps.start_mono_ns
    common = np.flatnonzero((starts > 0).all(axis=0)) if starts.size else np.array([], dtype=np.int64)
    if not common.size:
        return {}
    return {rank.node: int(starts[row, common[0]]) for row, rank in reversed(list(enumerate(run.ranks)))}


def grid(frame: pd.DataFrame, entity: list[str]) -> Floats:
    """Bin edges for a sampled table: at least two usual sampling periods wide, at most `BINS_AT_MOST` bins."""
    times = frame["mono_ns"].to_numpy(np.float64)
    first, last = float(times.min()), float(times.max())
    periods = frame.sort_values("mono_ns").groupby(entity, sort=True)["mono_ns"].diff().dropna()
    period = float(periods[periods > 0].median()) if (periods > 0).any() else max(last - first, 1.0)
    bins = int(min(BINS_AT_MOST, max((last - first) // (2 * period), 1)))
    return np.linspace(first, max(last, first + 1.0), bins + 1)


def rates(frame: pd.DataFrame, entity: list[str], name: str, edges_ns: Floats) -> dict[tuple[Any, ...], Floats]:
    """Rate per second of one counter, per entity, shape (B,)."""
    return _each(frame, entity, name, lambda times, values: _rate(times, values, edges_ns))


def levels(frame: pd.DataFrame, entity: list[str], name: str, edges_ns: Floats) -> dict[tuple[Any, ...], Floats]:
    """Mean of one gauge, per entity, shape (B,)."""
    return _each(frame, entity, name, lambda times, values: _level(times, values, edges_ns))


def _each(
    frame: pd.DataFrame, entity: list[str], name: str, reduce: Callable[[Floats, Floats], Floats]
) -> dict[tuple[Any, ...], Floats]:
    known = frame[[*entity, "mono_ns", name]].dropna(subset=[name]).sort_values([*entity, "mono_ns"])
    found: dict[tuple[Any, ...], Floats] = {}
    for key, rows in known.groupby(entity, sort=True):
        found[tuple(key)] = reduce(rows["mono_ns"].to_numpy(np.float64), rows[name].to_numpy(np.float64))
    return found


def _rate(times_ns: Floats, counts: Floats, edges_ns: Floats) -> Floats:
    if len(times_ns) < 2:
        return np.full(len(edges_ns) - 1, np.nan)
    steps, waits = np.diff(counts), np.diff(times_ns)
    grown = np.r_[0.0, np.cumsum(np.maximum(steps, 0.0))]
    at_edges = np.interp(edges_ns, times_ns, grown, left=np.nan, right=np.nan)
    rate = np.diff(at_edges) / np.diff(edges_ns) * 1e9
    broken = (steps < 0) | (waits > max(GAP_PERIODS * float(np.median(waits)), GAP_LEAST_NS))
    for at in np.flatnonzero(broken):
        touched = (edges_ns[1:] > times_ns[at]) & (edges_ns[:-1] < times_ns[at + 1])
        rate[touched] = np.nan
    return rate


def _level(times_ns: Floats, values: Floats, edges_ns: Floats) -> Floats:
    bins = np.clip(np.searchsorted(edges_ns, times_ns, side="right") - 1, 0, len(edges_ns) - 2)
    count = np.bincount(bins, minlength=len(edges_ns) - 1)
    total = np.bincount(bins, weights=values, minlength=len(edges_ns) - 1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan), dtype=np.float64)


def total(parts: list[Floats]) -> Floats:
    """Sum over parts of one entity; a part that is missing counts nothing, NaN only where all are missing."""
    stacked = np.vstack(parts)
    return np.where(np.isfinite(stacked).any(axis=0), np.nansum(stacked, axis=0), np.nan)
