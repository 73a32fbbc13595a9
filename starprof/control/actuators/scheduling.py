"""Niceness, I/O priority and affinity of single threads: the three that the kernel keeps for each of them.

A thread that was started since inherits its starter's value. It is not in the journal; when the old value of the main
thread is put back, threads that hold exactly the value of ours go along.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from typing import Any

from starprof.control.actuators.change import RefusedError
from starprof.control.actuators.processes import check, threads

_IOPRIO_CALLS = {"x86_64": (252, 251), "aarch64": (31, 30), "ppc64le": (274, 273), "s390x": (283, 282)}
"""Numbers of ioprio_get and ioprio_set: libc has no names for them."""
_WHO_PROCESS = 1
IO_CLASSES = {"none": 0, "realtime": 1, "best-effort": 2, "idle": 3}
_CLASS_SHIFT = 13


class _OfThread:
    """A value of one thread, which those that it starts inherit."""

    def read(self, target: Mapping[str, Any]) -> Any:
        """See `change.Knob`."""
        check(target)
        return self.get(int(target["tid"]))

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`; of a main thread with those that it has started since."""
        before = self.read(target)
        self.set(int(target["tid"]), value)
        pid = int(target["pid"])
        if target["tid"] != pid or not target.get("heirs"):
            return
        for tid, start in threads(pid):
            if [tid, start] not in target["heirs"] and self.get(tid) == before:
                self.set(tid, value)

    def get(self, tid: int) -> Any:
        """Of a thread."""
        raise NotImplementedError

    def set(self, tid: int, value: Any) -> None:
        """Of a thread."""
        raise NotImplementedError


class Niceness(_OfThread):
    """-20 to 19."""

    def get(self, tid: int) -> int:
        """Of a thread."""
        return os.getpriority(os.PRIO_PROCESS, tid)

    def set(self, tid: int, value: Any) -> None:
        """Of a thread."""
        os.setpriority(os.PRIO_PROCESS, tid, int(value))


class Affinity(_OfThread):
    """Numbers of the processors that it may run on, in order."""

    def get(self, tid: int) -> list[int]:
        """Of a thread."""
        return sorted(os.sched_getaffinity(tid))

    def set(self, tid: int, value: Any) -> None:
        """Of a thread."""
        os.sched_setaffinity(tid, value)


class IoPriority(_OfThread):
    """Class and level as the kernel packs them; 0 follows the niceness."""

    def get(self, tid: int) -> int:
        """Of a thread."""
        return self._call(0, tid)

    def set(self, tid: int, value: Any) -> None:
        """Of a thread."""
        self._call(1, tid, int(value))

    def _call(self, which: int, tid: int, *more: int) -> int:
        numbers = _IOPRIO_CALLS.get(platform.machine())
        if numbers is None:
            raise RefusedError(f"the number of ioprio_set is not known on {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        result = int(libc.syscall(numbers[which], _WHO_PROCESS, tid, *more))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def io_priority(kind: str, level: int) -> int:
    """As the kernel packs it."""
    return IO_CLASSES[kind] << _CLASS_SHIFT | level
