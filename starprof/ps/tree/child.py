"""A child: hands its gradients to a parent, and knows whether they are in a sum that has arrived."""

from __future__ import annotations

import time

from starprof.errors import TransportError
from starprof.ps.tree.speech import GRADIENT, HERE, PARENT, SENT, number_heard, number_told, told
from starprof.ps.wire import Connection, connect
from starprof.sync.policies import Gradient

CONNECT_S = 1.0
AGAIN_S = 5.0
"""A parent that could not be reached is not tried again sooner."""


class Child:
    """One worker's, for one parent at a time; its training's thread uses it."""

    def __init__(self, rank: int, secret: bytes) -> None:
        """Nobody is its parent."""
        self._rank = rank
        self._secret = secret
        self._address: tuple[str, int] | None = None
        self._connection: Connection | None = None
        self._not_before_s = 0.0

    def follow(self, address: tuple[str, int] | None) -> None:
        """Hand gradients to whoever listens there from now on; None: to nobody."""
        if address != self._address:
            self.close()
            self._address = address
            self._not_before_s = 0.0

    def hand_in(self, gradient: Gradient, payload: memoryview, wait_s: float) -> bool:
        """Give a gradient to the parent; whether it has arrived at the server, in a sum.

        If not, whatever the reason, it must be sent without the parent, under the same number: it may have arrived all
        the same, so whoever gets it twice takes it once.
        """
        if self._address is None or time.monotonic() < self._not_before_s:
            return False
        try:
            connection = self._connected(self._address)
            connection.send(GRADIENT, told(gradient), payload)
            head = connection.receive(wait_s)
        except (TransportError, OSError):
            self.close()
            self._not_before_s = time.monotonic() + AGAIN_S
            return False
        return head.kind == SENT and number_heard(head.header) == gradient.number

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, address: tuple[str, int]) -> Connection:
        if self._connection is None:
            self._connection = connect(address, self._secret, timeout_s=CONNECT_S, service=PARENT)
            self._connection.send(HERE, number_told(self._rank))
        return self._connection
