"""What the agent keeps an eye on besides counters: the wall clock and its recorder."""

from __future__ import annotations

from pathlib import Path

from starprof.collectors.procfile import optional
from starprof.collectors.procstat import parse_stat

CLOCK_JUMP_NS = 500_000_000
"""From this on a change of the wall clock against the monotonic one counts as a jump; NTP slews by 0.5 ms a second."""


class ClockWatch:
    """Notices when somebody set the wall clock: nothing is joined by it, but people read it."""

    def __init__(self) -> None:
        self._wall_minus_mono_ns: int | None = None

    def jump_ns(self, mono_ns: int, unix_ns: int) -> int:
        """By how much the wall clock jumped since the last call, 0 for not at all; readings of the same moment."""
        before, self._wall_minus_mono_ns = self._wall_minus_mono_ns, unix_ns - mono_ns
        if before is None or abs(self._wall_minus_mono_ns - before) < CLOCK_JUMP_NS:
            return 0
        return self._wall_minus_mono_ns - before


class ParentWatch:
    """Tells whether the recorder still runs; without one there is nothing to outlive."""

    def __init__(self, proc: Path, pid: int | None) -> None:
        """`pid`: process id of the recorder."""
        self._stat = optional(proc / str(pid) / "stat", 512) if pid is not None else None
        self._watches = pid is not None
        self.gone_ns: int | None = None

    def gone(self, now_ns: int) -> bool:
        """Whether the recorder ended; `gone_ns` is when that was first seen."""
        if self._watches and self.gone_ns is None and not self._alive():
            self.gone_ns = now_ns
        return self.gone_ns is not None

    def _alive(self) -> bool:
        if self._stat is None:
            return False
        try:
            return not parse_stat(self._stat.read()).ended
        except OSError:
            return False
