"""Means over windows of steps: the run as few enough records that the whole diagnosis can judge them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.long.work import Singles
from starprof.model.rundata import RunData, Steps
from starprof.model.schema import STEP_SPANS
from starprof.model.stepsource import StepBlock, StepSource
from starprof.model.tables.job import STEP

KEPT_COLUMNS = (
    "dur_us",
    *STEP_SPANS,
    "arrival_us",
    *(name for name in STEP.names if name.startswith("gpu_")),
    *("micro_batches", "samples", "tokens", "hook_ns"),
)


def width_for(steps: int, most: int) -> int:
    """Steps of a window, a power of two, so that there are at most so many windows."""
    width = 1
    while -(-steps // width) > most:
        width *= 2
    return width


class Windows:
    """Sums over windows of `width` steps, counted from a place on."""

    def __init__(self, ranks: int, first: int, steps: int, width: int) -> None:
        self.first, self.width = first, width
        self.count = -(-steps // width)
        self._records = np.zeros((self.count, ranks))
        self._sums: dict[str, Floats] = {}
        self._known: dict[str, Floats] = {}

    def sums_of(self, block: StepBlock, place: int) -> dict[str, tuple[Floats, Floats | None]]:
        """Sums over each window's part of a block, and how many values there were (None: as many as steps).

        Args:
            block: begins at this place.
            place: see `StepSource`.
        """
        pieces = _edges(place - self.first, len(block.steps), self.width)
        return {name: _sums(values, pieces) for name, values in block.columns.items() if name in KEPT_COLUMNS}

    def add(self, place: int, steps: int, parts: dict[str, tuple[Floats, Floats | None]]) -> None:
        """Add what `sums_of` made of the block of so many steps that begins at a place."""
        offset = place - self.first
        edges = _edges(offset, steps, self.width)
        lengths = np.diff(np.r_[edges, steps]).astype(np.float64)[:, None]
        inside = slice(offset // self.width, offset // self.width + len(edges))
        for name, (sums, known) in parts.items():
            if name not in self._sums:
                self._sums[name] = np.zeros_like(self._records)
                self._known[name] = np.zeros_like(self._records)
            self._sums[name][inside] += sums
            self._known[name][inside] += lengths if known is None else known
        self._records[inside] = self._known["dur_us"][inside]

    def run(self, source: StepSource) -> RunData:
        """The run as one mean record per window, named by the window's first step.

        A window counts for a rank that recorded more than half of what others did in it.
        """
        count = self._records.T
        known = count * 2 > count.max(axis=0, keepdims=True, initial=0.0)
        columns = {}
        for name, sums in self._sums.items():
            values = self._known[name].T
            columns[name] = np.where(known & (values > 0), sums.T / np.maximum(values, 1.0), np.nan)
        places = self.first + np.arange(self.count, dtype=np.int64) * self.width
        starts = np.where(known, self._starts(source, places), 0)
        shell = source.shell
        return replace(shell, steps=Steps(source.numbers[places], columns, starts))

    def _starts(self, source: StepSource, places: Ints) -> Ints:
        """Start of each window, shape (R, W); steps follow each other where no start was measured."""
        starts = source.starts(places)
        if starts is not None:
            return starts
        lasting = self._sums["dur_us"].T if "dur_us" in self._sums else self._records.T
        return 1 + np.rint((np.cumsum(lasting, axis=1) - lasting) * 1000.0).astype(np.int64)


def _edges(offset: int, steps: int, width: int) -> Ints:
    """Where in a block of so many steps the parts of windows begin, shape (number of parts,)."""
    head = -offset % width
    edges = np.arange(head, steps, width)
    return np.r_[0, edges] if head and steps else edges


def _sums(values: Singles, edges: Ints) -> tuple[Floats, Floats | None]:
    """Sums between edges, and counts of what is not NaN where anything is."""
    bounds = [*edges.tolist(), len(values)]
    sums = _between(values, bounds)
    if np.isfinite(sums).all():
        return sums, None
    known = ~np.isnan(values)
    filled = np.where(known, values, np.float32(0.0))
    return _between(filled, bounds), _between(known.astype(np.float32), bounds)


def _between(values: Singles, bounds: list[int]) -> Floats:
    """Sums of rows between bounds, shape (bounds - 1, R)."""
    lengths = np.diff(bounds)
    whole = int(lengths[0])
    if len(lengths) > 1 and (lengths == whole).all():
        grouped = values.reshape(len(lengths), whole, -1)
        return np.asarray(grouped.sum(axis=1), dtype=np.float64)
    parts = [values[a:b].sum(axis=0) for a, b in pairwise(bounds)]
    return np.asarray(parts, dtype=np.float64)
