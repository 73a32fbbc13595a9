"""How far a node's monotonic clock is from node 0's, measured by round trips.

With t0 and t3 read here and t1 and t2 at node 0, the offset (node 0 minus here) is ((t1 - t0) + (t2 - t3)) / 2. The
two ways may differ, so the truth lies within half of the round trip (t3 - t0) - (t2 - t1) of it: the least round
trip gives the tightest bound.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from starprof.errors import TransportError
from starprof.launch.kinds import PING, PONG
from starprof.wire.channel import Channel

PINGS = 8
_STAMPS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Offset:
    """Node-0 monotonic minus ours, and the bound of its error, in ns."""

    offset_ns: int
    error_ns: int


def estimate(sent_ns: int, there_received_ns: int, there_sent_ns: int, received_ns: int) -> Offset:
    """Offset from one round trip (t0, t1, t2, t3)."""
    offset_ns = (there_received_ns - sent_ns + there_sent_ns - received_ns) // 2
    round_trip_ns = (received_ns - sent_ns) - (there_sent_ns - there_received_ns)
    return Offset(offset_ns, max(0, round_trip_ns) // 2 + 1)


def measure(
    channel: Channel, timeout_s: float, hear: Callable[[int, bytes], bool] = lambda _kind, _payload: False
) -> Offset:
    """Ping node 0 several times and keep the tightest estimate.

    Args:
        channel: to node 0.
        timeout_s: for each answer.
        hear: takes what node 0 says between, and tells whether it was that.

    Raises:
        TransportError: the connection failed.
    """
    best: Offset | None = None
    for _ in range(PINGS):
        sent_ns = time.monotonic_ns()
        channel.send(PING)
        kind, payload = channel.receive(timeout_s)
        while hear(kind, payload):
            kind, payload = channel.receive(timeout_s)
        if kind != PONG or len(payload) != _STAMPS.size:
            raise TransportError("node 0 answered a ping with something else")
        received, sent = _STAMPS.unpack(payload)
        one = estimate(sent_ns, received, sent, channel.arrived_ns)
        if best is None or one.error_ns < best.error_ns:
            best = one
    assert best is not None
    return best


def stamps(arrived_ns: int) -> bytes:
    """Node 0's side: what answers a ping that came in then."""
    return _STAMPS.pack(arrived_ns, time.monotonic_ns())
