"""Cooperative delay: a rank sleeps between two steps. Needs no right, and frees all that the rank would have used."""

from __future__ import annotations

from starprof.control.actuators import orders
from starprof.control.actuators.base import Actuator, Request, ordered
from starprof.control.actuators.change import Change

MOST_S = 10.0


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    seconds = request.number(0.0, MOST_S, "seconds")
    return ordered(request, "delay", orders.DELAY, seconds, f"{seconds:g} s longer in every step")


ACTUATOR = Actuator("delay", "SECONDS", "makes every step of a rank longer by a sleep", "control", plan)
