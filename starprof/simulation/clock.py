"""Simulated time: what happens next, in order; of two things at the same time the one that was planned first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Events and the time they have come to.

    Attributes:
        now_s: simulated time.
        stopped: nothing more is to happen.
    """

    __slots__ = ("_count", "_events", "now_s", "stopped")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stopped = False
        self._count = 0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []

    @property
    def idle(self) -> bool:
        """Nothing is going to happen."""
        return not self._events

    def at(self, at_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call it at that time, which is not in the past."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, call, argument))

    def run(self) -> None:
        """Let everything happen, until nothing is left or it is stopped."""
        events, pop = self._events, heapq.heappop
        while events and not self.stopped:
            self.now_s, _, call, argument = pop(events)
            call(argument)
