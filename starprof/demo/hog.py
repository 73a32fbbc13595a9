"""A foreign process that takes half of a core away: the neighbour of the `cpu` fault."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType

_BURN = """
import os, sys
if sys.stdin.read(1):
    while os.getppid() == int(sys.argv[1]):
        for _ in range(1000000):
            pass
"""


class Hog:
    """A busy loop in a process of its own, pinned to one core; idle until `release`, ended on leaving the block."""

    def __init__(self, cpu: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BURN, str(os.getpid())],
            stdin=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )

    def release(self) -> None:
        """Start burning; the interpreter is up already, so this takes effect at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"x")
        self._process.stdin.close()

    def __enter__(self) -> Hog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
