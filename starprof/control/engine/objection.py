"""Tells the coordinator why a rank stays with native steps, so that whoever asks it can know."""

from __future__ import annotations

import threading
from collections.abc import Callable

from starprof.control.engine.jobstore import secret_of
from starprof.control.engine.rendezvous import Rendezvous
from starprof.control.link import CoordinatorLink
from starprof.hook.boundary import Guard
from starprof.sync.protocol.messages import Objects

MAX_REASONS = 16
MAX_CHARACTERS = 1000


class Objection:
    """A rank's, while it has one. The training thread never waits for it: what takes time is done in threads."""

    def __init__(self, rendezvous: Rendezvous, rank: int, guard: Guard) -> None:
        """Prepare.

        Args:
            rendezvous: knows how to find the coordinator of the model that the rank trains.
            rank: of this process.
            guard: takes what goes wrong.
        """
        self._rendezvous = rendezvous
        self._rank = rank
        self._guard = guard
        self._reasons: tuple[str, ...] = ()
        self._lock = threading.RLock()
        self._link: CoordinatorLink | None = None
        self._over = False
        self._begun = False

    def raise_for(self, reasons: list[str]) -> None:
        """These are the reasons now."""
        with self._lock:
            self._reasons = tuple(reason[:MAX_CHARACTERS] for reason in reasons[:MAX_REASONS])
            if self._link is not None:
                self._link.send(self._said())
            elif not self._begun:
                self._begun = True
                self._in_thread(self._connect)

    def withdraw(self) -> None:
        """There are none any more, or nobody cares."""
        with self._lock:
            self._over = True
            link, self._link = self._link, None
        if link is not None:
            self._in_thread(link.close)

    def _said(self) -> Objects:
        return Objects(self._rank, self._reasons)

    def _connect(self) -> None:
        rendezvous = self._rendezvous
        store = rendezvous.store()
        link = rendezvous.link(store, secret_of(store), self._rank, self._said, lambda _message: None, self._lock)
        with self._lock:
            if not self._over:
                self._link = link
                link.start()

    def _in_thread(self, what: Callable[[], None]) -> None:
        work = threading.Thread(target=self._guard.attempt, args=(what,), name="starprof-objection", daemon=True)
        work.start()
