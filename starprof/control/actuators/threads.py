"""Thread counts of torch's operations and of OpenMP, set by the rank itself in the thread that trains."""

from __future__ import annotations

from starprof.control.actuators import orders
from starprof.control.actuators.base import Actuator, Request, ordered
from starprof.control.actuators.change import Change

MOST = 4096


def plan(request: Request) -> list[Change]:
    """See `base.Actuator`."""
    count = request.whole(1, MOST, "threads")
    return ordered(request, "threads", orders.THREADS, count, f"{count} threads for torch and OpenMP")


ACTUATOR = Actuator("threads", "COUNT", "threads that torch and OpenMP use in a rank", "control", plan)
