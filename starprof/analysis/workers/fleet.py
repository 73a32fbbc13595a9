"""The workers' own times as matrices, and the words for a moment and an amount in the units of their source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Bools, Floats, Ints
from starprof.analysis.causes.base import ms
from starprof.model.rundata import RankInfo, RunData

ARBITRARY = "arbitrary"
MAX_HOLE_SAMPLES = 3.0
"""A hole in the samples counts as at most this many of them: nobody knows what happened in it."""


@dataclass(frozen=True)
class Fleet:
    """Own times of workers, samples in which at least two of them were seen.

    Attributes:
        infos: the workers, row by row.
        steps: sample (or step) numbers, shape (S,).
        values: own time, shape (R, S), NaN = not seen; microseconds, or the source's unit times `scale`.
        at_s: the source's own time of each sample in seconds, shape (S,); None when it told none.
        scale: `values` are this many times what stands in the source.
        arbitrary: the source's unit is not known.
        clock: name of the source's time column.
        whole_steps: the times are whole steps; else only a part of them, and who waits in the rest is not known.
    """

    infos: tuple[RankInfo, ...]
    steps: Ints
    values: Floats
    at_s: Floats | None
    scale: float
    arbitrary: bool
    clock: str
    whole_steps: bool = True

    @cached_property
    def logs(self) -> Floats:
        """Logarithms: a difference of 0.1 is about 10 %."""
        logs: Floats = np.log(self.values)
        return logs

    @property
    def shape(self) -> tuple[int, int]:
        """(R, S)."""
        rows, columns = self.values.shape
        return rows, columns

    @cached_property
    def weights(self) -> Floats:
        """What each seen sample stands for, shape (R, S): seconds of the worker's time (of its unit, when unknown)."""
        seen: Bools = ~np.isnan(self.values)
        if self.at_s is None:
            return np.where(seen, self.values / (self.scale if self.arbitrary else 1e6), 0.0)
        apart = np.diff(self.at_s)
        usual = float(np.median(apart)) if len(apart) else 0.0
        width = np.minimum(np.r_[apart, usual], MAX_HOLE_SAMPLES * usual)
        return np.where(seen, width[None, :], 0.0)

    @property
    def in_seconds(self) -> bool:
        """Whether `weights` are seconds."""
        return self.at_s is not None or not self.arbitrary

    def rank(self, row: int) -> int:
        """Number of a worker."""
        return self.infos[row].rank

    def amount(self, value: float) -> str:
        """An own time in words: with its unit, or as it stands in the source."""
        return f"{value / self.scale:.4g}" if self.arbitrary else ms(value)

    def moment(self, column: int) -> str:
        """A sample's time in the source's own words: "t = 1811 s", or "step 17"."""
        if self.at_s is None:
            return f"step {int(self.steps[column])}"
        return f"{self.clock} = {plain(float(self.at_s[column]))} s"

    def stretch(self, start: int, end: int) -> str:
        """The samples [start, end) in words."""
        last = end - 1
        numbers = f"samples {int(self.steps[start])} to {int(self.steps[last])}"
        if self.at_s is None:
            return f"step {int(self.steps[start])} to {int(self.steps[last])}"
        return f"{self.moment(start)} to {plain(float(self.at_s[last]))} s ({numbers})"


def plain(value: float) -> str:
    """A time without trailing zeros."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def fleet_of(run: RunData) -> Fleet | None:
    """The workers that have times, None when fewer than two samples could be compared or nobody has any."""
    values = run.steps.columns.get("dur_us")
    if values is None:
        return None
    usable = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    least = min(2, int((~np.isnan(usable)).any(axis=1).sum()))
    shared = np.flatnonzero((~np.isnan(usable)).sum(axis=0) >= max(1, least))
    rows = np.flatnonzero((~np.isnan(usable[:, shared])).any(axis=1))
    if len(rows) == 0 or len(shared) == 0:
        return None
    infos = tuple(run.ranks[i] for i in rows)
    detail = infos[0].detail
    clock = str(detail.get("clock") or "")
    return Fleet(
        infos=infos,
        steps=run.steps.steps[shared],
        values=usable[np.ix_(rows, shared)],
        at_s=_seconds(run.steps.start_mono_ns[np.ix_(rows, shared)]) if clock else None,
        scale=float(detail.get("scale") or 1.0),
        arbitrary=detail.get("unit") == ARBITRARY,
        clock=clock,
        whole_steps=bool(detail.get("whole_steps", True)),
    )


def _seconds(starts_ns: Ints) -> Floats:
    """The earliest time of each sample over the workers that have it."""
    earliest = np.where(starts_ns > 0, starts_ns, np.iinfo(np.int64).max).min(axis=0)
    seconds: Floats = np.round(np.maximum.accumulate(earliest) / 1e9, 6)
    return seconds
