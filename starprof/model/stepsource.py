"""Step records that are read piece by piece: what a run too long for memory is diagnosed from.

A store or an importer fulfils `StepSource`; `starprof.analysis.long` reads it. Steps are counted by their place among
the recorded ones (0 is the first), because their numbers may have holes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from starprof.model.rundata import RunData


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Some steps of all ranks, step by step.

    Attributes:
        steps: step numbers, shape (S,).
        columns: per step-table column an array of shape (S, R), one step's ranks side by side; microseconds or
            counts, NaN = no record or NULL. Single precision holds microseconds of up to 16 s exactly.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float32]]


class StepSource(Protocol):
    """One attempt of a run whose step records need not fit into memory."""

    @property
    def shell(self) -> RunData:
        """The run without its step records."""
        ...

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of all recorded steps, rising, shape (S,)."""
        ...

    @property
    def columns(self) -> Sequence[str]:
        """Step-table columns that hold any value."""
        ...

    def blocks(self, first: int, end: int, size: int, columns: Sequence[str]) -> Iterator[StepBlock]:
        """The steps at the places [first, end) in order, at most `size` at a time."""
        ...

    def raw(self, first: int, end: int) -> RunData:
        """The steps at the places [first, end) with all their columns, in full precision."""
        ...

    def starts(self, places: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """`start_mono_ns` of single steps, 0 = no record, shape (R, number of places); None: never measured."""
        ...
