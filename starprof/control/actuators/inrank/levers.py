"""What can be changed inside of a rank: each lever sets a value, and knows how to go back to what was there before."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import torch

MOST_THREADS = 4096
SO_MAX_PACING_RATE = 47
UNPACED = 2**64 - 1
_RATE = struct.Struct("Q")
_OPENMP = ("libgomp", "libomp", "libiomp")


class Lever(Protocol):
    """One thing."""

    def set(self, value: Any) -> str:
        """Set it, remembering what was there before the first time; returns what was done, in words.

        Raises:
            ValueError: it can't be set to that.
        """
        ...

    def back(self) -> str:
        """Go back; returns what was left as it is since somebody else has changed it, "" for nothing."""
        ...


class Threads:
    """Threads that torch's operations and OpenMP loops of the calling thread use."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._set: int | None = None

    def set(self, value: Any) -> str:
        """See `Lever`."""
        if type(value) is not int or not 1 <= value <= MOST_THREADS:
            raise ValueError(f"threads is a number from 1 to {MOST_THREADS}")
        if self._set is None:
            self._before = self._now()
        before = torch.get_num_threads()
        for name, setter in self._setters():
            setter(value)
            self._before.setdefault(name, value)
        self._set = value
        return f"threads {before} -> {torch.get_num_threads()} ({len(self._before)} pools)"

    def back(self) -> str:
        """See `Lever`."""
        ours, self._set = self._set, None
        left = [name for name, now in self._now().items() if name in self._before and now != ours]
        for name, setter in self._setters():
            if name in self._before and name not in left:
                setter(self._before[name])
        self._before = {}
        return f"threads of {', '.join(left)} were changed by the job itself" if left else ""

    def _now(self) -> dict[str, int]:
        return {"torch": torch.get_num_threads(), **{n: int(lib.omp_get_max_threads()) for n, lib in _openmp()}}

    def _setters(self) -> Iterator[tuple[str, Any]]:
        for name, library in _openmp():
            yield name, library.omp_set_num_threads
        yield "torch", torch.set_num_threads  # last: its own library is the one that torch asks


def _openmp() -> Iterator[tuple[str, Any]]:
    """The OpenMP libraries that this process has loaded; of none, what it has not is never loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    paths = {line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6}
    for path in sorted(paths):
        name = path.rpartition("/")[2]
        if name.startswith(_OPENMP):
            try:
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
                if hasattr(library, "omp_set_num_threads"):
                    yield name, library
            except OSError:
                continue


class Pacing:
    """Rate of each TCP connection of this process, by the kernel's own pacing: no root, no queue needed."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._rate = UNPACED

    def set(self, value: Any) -> str:
        """See `Lever`; called again now and then, for connections that were made since."""
        if type(value) not in (int, float) or not 1 <= value < UNPACED:
            raise ValueError("a rate is a number of bytes per second")
        rate, former = int(value), self._rate
        count = 0
        for inode, sock in connections():
            now = _paced(sock)
            if now not in (rate, former) or inode not in self._before:
                self._before[inode] = now
            _pace(sock, rate)
            count += 1
        self._rate = rate
        return f"{count} connections at most {rate:,} bytes/s each"

    def back(self) -> str:
        """See `Lever`."""
        ours, self._rate, left = self._rate, UNPACED, 0
        for inode, sock in connections():
            if inode not in self._before:
                continue
            if _paced(sock) == ours:
                _pace(sock, self._before[inode])
            else:
                left += 1
        self._before = {}
        return f"{left} connections were paced otherwise by the job itself" if left else ""


def connections() -> Iterator[tuple[int, socket.socket]]:
    """Established TCP connections of this process by inode; each is a duplicate that lives until the next."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            copy = os.dup(int(name))
        except OSError:
            continue
        with closing(socket.socket(fileno=copy)) as sock:
            try:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    continue
                sock.getpeername()
                yield os.fstat(copy).st_ino, sock
            except OSError:
                continue  # it listens, or is closed


def _paced(sock: socket.socket) -> int:
    value: int = _RATE.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.size).ljust(8, b"\xff"))[0]
    return value


def _pace(sock: socket.socket, rate: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.pack(rate))


class Collecting:
    """Garbage is collected in the same steps on all ranks, and in no others: a wait of one is a wait of all."""

    def __init__(self) -> None:
        self._was_enabled = False
        self._on = False
        self._every = 0

    def set(self, value: Any) -> str:
        """See `Lever`."""
        if type(value) is not int or value < 1:
            raise ValueError("a number of steps is needed from one collection to the next")
        if not self._on:
            self._was_enabled = gc.isenabled()
            gc.disable()
            self._on = True
        self._every = value
        return f"garbage is collected every {value} steps, in the same ones on all ranks"

    def step(self, before: int, number: int) -> None:
        """Steps up to this one are done; `before`: those of the last call."""
        if self._on and (number + 1) // self._every > (before + 1) // self._every:
            gc.collect()

    def back(self) -> str:
        """See `Lever`."""
        self._on = False
        if gc.isenabled():
            return "the job itself has turned garbage collection on again"
        if self._was_enabled:
            gc.enable()
        return ""
