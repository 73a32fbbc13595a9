"""The job's store, in which ranks find each other: by the client that the process has, or by one of our own.

Torch looks up the name of whoever connects to its store, at both ends, and the server does so while everybody else
waits. A question that the name server drops costs five seconds, so an ordinary job makes no connection for us. What the
process's own client is asked is answered at once, since waiting in the store keeps whoever else uses the client
waiting: what is not there yet is asked for again.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

from starprof.errors import TransportError

FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 0.1
"""From one question to the next: a thousand ranks that wait ask ten thousand times a second."""

END_S = 12.0
"""A process that ends waits so long for a client: a thread in the middle of torch's code would abort it."""


class OwnClient:
    """One more client, made by a thread of ours when it is first asked for."""

    def __init__(self, store: Any) -> None:
        """Nothing happens yet.

        Args:
            store: the job's, or a prefix of it.
        """
        self._store = store
        self._client: Any = None
        self._made = threading.Event()
        self._beginning = threading.Lock()
        self._begun = False

    def get(self, within_s: float) -> Any:
        """It, or None where it isn't there in time."""
        with self._beginning:
            if not self._begun:
                self._begun = True
                atexit.register(self._settle, os.getpid())
                threading.Thread(target=self._make, name="starprof-store", daemon=True).start()
        return self._client if self._made.wait(within_s) else None

    def _make(self) -> None:
        try:
            self._client = self._store.clone()
        except (AttributeError, RuntimeError):  # a store of another kind, or it is gone, which shows when it is used
            self._client = self._store
        finally:
            self._made.set()

    def _settle(self, pid: int) -> None:
        if os.getpid() == pid:  # in a forked child nobody makes it
            self._made.wait(END_S)


def secret_of(store: Any) -> bytes:
    """The job's secret, of the first that asks. Whoever can read the job's store can do anything with it anyway.

    Raises:
        TransportError: the store does not answer.
    """
    try:
        return bytes(store.compare_set("secret", "", secrets.token_hex(32)))
    except RuntimeError as error:  # torch's stores have no narrower type
        raise TransportError(f"the job's store does not answer: {error}") from error


def wait_for(store: Any, keys: Iterable[str], within_s: float) -> bool:
    """Whether all keys are in the store within this time.

    Raises:
        TransportError: the store is gone.
    """
    wanted, until_s, pause_s = list(keys), time.monotonic() + within_s, FIRST_PAUSE_S
    try:
        while not store.check(wanted):
            if time.monotonic() >= until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 1.5 * pause_s)
    except RuntimeError as error:  # torch's stores have no narrower type
        raise TransportError(f"the job's store is gone: {error}") from error
    return True


def value_of(store: Any, key: str, within_s: float) -> str:
    """A key's value, waited for.

    Raises:
        TransportError: it is not there in time, or the store is gone.
    """
    if not wait_for(store, [key], within_s):
        raise TransportError(f"nobody has told {key} within {within_s:g} s")
    try:
        return str(store.get(key).decode())
    except RuntimeError as error:
        raise TransportError(f"the job's store is gone: {error}") from error
