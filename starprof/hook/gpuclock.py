"""GPU times of a step: events recorded where the host's spans begin and end, read some steps later.

Nothing waits for the GPU: a finished step is written once its last event has completed, in order. When the GPU
is more than `PENDING_LIMIT` steps behind, the oldest is written without its GPU times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

PENDING_LIMIT = 16

GPU_FORWARD, GPU_BACKWARD, GPU_BLOCKED, GPU_OPTIMIZER = range(4)
"""Places in the result, in the order of the table's `gpu_*` columns."""
GPU_SPANS = 4


class Event(Protocol):
    """What is used of torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None:
        """Mark the current stream."""
        ...

    def query(self) -> bool:
        """Whether the GPU has passed the mark."""
        ...

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this mark to that one."""
        ...


_Pair = tuple[int, Event, Event]


class GpuClock:
    """Collects the marks of the current step and hands out finished steps with their GPU times.

    Args:
        new_event: makes one timing event; events are pooled.
    """

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._free: list[Event] = []
        self._open: dict[int, Event] = {}
        self._arrival: Event | None = None
        self._pairs: list[_Pair] = []
        self._pending: deque[tuple[list[int], list[_Pair]]] = deque()

    def begin(self, span: int) -> None:
        """A span begins on the current stream."""
        event = self._take()
        event.record()
        self._open[span] = event

    def end(self, span: int) -> None:
        """The span ends."""
        start = self._open.pop(span, None)
        if start is None:
            return
        stop = self._take()
        stop.record()
        arrival, self._arrival = self._arrival, None
        if span == GPU_BACKWARD and arrival is not None:
            self._pairs += ((GPU_BACKWARD, start, arrival), (GPU_BLOCKED, arrival, stop))
        else:
            self._pairs.append((span, start, stop))

    def arrive(self) -> None:
        """A gradient was accumulated: the last call in a backward pass divides it into own work and waiting."""
        if GPU_BACKWARD in self._open:
            if self._arrival is None:
                self._arrival = self._take()
            self._arrival.record()

    def finish(self, cells: list[int]) -> None:
        """The step is over; `cells` is its record without GPU times."""
        self._pending.append((cells, self._pairs))
        self._pairs = []

    def ready(self, *, flush: bool = False) -> Iterator[tuple[list[int], list[int | None]]]:
        """Steps whose marks the GPU has passed, oldest first: (cells, us per GPU span, None = not known).

        Args:
            flush: give out the others too, without GPU times: the process ends.
        """
        while self._pending:
            cells, pairs = self._pending[0]
            complete = all(stop.query() for _, _, stop in pairs)
            if not complete and not flush and len(self._pending) <= PENDING_LIMIT:
                return
            self._pending.popleft()
            yield cells, _sums_us(pairs) if complete else [None] * GPU_SPANS
            self._recycle(pairs)

    def _take(self) -> Event:
        return self._free.pop() if self._free else self._new_event()

    def _recycle(self, pairs: list[_Pair]) -> None:
        """An arrival is in two pairs, but goes back once."""
        self._free += {id(event): event for _, start, stop in pairs for event in (start, stop)}.values()


def _sums_us(pairs: list[_Pair]) -> list[int | None]:
    sums: list[int | None] = [None] * GPU_SPANS
    for span, start, stop in pairs:
        sums[span] = (sums[span] or 0) + round(start.elapsed_time(stop) * 1000)
    return sums
