"""Sleeping until a deadline or until SIGTERM, whichever comes first.

Not `signal.sigtimedwait`: in CPython 3.11 it reports a signal that never came when the process was stopped
(SIGSTOP, debugger, freezer) beyond its timeout.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType


class StopSignal:
    """Notes SIGTERM; to be made in the main thread, once per process."""

    def __init__(self) -> None:
        self.received = False
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.received = True

    def sleep(self, seconds: float) -> bool:
        """Sleep; returns whether SIGTERM came, before or meanwhile."""
        if not self.received:
            select.select((self._read_fd,), (), (), max(0.0, seconds))
        return self.received
