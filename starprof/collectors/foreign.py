"""Processes of no rank that use much CPU: the usual reason why a rank on a shared node is late.

Every visible process costs one `clock_gettime` of its CPU clock a second (the kernel allows that for all processes),
no file is read for those that idle.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

HEAVY_SHARE = 0.02
"""Share of one core from which on a process counts as heavy."""
MAX_HEAVY = 8
_LINGER_SCANS = 3
"""A process that calmed down is reported for that many scans more, so that its end is visible."""

_EXCLUDED = -1
"""Stands for the CPU time of a process that was excluded at a scan: nothing to compare with."""

CpuClock = Callable[[int], int]
"""CPU time in ns that a process used; raises OSError when there is no such process."""


class Heavy(NamedTuple):
    """A heavy process: its CPU time now, and at the scan before (None when that row was reported already)."""

    pid: int
    cpu_ns: int
    before_mono_ns: int | None
    before_cpu_ns: int


class ForeignScan:
    """Finds the heaviest processes between one scan and the next."""

    def __init__(self, cpu_clock: CpuClock) -> None:
        self._clock = cpu_clock
        self._last: dict[int, int] = {}
        self._last_mono_ns: int | None = None
        self._linger: dict[int, int] = {}

    def scan(self, mono_ns: int, pids: Iterable[int], excluded: Container[int]) -> tuple[list[Heavy], set[int]]:
        """The heavy ones, heaviest first, and pids whose clock went back: another process has that pid now."""
        now: dict[int, int] = {}
        used: list[tuple[int, int]] = []
        reused = set()
        last, clock = self._last, self._clock
        for pid in pids:
            if pid in excluded:
                now[pid] = _EXCLUDED
                continue
            try:
                cpu_ns = clock(pid)
            except OSError:
                continue
            before = last.get(pid, 0)
            if before == _EXCLUDED:
                now[pid] = cpu_ns
                continue
            if cpu_ns < before:
                reused.add(pid)
                continue
            now[pid] = cpu_ns
            if cpu_ns != before:
                used.append((cpu_ns - before, pid))
        found = self._choose(mono_ns, used, now)
        self._last, self._last_mono_ns = now, mono_ns
        return found, reused

    def _choose(self, mono_ns: int, used: list[tuple[int, int]], now: dict[int, int]) -> list[Heavy]:
        if self._last_mono_ns is None:  # nothing to compare with yet
            return []
        least_ns = (mono_ns - self._last_mono_ns) * HEAVY_SHARE
        heavy = [pid for delta, pid in sorted(used, reverse=True)[:MAX_HEAVY] if delta >= least_ns]
        found = []
        for pid in heavy:
            known = pid in self._linger
            found.append(Heavy(pid, now[pid], None if known else self._last_mono_ns, self._last.get(pid, 0)))
        calm = {pid: left - 1 for pid, left in self._linger.items() if pid not in heavy and left > 1 and pid in now}
        found += [Heavy(pid, now[pid], None, 0) for pid in calm]
        self._linger = calm | dict.fromkeys(heavy, _LINGER_SCANS)
        return found
