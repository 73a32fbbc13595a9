"""Ranks whose clocks are apart: told from transfers and collectives, which end for all of their members at once.

What a transfer takes is counted from the start of its last member, so a clock that is ahead by some milliseconds makes
all links of its rank look slow. Constant differences are taken out before anything is judged. A receive that is noted
as done a little after its send, or the other way round, does not look like a clock: it does so in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsqr

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.trace_settings import ReplaySettings
from starprof.analysis.whatif.replay import Part, Replay, with_starts


@dataclass(frozen=True)
class Clocked:
    """A replay with all starts in one clock.

    Attributes:
        replay: what is judged.
        told: what the figures of the what-if analysis are of: the trace as it is, unless its clocks change them.
        apart_us: how far apart its clocks are where that is the case, else 0.
    """

    replay: Replay
    told: Replay
    apart_us: float


def on_one_clock(replay: Replay, settings: ReplaySettings) -> Clocked:
    """Put the clocks of a replay's ranks right where they are apart by enough to matter."""
    offsets, unexplained_us = _offsets_us(replay)
    apart_us = float(np.ptp(offsets))
    if apart_us <= settings.clock_share * _median_us(replay) or unexplained_us > settings.clock_fit * apart_us:
        return Clocked(replay, replay, 0.0)
    made = with_starts(replay, [-offsets[part.schedule.worker][:, None] for part in replay.parts])
    plain = apart_us > settings.told_clock_share * float(np.median(replay.now_us))
    return Clocked(made, made if plain else replay, apart_us if plain else 0.0)


def _median_us(replay: Replay) -> float:
    """What a transfer or collective takes, waiting left out (as far as clocks that are apart allow)."""
    taken = [part.takes_us[_joint(part)].ravel() for part in replay.parts]
    values = np.concatenate(taken)
    return float(np.median(values)) if len(values) else 0.0


def _joint(part: Part) -> Ints:
    """Rows of the operations that several ranks take part in."""
    rows: Ints = np.flatnonzero(np.repeat(part.graph.sizes > 1, part.graph.sizes))
    return rows


def _offsets_us(replay: Replay) -> tuple[Floats, float]:
    """Offset of each rank's clock, shape (R,), and the median difference that they leave unexplained."""
    ranks = len(replay.workers.rank)
    first, second, apart = _differences(replay)
    if not len(first):
        return np.zeros(ranks), 0.0
    rows = np.arange(len(first))
    ones = np.ones(len(first))
    matrix = csr_array((np.r_[-ones, ones], (np.r_[rows, rows], np.r_[first, second])), shape=(len(first), ranks))
    offsets: Floats = lsqr(matrix, apart, atol=1e-9, btol=1e-9)[0]
    return offsets, float(np.median(np.abs(matrix @ offsets - apart)))


def _differences(replay: Replay) -> tuple[Ints, Ints, Floats]:
    """Pairs of ranks that take part in something together, and how much later the second one ends it."""
    ranks = len(replay.workers.rank)
    found = []
    for part in replay.parts:
        rows = _joint(part)
        group = np.repeat(np.arange(len(part.graph.sizes)), part.graph.sizes)[rows]
        order = part.graph.order[rows]
        same = np.flatnonzero(group[1:] == group[:-1])
        one, other = part.worker[rows[same]], part.worker[rows[same + 1]]
        end = part.schedule.start_us[order] + part.schedule.dur_us[order]
        later = np.median(end[same + 1] - end[same], axis=1)
        swapped = one > other
        pair = np.where(swapped, other, one) * ranks + np.where(swapped, one, other)
        found.append((pair, part.kind[rows[same]], np.where(swapped, -later, later)))
    pair, kind, later = (np.concatenate(side) for side in zip(*found, strict=True))
    # The median of each kind of operation of a pair, then their mean: what only looks like a clock cancels.
    _, of_kind = np.unique(np.stack([pair, kind]), axis=1, return_inverse=True)
    by_kind, pair_of_kind = _medians(later, of_kind), _firsts(pair, of_kind)
    pairs, at = np.unique(pair_of_kind, return_inverse=True)
    mean = np.bincount(at, by_kind) / np.bincount(at)
    return pairs // ranks, pairs % ranks, mean


def _medians(values: Floats, group: Ints) -> Floats:
    """Lower median of the values of each group, shape (groups,)."""
    order = np.lexsort((values, group))
    begins = np.searchsorted(group[order], np.arange(int(group.max(initial=-1)) + 2))
    middle = (begins[:-1] + begins[1:] - 1) // 2
    found: Floats = values[order][middle]
    return found


def _firsts(values: Ints, group: Ints) -> Ints:
    """Value of the first member of each group, shape (groups,)."""
    _, first = np.unique(group, return_index=True)
    found: Ints = values[first]
    return found
