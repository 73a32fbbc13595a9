"""The job's store by clients of our own, made by a thread of our own.

Torch looks up the name of whoever connects to its store, at both ends. Where many ranks connect at once, name servers
drop questions, and each that is dropped costs five seconds. So no step of the training waits for our clients.

What the first is asked is answered at once: waiting in the store keeps whoever else uses the client waiting, so what is
not there yet is asked for again. The second is for torch's own waiting.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from starprof.errors import TransportError

FIRST_PAUSE_S = 0.01
MAX_PAUSE_S = 0.1
"""From one question to the next: a thousand ranks that wait ask ten thousand times a second."""

END_S = 12.0
"""A process that ends waits so long for its clients: a thread in the middle of torch's code would abort it."""


class JobStore:
    """This process's clients, and the job's secret.

    Attributes:
        of: the job's store, whose client is the user's.
    """

    def __init__(self, store: Any, place: str) -> None:
        """Begin to make them.

        Args:
            store: the job's.
            place: of all that is ours in the store.
        """
        self.of = store
        self._place = place
        self._client: Any = None
        self._patient: Any = None
        self._secret = b""
        self._failure = ""
        self._made = threading.Event()
        atexit.register(self._settle, os.getpid())
        threading.Thread(target=self._make, name="starprof-store", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether they are there."""
        return self._made.is_set()

    def client(self) -> Any:
        """What is ours in the store, to be asked only what is answered at once.

        Raises:
            TransportError: the job's store does not answer; so do the others.
        """
        self._wait()
        return self._client

    def patient(self) -> Any:
        """The same by another client, in which one thread may wait."""
        self._wait()
        return self._patient

    def secret(self) -> bytes:
        """The job's, of the first that asks. Whoever can read the job's store can do anything with it anyway."""
        self._wait()
        return self._secret

    def _wait(self) -> None:
        self._made.wait()
        if self._failure:
            raise TransportError(f"the job's store does not answer: {self._failure}")

    def _settle(self, pid: int) -> None:
        if os.getpid() == pid:  # in a forked child nobody makes them
            self._made.wait(END_S)

    def _make(self) -> None:
        try:
            self._client, self._patient = (dist.PrefixStore(self._place, own_client(self.of)) for _ in range(2))
            self._secret = bytes(self._client.compare_set("secret", "", secrets.token_hex(32)))
        except RuntimeError as error:  # torch's stores have no narrower type
            self._failure = str(error) or type(error).__name__
        finally:
            self._made.set()


def own_client(store: Any) -> Any:
    """A client of its own of the same store, where it can be had; may take seconds."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        return store


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
