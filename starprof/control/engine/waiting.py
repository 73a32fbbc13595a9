"""Waiting for other ranks: how long, what it ends with, and without the lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starprof.errors import StarprofError

ASK_AGAIN_S = 2.0
"""A result that has not come after this time is asked for."""
GIVE_UP_S = 300.0
"""Nothing has been heard for so long that the job can't go on: it ends with an error, as its own collectives would."""


class LostError(StarprofError):
    """The other ranks and their coordinator can't be reached any more."""


@contextmanager
def unlocked(lock: Any) -> Iterator[None]:
    """For the other way round: release a lock in a block."""
    lock.release()
    try:
        yield
    finally:
        lock.acquire()
