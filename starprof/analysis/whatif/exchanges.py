"""Who exchanges tokens with whom in expert parallelism: op traces do not tell, the ends of the exchanges do.

The ranks of an expert-parallel group lie in different pipelines of one stage, and their exchanges end at once, whatever
their clocks say. Without that the waiting of all others for a slow rank would count as time that each of them takes.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.whatif.roles import exchanges_tokens
from starprof.analysis.whatif.trace import Schedule

AT_ONCE = 0.05
"""Ends belong together when they differ, but for a constant, by less than this share of an exchange's time."""
MOST_MEMBERS = 64
COMPARED = 256
"""Exchanges that are compared of each pair of ranks."""


def exchange_groups(schedule: Schedule, names: tuple[str, ...], dp: Ints, pp: Ints) -> Ints:
    """The group of each exchange of tokens, shape (N,); -1 for other operations, and where no group can be told.

    Args:
        schedule: operations.
        names: by kind.
        dp: pipeline of each operation, shape (N,).
        pp: its stage.
    """
    groups = np.full(len(schedule.kind), -1, np.int64)
    room = int(dp.max(initial=0)) + 1
    for kind in [at for at, name in enumerate(names) if exchanges_tokens(name)]:
        for stage in np.unique(pp[schedule.kind == kind]):
            rows = np.flatnonzero((schedule.kind == kind) & (pp == stage))
            rows = rows[np.lexsort((schedule.number[rows], dp[rows]))]
            pipelines, counts = np.unique(dp[rows], return_counts=True)
            if not 2 <= len(pipelines) <= MOST_MEMBERS or len(np.unique(counts)) > 1:
                continue
            group = _told_by_ends(schedule, rows.reshape(len(pipelines), -1))
            if group is not None:
                groups[rows] = np.repeat(int(stage) * room + group, counts[0])
    return groups


def _told_by_ends(schedule: Schedule, rows: Ints) -> Ints | None:
    """Group of each rank of a stage, given its exchanges in a row each; None where they make no equal groups."""
    lasting = schedule.dur_us[rows].reshape(len(rows), -1)
    ends: Floats = schedule.start_us[rows].reshape(len(rows), -1) + lasting
    some = np.unique(np.linspace(0, ends.shape[1] - 1, COMPARED).astype(np.int64))
    apart = ends[:, None, some] - ends[None, :, some]
    apart -= np.median(apart, axis=2, keepdims=True)
    together: Bools = np.median(np.abs(apart), axis=2) <= AT_ONCE * float(np.median(lasting))
    _, group = connected_components(together, directed=False)
    sizes = np.bincount(group)
    return group.astype(np.int64) if sizes.min() == sizes.max() > 1 else None
