"""The two messages that come in every step of every rank, as a few bytes of fixed places.

Reading a gradient's arrival as JSON took the coordinator more time than deciding on it. All else, and what does not fit
here, goes as JSON (`codec`).
"""

from __future__ import annotations

import struct

from starprof.errors import TransportError
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Go, ToCoordinator, ToRank

FIRST = 0xFE
"""First byte of these: no JSON begins with it."""

_ARRIVE = struct.Struct("<BBqqqqqqq")
_GO = struct.Struct("<BBqqq?")
_AN_ARRIVAL, _A_GO = b"AG"
_ARRIVE_BEGINS, _GO_BEGINS = bytes((FIRST, _AN_ARRIVAL)), bytes((FIRST, _A_GO))
_UNTOLD = -(1 << 63)
"""In the place of iterations that a rank's engine does not tell."""


def pack(message: ToRank | ToCoordinator) -> bytes | None:
    """A message as such bytes; None: it has no such form."""
    try:
        if type(message) is Arrive:
            return _packed_arrival(message)
        if type(message) is Go and type(message.kept) is bool:
            return _GO.pack(FIRST, _A_GO, message.epoch, message.number, message.version, message.kept)
    except (struct.error, AttributeError):
        return None  # the other form says what is wrong with it
    return None


def _packed_arrival(message: Arrive) -> bytes | None:
    gradient = message.gradient
    if message.sent or gradient.worker != message.rank or message.iterations == _UNTOLD:
        return None
    iterations = _UNTOLD if message.iterations is None else message.iterations
    return _ARRIVE.pack(
        FIRST,
        _AN_ARRIVAL,
        message.rank,
        gradient.number,
        gradient.version,
        gradient.samples,
        gradient.steps,
        message.held,
        iterations,
    )


def unpack(data: bytes) -> Arrive | Go:
    """The message that some bytes mean.

    Raises:
        TransportError: they mean none.
    """
    if len(data) == _ARRIVE.size and data[:2] == _ARRIVE_BEGINS:
        _, _, rank, number, version, samples, steps, held, iterations = _ARRIVE.unpack(data)
        gradient = Gradient(rank, number, version, samples, steps)
        return Arrive(rank, gradient, held, None if iterations == _UNTOLD else iterations)
    if len(data) == _GO.size and data[:2] == _GO_BEGINS and data[-1] < 2:
        _, _, epoch, number, version, kept = _GO.unpack(data)
        return Go(epoch, number, version, kept)
    raise TransportError("the other side sent something that is no message")
