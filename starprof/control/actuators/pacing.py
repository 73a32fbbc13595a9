"""Pacing of a rank's own connections: the kernel spaces out what each of them sends. Needs no root, and no queue."""

from __future__ import annotations

from starprof.control.actuators import orders
from starprof.control.actuators.base import Actuator, Request, ordered
from starprof.control.actuators.change import Change
from starprof.errors import UsageError

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    rate = rate_of(request.value)
    return ordered(request, "pace", orders.PACE, rate, f"each connection sends at most {rate:,.0f} bytes/s")


def rate_of(text: str) -> float:
    """Bytes per second of a text such as 25M or 1.5G (powers of 1000).

    Raises:
        UsageError: it is none.
    """
    unit = text[-1:] if text[-1:] in "kMG" else ""
    try:
        rate = float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        rate = 0.0
    if not 1.0 <= rate < 1e15:
        raise UsageError(f"{text!r} is no number of bytes per second, such as 25M")
    return rate


ACTUATOR = Actuator("pace", "BYTES_PER_S", "holds back what each connection of a rank sends", "control", plan)
