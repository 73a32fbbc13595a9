"""Step records of a stored run: all of them as matrices, or piece by piece when they are too many for that.

Rows lie in a file as they came, or, where a whole run was saved at once, in blocks of `BLOCK_STEPS` steps, rank by
rank within a block: so a rank's values lie together, and rank and step cost next to nothing. Whoever reads a stretch of
steps gets by DuckDB's own minima and maxima of row groups only what may lie in it, in either order.
"""
# ruff: noqa: S608 - names in statements are the schema's own

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from starprof.model.rundata import RunData, Steps
from starprof.model.stepsource import StepBlock
from starprof.model.tables.job import STEP
from starprof.store.base import ReadableRun
from starprof.store.starts import reckoned_starts

BLOCK_STEPS = 2_048
"""Steps of a block: DuckDB packs so many values together, and packs evenly rising numbers into nothing."""

VALUES = tuple(n for n in STEP.names if n not in {"attempt", "rank", "step", "start_mono_ns"})
MAX_HOLES = 4
_CHUNK_ROWS = 250_000
_PIECE_BYTES = 8 << 20
_BLOCKWISE_MB = 16


def load_steps(
    run: ReadableRun, attempt: int, ranks: Sequence[int], steps: NDArray[np.int64], columns: Sequence[str] = VALUES
) -> Steps:
    """Step records of some steps as matrices; a few ranks at a time, so that only the matrices themselves are large."""
    shape = (len(ranks), len(steps))
    matrices: dict[str, NDArray[np.float64]] = {name: np.full(shape, np.nan) for name in columns}
    starts = np.zeros(shape, dtype=np.int64)
    if not len(steps):
        return Steps(steps, matrices, starts)
    listed = run.select_list(STEP)
    values = ", ".join(f"coalesce({name}::DOUBLE, 'nan'::DOUBLE) AS {name}" for name in columns)
    known_ranks = np.asarray(ranks, dtype=np.int64)
    at_once = max(1, _CHUNK_ROWS // len(steps))
    told = True
    for first in range(0, len(ranks), at_once):
        some = known_ranks[first : first + at_once]
        chunk = run.arrays(
            f"SELECT rank, step, start_mono_ns, {values} FROM (SELECT {listed} FROM step) "
            "WHERE attempt = ? AND rank BETWEEN ? AND ? AND step BETWEEN ? AND ?",
            [attempt, int(some[0]), int(some[-1]), int(steps[0]), int(steps[-1])],
        )
        where = (np.searchsorted(known_ranks, chunk["rank"]), np.searchsorted(steps, chunk["step"]))
        started = chunk["start_mono_ns"]
        told = told and not (np.ma.isMaskedArray(started) and started.mask.any())
        starts[where] = np.ma.filled(started, 0)
        for name, matrix in matrices.items():
            matrix[where] = chunk[name]
    if not told and "dur_us" in matrices:
        starts = np.where(starts > 0, starts, reckoned_starts(matrices["dur_us"]))
    return Steps(steps, matrices, starts)


def step_numbers(run: ReadableRun, attempt: int) -> NDArray[np.int64]:
    """Numbers of all recorded steps, rising."""
    numbers = run.arrays("SELECT DISTINCT step FROM step WHERE attempt = ? ORDER BY step", [attempt])["step"]
    return np.asarray(numbers, dtype=np.int64)


def block_edges(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Places [start, stop) of the blocks in which steps with these numbers lie in a file.

    Blocks begin at multiples of `BLOCK_STEPS`, as readers expect; where step numbers lie far apart, they are counted.
    """
    if not len(numbers):
        return []
    sparse = int(numbers[-1]) - int(numbers[0]) >= MAX_HOLES * len(numbers)
    blocks = (np.arange(len(numbers)) if sparse else numbers) // BLOCK_STEPS
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(numbers)]
    return list(pairwise(edges))


class StoredSteps:
    """The step records of one attempt in a run file or database that stays open: a `StepSource`.

    Attributes:
        shell: the run without its step records.
        rows: step records of the attempt.
    """

    def __init__(self, run: ReadableRun, shell: RunData) -> None:
        self.shell = shell
        self._run = run
        self._attempt = shell.attempt
        self._ranks = np.array([info.rank for info in shell.ranks], dtype=np.int64)
        self._numbered = np.array_equal(self._ranks, np.arange(len(self._ranks)))
        self._there = set(run.columns(STEP.name))
        ((self.rows, self._first, self._last),) = run.query(
            "SELECT count(*), min(step), max(step) FROM step WHERE attempt = ?", [self._attempt]
        )

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of all steps from the first to the last; only the recorded ones where most were not."""
        if not self.rows:
            return np.zeros(0, np.int64)
        length = self._last - self._first + 1
        if length * len(self._ranks) > MAX_HOLES * self.rows:
            return step_numbers(self._run, self._attempt)
        return np.arange(self._first, self._last + 1, dtype=np.int64)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns that hold any value."""
        return tuple(name for name in VALUES if name in self._there and self._any(f"{name} IS NOT NULL"))

    @cached_property
    def zeros(self) -> frozenset[str]:
        """Columns that hold nothing but zeros: they need not be read."""
        return frozenset(name for name in self.columns if not self._any(f"{name} <> 0"))

    def whole(self) -> RunData:
        """The run with all its step records in memory."""
        numbers = step_numbers(self._run, self._attempt) if self.rows else np.zeros(0, np.int64)
        return replace(self.shell, steps=load_steps(self._run, self._attempt, self._ranks.tolist(), numbers))

    def blocks(self, first: int, end: int, size: int, columns: Sequence[str]) -> Iterator[StepBlock]:
        """Some steps in order, at most `size` at a time; read from the file in larger pieces."""
        wanted = [name for name in columns if name not in self.zeros]
        self._run.limit_memory(_BLOCKWISE_MB)
        for start, stop in self._pieces(first, end, size, len(wanted)):
            matrices = self._read(start, stop, wanted)
            for begin in range(start, stop, size):
                part = slice(begin - start, min(begin + size, stop) - start)
                steps = self.numbers[start + part.start : start + part.stop]
                zeros = np.zeros((len(steps), len(self._ranks)), np.float32)
                block = {name: np.ascontiguousarray(values[:, part].T) for name, values in matrices.items()}
                yield StepBlock(steps, {name: block.get(name, zeros) for name in columns})

    def raw(self, first: int, end: int) -> RunData:
        """Some steps as matrices."""
        steps = load_steps(self._run, self._attempt, self._ranks.tolist(), self.numbers[first:end], self.columns)
        return replace(self.shell, steps=steps)

    def starts(self, places: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """`start_mono_ns` of single steps, shape (R, number of places); None when none was measured."""
        if "start_mono_ns" not in self._there or not self._any("start_mono_ns IS NOT NULL"):
            return None
        steps = self.numbers[places]
        starts = np.zeros((len(self._ranks), len(places)), np.int64)
        if not len(places):
            return starts
        found = self._run.arrays(
            "SELECT rank, step, coalesce(start_mono_ns, 0) AS start FROM step "
            f"WHERE attempt = ? AND step IN ({', '.join(map(str, steps.tolist()))})",
            [self._attempt],
        )
        starts[self._rows_of(found["rank"]), np.searchsorted(steps, found["step"])] = found["start"]
        return starts

    def _pieces(self, first: int, end: int, size: int, columns: int) -> Iterator[tuple[int, int]]:
        """Stretches to read at once: bounded, and no two in one block of the file unless it is too large."""
        most = _PIECE_BYTES // (4 * max(1, len(self._ranks)) * max(1, columns))
        length = BLOCK_STEPS
        while length > max(most, size):
            length //= 2
        start = first
        while start < end:
            border = (int(self.numbers[start]) // length + 1) * length
            stop = min(end, int(np.searchsorted(self.numbers, border)), start + length)
            yield start, stop
            start = stop

    def _read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Columns of some steps, each of shape (R, S); NaN = no record."""
        steps = self.numbers[start:stop]
        matrices = {name: np.full((len(self._ranks), len(steps)), np.nan, np.float32) for name in columns}
        flat = {name: matrix.reshape(-1) for name, matrix in matrices.items()}
        values = "".join(f", coalesce({name}::FLOAT, 'nan'::FLOAT) AS {name}" for name in columns)
        rows = self._run.batches(
            f"SELECT rank::INTEGER AS rank, (step - {steps[0]})::INTEGER AS step{values} FROM step "
            f"WHERE attempt = {self._attempt} AND step BETWEEN {steps[0]} AND {steps[-1]}"
        )
        dense = int(steps[-1]) - int(steps[0]) + 1 == len(steps)
        for batch in rows:
            at = batch["step"] if dense else np.searchsorted(steps, batch["step"] + steps[0])
            place = self._rows_of(batch["rank"]) * len(steps) + at
            for name, target in flat.items():
                target[place] = batch[name]
        return matrices

    def _rows_of(self, ranks: NDArray[np.integer]) -> NDArray[np.int64]:
        """Rows of ranks in the matrices."""
        if self._numbered:
            return ranks.astype(np.int64)
        return np.searchsorted(self._ranks, ranks).astype(np.int64)

    def _any(self, condition: str) -> bool:
        """Whether any row of the attempt fulfils a condition; minima and maxima of row groups answer most of it."""
        found = self._run.query(f"SELECT 1 FROM step WHERE attempt = ? AND {condition} LIMIT 1", [self._attempt])
        return bool(found)
