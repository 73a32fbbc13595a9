"""Everything that holds a value, by the name under which the journal knows it. Stable: old journals are read by it."""

from __future__ import annotations

from collections.abc import Mapping

from starprof.control.actuators.change import Knob
from starprof.control.actuators.groups import GroupFile, OwnGroup
from starprof.control.actuators.modeknob import ModeKnob
from starprof.control.actuators.orders import OrderKnob
from starprof.control.actuators.queues import QueueKnob
from starprof.control.actuators.scheduling import Affinity, IoPriority, Niceness

KNOBS: Mapping[str, Knob] = {
    "nice": Niceness(),
    "ioprio": IoPriority(),
    "affinity": Affinity(),
    "group-file": GroupFile(),
    "own-group": OwnGroup(),
    "queue": QueueKnob(),
    "order": OrderKnob(),
    "mode": ModeKnob(),
}
