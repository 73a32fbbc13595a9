"""What slowness costs, by replaying the run without it.

The job's step time is `max_i cycle[i, k] + transfer[k]`. A finding is a set of reductions: what its ranks' cycles
(or the transfer) would lose if it were gone. A culprit's lateness is replaced by what its peers show in the same
steps: their distribution of lateness, taken in the order of the culprit's own (its late steps become its peers'
late steps), so that ordinary noise stays in the replay. Where findings overlap in time, the loss is shared by the
Shapley value of removing them, so costs add up to the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import factorial

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.own_time import OwnTime

MAX_EXACT = 7
MAX_SAMPLED_PEERS = 24


@dataclass(frozen=True)
class Reduction:
    """What would be gone: per row time to take from its cycle, shape (S,); and from the transfer."""

    rows: Mapping[int, Floats] = field(default_factory=dict)
    transfer: Floats | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """Costs in microseconds: of everything, of each part (adding up to it), and of each part if only it were gone."""

    total_us: float
    parts_us: tuple[float, ...]
    alone_us: tuple[float, ...]


class Replay:
    """The run's wall time with any set of reductions taken away."""

    def __init__(self, own: OwnTime, parts: Sequence[Reduction]) -> None:
        self._parts = parts
        self._place = {row: i for i, row in enumerate(sorted({row for part in parts for row in part.rows}))}
        touched = list(self._place)
        rest = np.ones(own.shape[0], bool)
        rest[touched] = False
        self._others = np.full(own.shape[1], -np.inf)
        if rest.any():
            self._others = np.max(np.nan_to_num(own.cycle[rest], nan=-np.inf), axis=0)
        self._cycles = np.nan_to_num(own.cycle[touched], nan=-np.inf)
        self._transfer = own.transfer

    def microseconds(self, removed: Iterable[int]) -> float:
        """Wall time without some of the parts."""
        left, transfer = self._cycles.copy(), self._transfer.copy()
        for index in removed:
            for row, values in self._parts[index].rows.items():
                left[self._place[row]] -= values
            taken = self._parts[index].transfer
            if taken is not None:
                transfer = transfer - taken
        longest = np.maximum(self._others, left.max(axis=0)) if len(left) else self._others
        return float((longest + np.maximum(transfer, 0.0)).sum())

    def added(self, part: Reduction) -> float:
        """How much longer the run without any of the parts gets when this one comes back."""
        left = self._ideal
        longest = np.maximum(self._others, left.max(axis=0)) if len(left) else self._others
        slower = longest
        for row, values in part.rows.items():
            slower = np.maximum(slower, left[self._place[row]] + values)
        extra = 0.0 if part.transfer is None else part.transfer
        return float((slower - longest + extra).sum())

    @cached_property
    def _ideal(self) -> Floats:
        left = self._cycles.copy()
        for part in self._parts:
            for row, values in part.rows.items():
                left[self._place[row]] -= values
        return left


def solo_us(own: OwnTime, parts: Sequence[Reduction]) -> tuple[float, ...]:
    """What each part would cost if it were the only one, microseconds."""
    run = Replay(own, parts)
    return tuple(run.added(part) for part in parts)


def replay(own: OwnTime, parts: Sequence[Reduction]) -> Shares:
    """Cost of findings together and each."""
    if not parts:
        return Shares(0.0, (), ())
    run = Replay(own, parts)
    now = run.microseconds([])
    total = now - run.microseconds(range(len(parts)))
    alone = tuple(now - run.microseconds([i]) for i in range(len(parts)))
    if len(parts) <= MAX_EXACT:
        return Shares(total, tuple(_shapley(run, i, len(parts)) for i in range(len(parts))), alone)
    # Too many subsets: share the total in proportion to what each would cost by itself.
    solo = np.maximum(solo_us(own, parts), 0.0)
    scale = total / solo.sum() if solo.sum() > 0 else 0.0
    return Shares(total, tuple(float(cost) for cost in solo * scale), alone)


def _shapley(run: Replay, index: int, count: int) -> float:
    others = [i for i in range(count) if i != index]
    value = 0.0
    for size in range(count):
        weight = factorial(size) * factorial(count - size - 1) / factorial(count)
        for removed in combinations(others, size):
            value += weight * (run.microseconds(removed) - run.microseconds([*removed, index]))
    return value


def late_reduction(own: OwnTime, lateness_us: Floats, row: int, steps: Bools, base_us: float, blamed: Bools) -> Floats:
    """Time a late rank's cycle would lose, shape (S,).

    Args:
        own: own time.
        lateness_us: lateness of every rank against its peers, shape (R, S).
        row: the late rank.
        steps: steps in which it is late, shape (S,).
        base_us: its lateness when healthy.
        blamed: ranks that are no peers to learn from, shape (R,).
    """
    result = np.zeros(own.shape[1])
    late = np.flatnonzero(steps & ~np.isnan(lateness_us[row]))
    if len(late) == 0:
        return result
    actual = lateness_us[row, late]
    good = np.flatnonzero(~blamed & (own.groups == own.groups[row]))
    if len(good):
        sample = healthy_lateness(own, lateness_us, good[:MAX_SAMPLED_PEERS], late)
    else:
        sample = _own_past(lateness_us[row], steps)
    healthy = np.sort(sample)
    place = (np.arange(len(late)) + 0.5) / len(late) * (len(healthy) - 1)
    instead = np.empty(len(late))
    instead[np.argsort(actual, kind="stable")] = base_us + np.interp(place, np.arange(len(healthy)), healthy)
    result[late] = np.maximum(0.0, actual - instead)
    return result


def _own_past(lateness_us: Floats, steps: Bools) -> Floats:
    """A rank without peers: its own lateness when it was not late, around 0."""
    past = lateness_us[~steps & ~np.isnan(lateness_us)]
    return past - np.median(past) if len(past) else np.zeros(1)


def healthy_lateness(own: OwnTime, lateness_us: Floats, peers: Ints, late: Ints) -> Floats:
    """Sample of what lateness looks like without the fault, around 0."""
    # One peer's lateness mirrors the culprit's; two healthy ranks would differ by twice the peer's variance.
    sample = lateness_us[np.ix_(peers, late)] if len(peers) >= 2 else np.sqrt(2.0) * own.work[np.ix_(peers, late)]
    around: Floats = sample - np.nanmedian(sample, axis=1, keepdims=True)
    return around[~np.isnan(around)]
