"""Gradients of many ranks heard together: to be woken for each of them costs more than to hear it."""

from __future__ import annotations

import asyncio
import time

from starprof.sync.protocol.coordinator import Coordinator

REST_S = 0.5e-3
"""Those that come in this time are heard together. No round closes later by more than that."""

MANY_SHORT = 8
"""So many more have to come until anything can follow from them. Whoever comes last is heard at once."""


class Rest:
    """Lets gradients come before the next are heard, where nobody waits for an answer to them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coordinator: Coordinator) -> None:
        """Begin awake."""
        self._loop = loop
        self._coordinator = coordinator
        self._is_due = False

    def maybe(self) -> None:
        """Something was heard: rest when all that has come with it is heard too."""
        if not self._is_due and self._coordinator.short_of > MANY_SHORT:
            self._is_due = True
            self._loop.call_soon(self._rest)

    def _rest(self) -> None:
        self._is_due = False
        if self._coordinator.short_of > MANY_SHORT:
            time.sleep(REST_S)
