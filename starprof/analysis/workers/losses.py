"""What slowness costs where nobody waits: each slow worker's own time, and nobody else's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.workers.events import Event, Relative
from starprof.analysis.workers.fleet import Fleet
from starprof.analysis.workers.levels import Group, Levels


@dataclass(frozen=True)
class Losses:
    """Lost time of the workers, in the unit of `Fleet.weights`.

    A worker that takes `exp(x)` times as long as it would loses `1 - exp(-x)` of its time. What an event takes comes
    first; a constant slowness takes its share of what is left, so that the parts add up.

    Attributes:
        fleet: the workers.
        relative: the series of the events.
        levels: the constant differences.
    """

    fleet: Fleet
    relative: Relative
    levels: Levels

    @property
    def total(self) -> float:
        """Time of all workers."""
        return float(self.fleet.weights.sum())

    def of_event(self, event: Event) -> float:
        """Time lost in an event."""
        inside = slice(event.start, event.end)
        excess = self.relative.values[event.row, inside] - self.relative.base[event.row]
        return float((self.fleet.weights[event.row, inside] * _lost(excess)).sum())

    def of_group(self, group: Group, events: list[Event]) -> float:
        """Time lost by constantly slow workers, without what their events took."""
        lost = 0.0
        for row in group.rows:
            left = self.fleet.weights[row].copy()
            for event in events:
                if event.row == row:
                    inside = slice(event.start, event.end)
                    left[inside] *= 1.0 - _lost(self.relative.values[row, inside] - self.relative.base[row])
            centre = float(np.median(self.levels.levels[list(group.reference)]))
            lost += float(left.sum()) * float(_lost(np.array([self.levels.levels[row] - centre]))[0])
        return lost

    def of_all(self, start: int, end: int, rise: float) -> float:
        """Time lost by all workers in a rise of the whole fleet, as a logarithm."""
        return float(self.fleet.weights[:, start:end].sum()) * float(_lost(np.array([rise]))[0])

    def if_waited_s(self, rows: tuple[int, ...], start: int, end: int) -> float:
        """Seconds by which these workers would hold up all others if those waited in every sample; NaN if not known."""
        if self.fleet.arbitrary or len(rows) == self.fleet.shape[0]:
            return float("nan")
        inside = np.nan_to_num(self.fleet.values[:, start:end], nan=0.0)
        held = inside[list(rows)].max(axis=0) - np.delete(inside, rows, axis=0).max(axis=0)
        return float(np.maximum(held, 0.0).sum()) / 1e6

    def own_time(self, rows: tuple[int, ...], start: int, end: int) -> float:
        """Time of some workers between two columns."""
        return float(self.fleet.weights[list(rows), start:end].sum())


def _lost(excess: Floats) -> Floats:
    share: Floats = 1.0 - np.exp(-np.maximum(np.nan_to_num(excess, nan=0.0), 0.0))
    return share
