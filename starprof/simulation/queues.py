"""What several users share: served in order of arrival, at full capacity."""

from __future__ import annotations

import math


class Queue:
    """A processor, an interface or a link: work waits until everything that came before is done.

    Requests must be made in the order of time. A queue of infinite capacity is free.

    Attributes:
        name: for reports, such as `node0 cpu`.
        capacity: work per second: CPU seconds (so, cores) or bytes.
        busy_s: how long it has worked.
        free_s: when it will have done everything that it was asked for.
    """

    __slots__ = ("busy_s", "capacity", "free_s", "name")

    def __init__(self, name: str, capacity: float = math.inf) -> None:
        """Begin idle.

        Raises:
            ValueError: nothing could ever be done.
        """
        if not capacity > 0:
            raise ValueError(f"{name} needs a capacity above 0, not {capacity}")
        self.name = name
        self.capacity = capacity
        self.busy_s = 0.0
        self.free_s = 0.0

    def serve(self, now_s: float, work: float) -> float:
        """When this much more work will be done."""
        if work <= 0.0 or self.capacity == math.inf:
            return now_s
        needed_s = work / self.capacity
        self.busy_s += needed_s
        self.free_s = max(self.free_s, now_s) + needed_s
        return self.free_s

    def hold(self, until_s: float, busy_s: float) -> None:
        """It is taken until then, and works for a part of that: it moves in step with others."""
        self.busy_s += busy_s
        self.free_s = max(self.free_s, until_s)
