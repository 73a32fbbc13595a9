"""Garbage collection in the same steps on all ranks: where each collects when it likes, all wait for each in turn."""

from __future__ import annotations

from starprof.control.actuators import orders
from starprof.control.actuators.base import Actuator, Request, ordered
from starprof.control.actuators.change import Change

MOST_STEPS = 1_000_000


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    every = request.whole(1, MOST_STEPS, "steps")
    return ordered(request, "collect", orders.COLLECT, every, f"garbage is collected every {every} steps only")


ACTUATOR = Actuator("collect", "STEPS", "collects garbage in the same steps on all ranks", "control", plan)
