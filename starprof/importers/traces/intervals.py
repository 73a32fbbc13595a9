"""Sets of time as sorted, disjoint intervals: shape (N, 2), start and end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def union(starts: Times, durations: Times) -> Times:
    """Time that at least one of the intervals covers."""
    if len(starts) == 0:
        return np.empty((0, 2))
    order = np.argsort(starts, kind="stable")
    begin = starts[order]
    reach = np.maximum.accumulate(begin + durations[order])
    first = np.r_[True, begin[1:] > reach[:-1]]
    return np.stack([begin[first], reach[np.r_[first[1:], True]]], axis=1)


def merged(*sets: Times) -> Times:
    """Time that at least one of the sets covers."""
    both = np.concatenate(sets)
    return union(both[:, 0], both[:, 1] - both[:, 0])


def subtract(time: Times, taken: Times) -> Times:
    """What is left of a set without another one."""
    if len(time) == 0 or len(taken) == 0:
        return time
    edges = np.unique(np.concatenate([time.ravel(), taken.ravel()]))
    middles = (edges[:-1] + edges[1:]) / 2
    kept = _inside(time, middles) & ~_inside(taken, middles)
    return union(edges[:-1][kept], np.diff(edges)[kept])


def within(time: Times, starts: Times, ends: Times) -> Times:
    """How much of a set lies between each start and end."""
    if len(time) == 0:
        return np.zeros(len(starts))
    total = np.r_[0.0, np.cumsum(time[:, 1] - time[:, 0])]

    def until(moments: Times) -> Times:
        index = np.searchsorted(time[:, 0], moments, side="right")
        last = np.clip(index - 1, 0, None)
        over = np.clip(time[last, 1] - moments, 0.0, None)
        return np.where(index > 0, total[index] - over, 0.0)

    return until(ends) - until(starts)


def leaves(starts: Times, durations: Times, threads: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Intervals of a thread that no other of the same thread begins in: the innermost calls."""
    order = np.lexsort((-durations, starts, threads))
    begin, end, thread = starts[order], (starts + durations)[order], threads[order]
    result = np.ones(len(order), bool)
    result[order[:-1]] = (thread[1:] != thread[:-1]) | (begin[1:] >= end[:-1])
    return result


def _inside(time: Times, moments: Times) -> NDArray[np.bool_]:
    index = np.searchsorted(time[:, 0], moments, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (moments < time[np.clip(index, 0, None), 1])
    return inside
