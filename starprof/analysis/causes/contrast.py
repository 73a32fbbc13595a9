"""A measure of a late rank beside its peers in the same steps and beside its own past.

A counter that is odd on a slow rank explains nothing when its healthy peers show the same, or when the rank showed
it before it became slow. So every counter is read as the difference to whichever reference lies nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import Case
from starprof.analysis.counters import Counters, numbers

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

Span = tuple[float, float]
OverSpan = Callable[[int, Span], float]
"""(row, window in the clock of its node) to a value; NaN = not measured."""
OverSteps = Callable[[int, Bools], float]
"""(row, steps) to a value; NaN = not measured."""

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Contrast:
    """One measure of a late rank.

    Attributes:
        now: in the slow steps.
        past: of the same rank when it was healthy; NaN without a past.
        peers: median of the healthy peers in the slow steps; NaN without any.
    """

    now: float
    past: float
    peers: float

    @property
    def known(self) -> bool:
        """It was measured, and there is something to compare it with."""
        return self.now == self.now and bool(self._references)

    @property
    def gained(self) -> float:
        """Growth over the higher reference; NaN when not known."""
        return self.now - max(self._references) if self.known else NAN

    @property
    def usual_low(self) -> float:
        """The lower reference; NaN when not known."""
        return min(self._references) if self.known else NAN

    @property
    def usual_high(self) -> float:
        """The higher reference; NaN when not known."""
        return max(self._references) if self.known else NAN

    @property
    def _references(self) -> list[float]:
        return [value for value in (self.past, self.peers) if value == value]

    def words(self, unit: Callable[[float], str]) -> str:
        """The references in words: "its peers 300 W, before 298 W"."""
        parts = [f"its peers {unit(self.peers)}"] if self.peers == self.peers else []
        parts += [f"before {unit(self.past)}"] if self.past == self.past else []
        return ", ".join(parts)


def over_span(case: Case, row: int, measure: OverSpan) -> Contrast:
    """Contrast of something read over whole windows, such as the growth of a counter per second."""
    past = case.past_span_ns(row)
    return Contrast(
        measure(row, case.span_ns(row)),
        NAN if past is None else measure(row, past),
        _median([measure(peer, case.span_ns(peer)) for peer in case.peers(row)]),
    )


def over_steps(case: Case, row: int, measure: OverSteps) -> Contrast:
    """Contrast of something read in single steps, such as a gauge in the late ones."""
    enough = case.past.sum() >= case.settings.min_slow_steps
    return Contrast(
        measure(row, case.steps),
        measure(row, case.past) if enough else NAN,
        _median([measure(peer, case.steps) for peer in case.peers(row)]),
    )


def in_steps(case: Case, row: int, times_ns: Floats, steps: Bools) -> Bools:
    """Which samples were taken in the given steps of a rank, shape (N,)."""
    starts = case.own.start_ns[row]
    seen = np.flatnonzero(starts > 0)
    if len(seen) == 0:
        return np.zeros(len(times_ns), bool)
    place = np.searchsorted(starts[seen], times_ns, side="right") - 1
    step_us = float(np.nan_to_num(case.own.cycle[row, seen[-1]] + case.own.blocked[row, seen[-1]]))
    during = (place >= 0) & (times_ns <= starts[seen[-1]] + step_us * 1e3)
    return np.asarray(during & steps[seen[np.clip(place, 0, None)]])


def gauge(case: Case, row: int, rows: pd.DataFrame | None, column: str, steps: Bools) -> float:
    """Mean of a gauge over the samples of some steps; NaN when not measured."""
    if rows is None:
        return NAN
    values = numbers(rows, column)
    inside = in_steps(case, row, numbers(rows, "mono_ns"), steps) & ~np.isnan(values)
    return float(values[inside].mean()) if inside.any() else NAN


def rate(counters: Counters, rows: pd.DataFrame | None, column: str, span: Span) -> float:
    """Growth of a counter per second in a window; NaN when not measured."""
    return NAN if rows is None else counters.grew(rows, column, *span).per_second


def of_most(case: Case, found: Sequence[T | None]) -> list[T]:
    """What was found of the late ranks, when it was found of at least half of them."""
    there = [part for part in found if part is not None]
    return there if 2 * len(there) >= len(case.rows) else []


def share_of(case: Case, seconds: Sequence[float]) -> float:
    """Share of the late ranks' mean excess that `seconds` of single late ranks cover, 0..1."""
    if case.excess_s <= 0:
        return 0.0
    return max(0.0, min(1.0, sum(seconds) / len(case.rows) / case.excess_s))


def _median(values: Sequence[float]) -> float:
    seen = [value for value in values if value == value]
    return float(np.median(seen)) if seen else NAN
