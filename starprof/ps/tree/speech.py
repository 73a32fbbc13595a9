"""What children and parents say to each other."""

from __future__ import annotations

import struct

from starprof.errors import TransportError
from starprof.sync.policies import Gradient
from starprof.wire.frames import Service

PARENT = Service(b"SPT1", "a parent in this job's tree")
HERE, GRADIENT, SENT, ALONE = range(1, 5)
"""Kinds: a child is there (its rank); a gradient of it; it is at the server, in a sum; send it yourself."""

_GRADIENT = struct.Struct("<qqqq")
_NUMBER = struct.Struct("<q")


def told(gradient: Gradient) -> bytes:
    """A gradient as it is told."""
    return _GRADIENT.pack(gradient.worker, gradient.number, gradient.version, gradient.samples)


def heard(header: bytes) -> Gradient:
    """Which gradient was told of.

    Raises:
        TransportError: none.
    """
    if len(header) != _GRADIENT.size:
        raise TransportError("a child told of no gradient")
    return Gradient(*_GRADIENT.unpack(header))


def number_told(number: int) -> bytes:
    """A whole number as it is told."""
    return _NUMBER.pack(number)


def number_heard(header: bytes) -> int:
    """Which number was told.

    Raises:
        TransportError: none.
    """
    if len(header) != _NUMBER.size:
        raise TransportError("no number was told")
    (number,) = _NUMBER.unpack(header)
    return int(number)
