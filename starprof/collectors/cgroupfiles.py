"""The kept-open files of one control group; both versions give the same columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starprof.collectors.procfile import ProcFile, optional
from starprof.model.schema import INT_NULL

_UNLIMITED_BYTES = 1 << 62
"""v1 writes "no limit" as the largest page count, just below 2**63."""

_CPU_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"), 2: ("cpu.max", "cpu.stat")}
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt", "memory.oom_control"),
    2: ("memory.current", "memory.max", "memory.events"),
}


class GroupFiles:
    """One group. v1 may have its controllers in different hierarchies, which are attached one by one.

    Attributes:
        limited: it had a CPU quota when it was last read.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._files: dict[str, ProcFile] = {}
        self._read_quota: Callable[[], tuple[int, ...]] = self._quota_v1 if version == 1 else self._quota_v2
        self.limited = False

    def attach(self, folder: Path, controllers: frozenset[str]) -> None:
        """Open what the folder has of the controllers' files; a root group lacks most of them."""
        wanted: tuple[str, ...] = ()
        if "cpu" in controllers:
            wanted += _CPU_FILES[self._version]
        if "memory" in controllers:
            wanted += _MEMORY_FILES[self._version]
        if "cpuacct" in controllers:
            wanted += ("cpuacct.usage",)
        for name in wanted:
            if name not in self._files:
                file = optional(folder / name, 1024)
                if file is not None:
                    self._files[name] = file

    def read_quota(self) -> tuple[int, ...]:
        """The columns from `quota_us` on, those about memory NULL.

        Raises:
            OSError: the group was removed.
        """
        return (*self._read_quota(), *(INT_NULL,) * 4)

    def read_all(self) -> tuple[int, ...]:
        """All columns from `quota_us` on.

        Raises:
            OSError: the group was removed.
        """
        quota = self._read_quota()
        self.limited = quota[0] != INT_NULL
        return (*quota, *(self._memory_v1() if self._version == 1 else self._memory_v2()))

    def _text(self, name: str) -> bytes:
        file = self._files.get(name)
        return file.read() if file is not None else b""

    def _number(self, name: str) -> int:
        text = self._text(name)
        return int(text) if text else INT_NULL

    def _quota_v1(self) -> tuple[int, ...]:
        quota = self._number("cpu.cfs_quota_us")
        stat = _pairs(self._text("cpu.stat"))
        throttled_ns = stat.get(b"throttled_time", INT_NULL)
        used_ns = self._number("cpuacct.usage")
        return (
            quota if quota > 0 else INT_NULL,
            self._number("cpu.cfs_period_us"),
            stat.get(b"nr_periods", INT_NULL),
            stat.get(b"nr_throttled", INT_NULL),
            throttled_ns // 1000 if throttled_ns >= 0 else INT_NULL,
            used_ns // 1000 if used_ns >= 0 else INT_NULL,
        )

    def _quota_v2(self) -> tuple[int, ...]:
        words = self._text("cpu.max").split()
        stat = _pairs(self._text("cpu.stat"))
        return (
            int(words[0]) if words and words[0] != b"max" else INT_NULL,
            int(words[1]) if len(words) > 1 else INT_NULL,
            stat.get(b"nr_periods", INT_NULL),
            stat.get(b"nr_throttled", INT_NULL),
            stat.get(b"throttled_usec", INT_NULL),
            stat.get(b"usage_usec", INT_NULL),
        )

    def _memory_v1(self) -> tuple[int, ...]:
        limit = self._number("memory.limit_in_bytes")
        return (
            self._number("memory.usage_in_bytes"),
            limit if limit < _UNLIMITED_BYTES else INT_NULL,
            self._number("memory.failcnt"),
            _pairs(self._text("memory.oom_control")).get(b"oom_kill", INT_NULL),
        )

    def _memory_v2(self) -> tuple[int, ...]:
        limit = self._text("memory.max").strip()
        events = _pairs(self._text("memory.events"))
        return (
            self._number("memory.current"),
            int(limit) if limit and limit != b"max" else INT_NULL,
            events[b"high"] + events[b"max"] if b"high" in events and b"max" in events else INT_NULL,
            events.get(b"oom_kill", INT_NULL),
        )

    def close(self) -> None:
        """Close all descriptors."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _pairs(data: bytes) -> dict[bytes, int]:
    """`name number` lines."""
    words = data.split()
    return {words[i]: int(words[i + 1]) for i in range(0, len(words) - 1, 2)}
