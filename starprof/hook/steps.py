"""`starprof.steps`: the iterations of a loop, for those that have no data loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

taker: Callable[[Iterable[Any], int], Iterator[tuple[int, Any]]] | None = None
"""Set where ranks may run ahead of each other: makes the iterator of (iterable, start)."""


class steps(Generic[Item]):  # noqa: N801 - reads as a statement: `for step, batch in starprof.steps(batches):`
    """The iterations of a training loop: `for step, item in starprof.steps(iterable)`.

    Without control this is `enumerate`, and costs as much. Under control a rank that was late passes over the
    iterations it has missed, and `step` counts them too: it is the number of the iteration in the whole job. A data
    loader passes over them without loading them; ranges, lists and whatever else Python iterates over by index, without
    a look at the items. Of any other iterable they are drawn and dropped.

    Args:
        iterable: what the loop goes through; each of its items belongs to one iteration.
        start: number of the first iteration, as when training is resumed.
    """

    def __init__(self, iterable: Iterable[Item], *, start: int = 0) -> None:
        self._iterable = iterable
        self._start = start

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        if taker is None:
            return enumerate(self._iterable, self._start)
        return taker(self._iterable, self._start)

    def __len__(self) -> int:
        """Number of the iterations, where the iterable knows it."""
        if not isinstance(self._iterable, Sized):
            raise TypeError(f"object of type {type(self._iterable).__name__!r} has no len()")
        return len(self._iterable)
