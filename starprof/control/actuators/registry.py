"""All actuators, in order of preference: what needs no right first."""

from __future__ import annotations

from collections.abc import Mapping

from starprof.control.actuators import affinity, cgroup, collect, delay, niceness, pacing, resplit, shaping, threads
from starprof.control.actuators.base import Actuator

ACTUATORS: Mapping[str, Actuator] = {
    actuator.name: actuator
    for actuator in (
        delay.ACTUATOR,
        threads.ACTUATOR,
        affinity.ACTUATOR,
        niceness.ACTUATOR,
        niceness.IO_ACTUATOR,
        pacing.ACTUATOR,
        collect.ACTUATOR,
        resplit.ACTUATOR,
        cgroup.ACTUATOR,
        shaping.ACTUATOR,
    )
}
