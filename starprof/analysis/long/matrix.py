"""A run in memory as a source of step blocks: its matrices fit, but not what the whole diagnosis makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from starprof.analysis.arrays import Ints
from starprof.model.rundata import RunData, Steps
from starprof.model.stepsource import StepBlock


class MatrixSource:
    """Reads blocks out of a run's rank x step matrices."""

    def __init__(self, run: RunData) -> None:
        self._run = run

    @cached_property
    def shell(self) -> RunData:
        """The run without its step records."""
        return replace(self._run, steps=self._part(slice(0, 0)))

    @property
    def numbers(self) -> Ints:
        """Step numbers, shape (S,)."""
        return self._run.steps.steps

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns that hold any value."""
        return tuple(name for name, values in self._run.steps.columns.items() if not np.isnan(values).all())

    def whole(self) -> RunData:
        """The run itself."""
        return self._run

    def blocks(self, first: int, end: int, size: int, columns: Sequence[str]) -> Iterator[StepBlock]:
        """Copies of some steps, step by step."""
        steps = self._run.steps
        for start in range(first, end, size):
            part = slice(start, min(start + size, end))
            block = {name: np.ascontiguousarray(steps[name][:, part].T, dtype=np.float32) for name in columns}
            yield StepBlock(steps.steps[part], block)

    def raw(self, first: int, end: int) -> RunData:
        """Views of some steps."""
        return replace(self._run, steps=self._part(slice(first, end)))

    def starts(self, places: Ints) -> Ints:
        """Start of single steps, shape (R, number of places)."""
        return self._run.steps.start_mono_ns[:, places]

    def _part(self, part: slice) -> Steps:
        steps = self._run.steps
        columns = {name: values[:, part] for name, values in steps.columns.items()}
        return Steps(steps.steps[part], columns, steps.start_mono_ns[:, part])
