"""What a cause rule gets and gives: the contract of `starprof.analysis.causes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.counters import Counters
from starprof.analysis.own_time import OwnTime
from starprof.analysis.phases import PhaseExcess
from starprof.analysis.settings import Settings

if TYPE_CHECKING:
    from starprof.model.rundata import RunData


MAX_PEERS = 12
MIN_IN_PHASES = 0.1
"""A rule that explains certain phases looks no further when they carry less of the loss than this."""

COINCIDES = 0.7
"""Certainty of a cause that falls together with the slowness, though its own time was not counted."""


@dataclass(frozen=True)
class Case:
    """One slowness whose cause is asked for.

    Attributes:
        rows: the late ranks.
        steps: late steps, shape (S,).
        past: the same ranks' healthy steps, shape (S,); all False when there are none.
        window: first and last column of the slowness.
        excess_s: seconds by which one late rank was late, in all.
        phases: which spans carry it.
        period: period in steps of a periodic one.
        blamed: all late ranks of the run, no references for others, shape (R,).
        others: late ranks that are not in `rows` because an even selection of very many stands for all.
        lost_us: per late rank the time that each step lost, shape (S,).
    """

    run: RunData
    own: OwnTime
    counters: Counters
    settings: Settings
    rows: tuple[int, ...]
    steps: Bools
    past: Bools
    window: tuple[int, int]
    excess_s: float
    phases: PhaseExcess
    period: int | None
    blamed: Bools
    lost_us: Mapping[int, Floats] = field(default_factory=dict)
    others: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks."""
        return tuple(sorted(self.own.rank(row) for row in (*self.rows, *self.others)))

    @property
    def who(self) -> str:
        """The ranks in words."""
        return rank_names(self.ranks)

    def peers(self, row: int) -> list[int]:
        """Rows of healthy ranks that a late one is compared with; of very many, an even selection."""
        same = self.own.groups == self.own.groups[row]
        healthy = np.setdiff1d(np.flatnonzero(same & ~self.blamed), (*self.rows, *self.others))
        return [int(i) for i in healthy[:: -(-len(healthy) // MAX_PEERS) or 1]]

    def thinned(self) -> Case:
        """The same with at most `MAX_PEERS` late ranks to look at."""
        chosen = self.rows[:: -(-len(self.rows) // MAX_PEERS) or 1]
        return replace(self, rows=chosen, others=tuple(sorted({*self.rows, *self.others} - set(chosen))))

    def span_ns(self, row: int) -> tuple[float, float]:
        """The slow window in the clock of the rank's node."""
        return span_ns(self.own, row, *self.window)

    def past_span_ns(self, row: int) -> tuple[float, float] | None:
        """The longest healthy stretch of the same ranks, in the clock of the rank's node."""
        stretch = longest_run(self.past)
        return span_ns(self.own, row, *stretch) if stretch[1] - stretch[0] >= self.settings.min_slow_steps else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause with its evidence.

    Attributes:
        share: part of the slowness that the evidence covers, 0..1.
        certainty: 1 where the lost time itself was counted; less where a cause is concluded from what coincides.
        against: what speaks against other explanations, or limits this one.
        partly: words for evidence that does not cover enough, e.g. "run-queue delay of 0.4 s".
    """

    cause: str
    share: float
    evidence: tuple[str, ...]
    action: str
    verify: str
    next: str = ""
    partly: str = ""
    against: tuple[str, ...] = ()
    certainty: float = 1.0


Rule = Callable[[Case], Explanation | None]


def span_ns(own: OwnTime, row: int, first: int, end: int) -> tuple[float, float]:
    """Start and end of the steps [first, end) in the clock of the rank's node."""
    starts = own.start_ns[row]
    last = min(end, len(starts)) - 1
    step_us = own.cycle[row, last] + own.blocked[row, last]
    duration = 0.0 if np.isnan(step_us) else float(step_us) * 1e3
    seen = np.flatnonzero(starts[first : last + 1] > 0)
    if len(seen) == 0:
        return 0.0, 0.0
    return float(starts[first + seen[0]]), float(starts[first + seen[-1]]) + duration


def longest_run(mask: Bools) -> tuple[int, int]:
    """Longest stretch [start, end) of True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    if len(edges) == 0:
        return 0, 0
    starts, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best])


def rank_names(ranks: tuple[int, ...]) -> str:
    """Ranks in words: rank 3; ranks 1 and 2; ranks 0-3 and 8."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [w for p in parts for w in ([f"{p[0]}-{p[-1]}"] if len(p) > 2 else [str(r) for r in p])]
    return "ranks " + (", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0])


def ms(us: float) -> str:
    """Microseconds for people: 3 figures, in us, ms or s."""
    for limit, unit, factor in ((1e3, "us", 1.0), (1e6, "ms", 1e3), (float("inf"), "s", 1e6)):
        if abs(us) < limit:
            value = us / factor
            return f"{value:.0f} {unit}" if abs(value) >= 100 or unit == "us" else f"{value:.3g} {unit}"
    raise AssertionError  # the last limit is infinite


def pct(share: float) -> str:
    """A share as a percentage for people."""
    value = 100.0 * share
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"
