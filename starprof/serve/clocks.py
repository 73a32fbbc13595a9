"""How far a node's clock is from node 0's right now, from measurements that go on while the job runs.

Each measurement gives an interval in which the offset lay at that moment (see `launch.clock`). Clocks drift apart, so
the interval of an older one is wider by now; all of them hold, so the offset lies where they overlap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DRIFT_PPM = 100
"""Two clocks of machines that keep time with NTP drift apart by less than this: each is slewed by 500 ppm at most for
a moment, and off by some ten ppm otherwise."""

KEPT = 64


@dataclass(frozen=True, slots=True)
class OffsetNow:
    """Node-0 monotonic minus the node's, and the bound of its error, in ns."""

    offset_ns: int
    error_ns: int


class ClockTrack:
    """The newest measurements of one node."""

    def __init__(self) -> None:
        self._measured: deque[tuple[int, int, int]] = deque(maxlen=KEPT)

    def add(self, mono_ns: int, offset_ns: int, error_ns: int) -> None:
        """A measurement that the node has made at `mono_ns` of its own clock."""
        self._measured.append((mono_ns, offset_ns, error_ns))

    def at(self, mono_ns: int) -> OffsetNow | None:
        """The offset at a moment of the node's own clock; None before the first measurement."""
        low = high = None
        for then_ns, offset_ns, error_ns in reversed(self._measured):
            wide = error_ns + abs(mono_ns - then_ns) * DRIFT_PPM // 1_000_000
            if low is None or high is None:
                low, high = offset_ns - wide, offset_ns + wide
            elif max(low, offset_ns - wide) <= min(high, offset_ns + wide):
                low, high = max(low, offset_ns - wide), min(high, offset_ns + wide)
            else:
                break  # a clock jumped, or was suspended: what was measured before that says nothing any more
        if low is None or high is None:
            return None
        return OffsetNow((low + high) // 2, (high - low + 1) // 2)

    def now(self) -> OffsetNow | None:
        """The offset when it was measured last."""
        return self.at(self._measured[-1][0]) if self._measured else None
