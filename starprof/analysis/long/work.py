"""What `own_time` and `peers` do, for blocks of steps in single precision: fast, and one step's ranks side by side."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starprof.analysis.arrays import Ints
from starprof.analysis.own_time import SPECIAL
from starprof.model.stepsource import StepBlock

Singles: TypeAlias = NDArray[np.float32]

EXACT_RANKS = 64
"""With more ranks than this the median of all stands for the median of all others: they differ by less than 0.1 %."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which columns a rank's own time is made of, as `own_time` makes it.

    Attributes:
        blocked: columns that tell the waiting, the better one first; where it is NaN the next one counts.
        optimizer: columns of the optimizer, likewise: its time belongs to the next step's reduction.
        special: work done now and then, which is left out of the comparison.
    """

    blocked: tuple[str, ...]
    optimizer: tuple[str, ...]
    special: tuple[str, ...]

    @classmethod
    def of(cls, columns: Collection[str], on_gpu: bool) -> Recipe:
        """For a source with these columns, whose GPU times count."""

        def there(*names: str) -> tuple[str, ...]:
            return tuple(n for n in names if n in columns and (on_gpu or not n.startswith("gpu_")))

        return cls(
            there("gpu_blocked_us", "blocked_us"),
            there("gpu_optimizer_us", "optimizer_us"),
            there(*(f"{name}_us" for name in SPECIAL)),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return ("dur_us", *self.blocked, *self.optimizer, *self.special)


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Own time of all ranks in some steps.

    Attributes:
        steps: numbers of the steps that at least half of the ranks recorded, shape (S,).
        rows: their rows in the block, same shape.
        work: regular own time, shape (S, R), NaN = no record.
        cycle: all own time, same shape.
        transfer: what even the last rank to arrive waited, shape (S,).
        whole: nothing is NaN.
    """

    steps: Ints
    rows: Ints
    work: Singles
    cycle: Singles
    transfer: Singles
    whole: bool


def block_work(block: StepBlock, recipe: Recipe) -> BlockWork:
    """Own time in a block; without any steps when nobody recorded them."""
    duration = block.columns["dur_us"]
    blocked = _first_known(block, recipe.blocked)
    cycle = duration if blocked is None else duration - blocked
    optimizer = _first_known(block, recipe.optimizer)
    if optimizer is not None:
        optimizer = np.nan_to_num(optimizer, nan=0.0)
        follows = np.flatnonzero(np.diff(block.steps) == 1)
        cycle = cycle.copy()
        cycle[follows + 1] += optimizer[follows] - optimizer[follows + 1]
    work = cycle
    for name in recipe.special:
        work = work - np.nan_to_num(block.columns[name], nan=0.0)
    whole = all_finite(work)
    rows = np.arange(len(block.steps))
    if not whole:
        recorded = ~np.isnan(work)
        rows = np.flatnonzero(recorded.sum(axis=1) >= max(1, (int(recorded.any(axis=0).sum()) + 1) // 2))
        work, cycle = work[rows], cycle[rows]
        blocked = blocked[rows] if blocked is not None else None
    transfer = np.zeros(len(rows), np.float32)
    if blocked is not None and len(rows):
        transfer = np.nan_to_num(np.fmin.reduce(blocked, axis=1), nan=0.0)
    return BlockWork(block.steps[rows], rows, work, cycle, transfer, whole)


def all_finite(values: Singles) -> bool:
    """Whether nothing is NaN or infinite: a sum is when any part of it is, the cheapest look at a whole block."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()))


def _first_known(block: StepBlock, names: tuple[str, ...]) -> Singles | None:
    """The first of some columns, holes filled from the next one; None when there is no column."""
    if not names:
        return None
    values = block.columns[names[0]]
    for name in names[1:]:
        values = np.where(np.isnan(values), block.columns[name], values)
    return values


def centre_of(work: Singles, whole: bool) -> Singles:
    """Median over the ranks of each step, shape (S,)."""
    ranks = work.shape[1]
    half = ranks // 2
    if not whole:
        ordered = np.sort(work, axis=1)  # NaN goes last
        count = np.sum(~np.isnan(work), axis=1)
        rows = np.arange(len(work))
        lower, upper = ordered[rows, np.maximum(count - 1, 0) // 2], ordered[rows, np.minimum(count // 2, ranks - 1)]
        return np.asarray((lower + upper) / 2, dtype=np.float32)
    ordered = np.partition(work, half, axis=1)
    upper = ordered[:, half]
    if ranks % 2:
        return upper
    # One partition and a maximum: numpy's median partitions at two places at once, which is ten times slower.
    return np.asarray((upper + ordered[:, :half].max(axis=1)) / 2, dtype=np.float32)


def reference_of(work: Singles, whole: bool, groups: Ints, centre: Singles | None = None) -> Singles:
    """Centre of each rank's peers without itself, shape (S, R) or (S, 1); NaN where it has none.

    Args:
        work: own time, shape (S, R).
        whole: nothing in it is NaN.
        groups: see `peers.peer_groups`.
        centre: see `centre_of`, when it is known.
    """
    numbers = np.unique(groups)
    if len(numbers) == 1 and centre is not None and whole and work.shape[1] > EXACT_RANKS:
        return centre[:, None]
    if len(numbers) == 1:
        return _of_others(work, whole)
    reference = np.empty_like(work)
    for number in numbers:
        members = np.flatnonzero(groups == number)
        reference[:, members] = _of_others(np.ascontiguousarray(work[:, members]), whole)
    return reference


def _of_others(work: Singles, whole: bool) -> Singles:
    """Median over the other ranks; over all ranks when they are so many that it makes no difference."""
    ranks = work.shape[1]
    if whole and ranks > EXACT_RANKS:
        return centre_of(work, whole)[:, None]
    ordered = np.sort(work, axis=1)  # NaN goes last
    count = np.full((len(work), 1), ranks) if whole else np.sum(~np.isnan(work), axis=1, keepdims=True)
    half = count // 2

    def at(place: Ints) -> Singles:
        return np.take_along_axis(ordered, np.clip(place, 0, ranks - 1), axis=1)

    below, middle, above = at(half - 1), at(half), at(half + 1)
    odd = np.where(work < middle, middle + above, np.where(work > middle, below + middle, below + above)) / 2
    even = np.where(work < middle, middle, below)
    others = np.where(count % 2 == 1, odd, even)
    return np.where(count >= 2, others, np.float32(np.nan)).astype(np.float32, copy=False)
