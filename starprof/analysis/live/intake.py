"""From the times of new steps to the lateness that the rules look at: many steps at once, or one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from starprof.analysis.arrays import Bools, Floats, Ints, column_medians
from starprof.analysis.live.ring import Ring
from starprof.analysis.peers import median_of_others
from starprof.analysis.settings import Settings

RECENT_STEPS = 32


@dataclass(frozen=True, slots=True)
class Taken:
    """New steps, not yet remembered; N = steps, oldest first.

    Attributes:
        steps: step numbers, shape (N,).
        own_us: own time, NaN where not recorded, shape (R, N).
        transfer_us: shape (N,).
        middle_us: median own time of the ranks, shape (N,).
        healthy_us: typical recent step time if nobody were late, shape (N,).
        excess_us: own time minus the peers' centre, shape (R, N).
        late: lateness that counts, as in `Comparison.capped`, NaN where not recorded, shape (R, N).
    """

    steps: Ints
    own_us: Floats
    transfer_us: Floats
    middle_us: Floats
    healthy_us: Floats
    excess_us: Floats
    late: Floats

    def part(self, start: int, end: int) -> Taken:
        """The steps [start, end) of these."""
        kept = slice(start, end)
        return Taken(
            self.steps[kept],
            self.own_us[:, kept],
            self.transfer_us[kept],
            self.middle_us[kept],
            self.healthy_us[kept],
            self.excess_us[:, kept],
            self.late[:, kept],
        )


class Intake:
    """Holds the remembered steps and what a new one is compared with.

    Attributes:
        ring: the remembered steps.
        blamed: ranks that are no reference for others, shape (R,).
        usual: lateness that is usual for a rank, as in `Comparison.capped`.
        alone_usual_us: lowest lasting own time of each rank, for those without peers, shape (R,).
        excess_us: own time minus the peers' centre in the newest step, shape (R,).
        run_us: wall time of all steps.
    """

    def __init__(self, groups: Ints, size: int, settings: Settings) -> None:
        ranks = len(groups)
        self.ring = Ring(ranks, size)
        self.blamed = np.zeros(ranks, bool)
        self.usual = 0.0
        self.alone_usual_us = np.full(ranks, np.nan)
        self.excess_us = np.zeros(ranks)
        self.run_us = 0.0
        self._members = _members(groups)
        self._cap = settings.lateness_cap
        self._middle_us = np.zeros(0)
        self._transfer_us = np.zeros(0)

    @property
    def healthy_us(self) -> float:
        """Typical recent step time if nobody were late, as in `OwnTime`; 0 before the first step."""
        return float(np.median(self._middle_us + self._transfer_us)) if len(self._middle_us) else 0.0

    @property
    def middle_us(self) -> float:
        """Typical recent own time; 0 before the first step."""
        return float(np.median(self._middle_us)) if len(self._middle_us) else 0.0

    def take(self, steps: Ints, own_us: Floats, blocked_us: Floats) -> Taken:
        """Lateness of new steps. In each of them some rank must have a record, shape (N,) and (R, N)."""
        transfer = np.fmin.reduce(blocked_us, axis=0)
        transfer = np.where(np.isnan(transfer), 0.0, transfer)
        middle = column_medians(own_us)
        healthy = self._healthy(middle + transfer)
        excess = self._excess(own_us)
        late = np.clip(excess / np.maximum(healthy, 1.0), -self._cap, self._cap) - self.usual
        return Taken(steps, own_us, transfer, middle, healthy, excess, late)

    def remember(self, new: Taken) -> None:
        """Remember these steps."""
        self.ring.push(new.steps, new.own_us, new.transfer_us, new.late)
        self._middle_us = np.concatenate([self._middle_us, new.middle_us])[-RECENT_STEPS:]
        self._transfer_us = np.concatenate([self._transfer_us, new.transfer_us])[-RECENT_STEPS:]
        self.excess_us = new.excess_us[:, -1]
        self.run_us += float((np.fmax.reduce(new.own_us, axis=0) + new.transfer_us).sum())

    def _healthy(self, new_us: Floats) -> Floats:
        """Median of the last steps up to each new one, shape (N,)."""
        known = self._middle_us + self._transfer_us
        series = np.concatenate([known, new_us])
        early = max(0, min(len(new_us), RECENT_STEPS - 1 - len(known)))
        medians = np.empty(len(new_us))
        for i in range(early):
            medians[i] = np.median(series[: len(known) + i + 1])
        if early < len(new_us):
            last = sliding_window_view(series, RECENT_STEPS)[early - len(new_us) :]
            medians[early:] = np.median(last, axis=1)
        return medians

    def _excess(self, own_us: Floats) -> Floats:
        """Own time minus the peers' centre; of a rank without peers, above its own past, shape (R, N)."""
        late = own_us - self._centre(own_us)
        alone = np.isnan(late) & ~np.isnan(self.alone_usual_us)[:, None] & ~np.isnan(own_us)
        if alone.any():
            usual = self.alone_usual_us[:, None]
            relative = own_us / usual
            late = np.where(alone, (relative - median_of_others(relative)) * usual, late)
        return late

    def _centre(self, own_us: Floats) -> Floats:
        """Median of the other peers that are not late themselves, shape (R, N)."""
        ranks, count = own_us.shape
        good = np.full((ranks + 1, count), np.nan)
        good[:-1] = np.where(self.blamed[:, None], np.nan, own_us)
        others = median_of_others(good[self._members].reshape(len(self._members), -1))
        centre = np.empty((ranks + 1, count))
        centre[self._members] = others.reshape(*self._members.shape, count)
        return centre[:-1]


def _members(groups: Ints) -> Ints:
    """Rows of each peer group as one column, padded with the number of ranks, shape (largest group, groups)."""
    columns = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    padded = np.full((max(len(c) for c in columns), len(columns)), len(groups))
    for i, column in enumerate(columns):
        padded[: len(column), i] = column
    return padded


def unmeasured(own_us: Floats) -> Bools:
    """Steps of which most ranks have no record, shape (N,)."""
    few: Bools = np.isnan(own_us).sum(axis=0) * 2 > len(own_us)
    return few
