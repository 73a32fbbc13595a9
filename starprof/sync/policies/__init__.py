"""All synchronisation modes, by the names that users write."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from starprof.errors import UsageError
from starprof.sync.policies.asgd import Asgd
from starprof.sync.policies.base import (
    NO_STEPS,
    NOTHING,
    Arrived,
    Decision,
    Event,
    Gradient,
    Joined,
    Left,
    LocalSteps,
    Policy,
    Predicted,
    Scored,
    Update,
    Woken,
)
from starprof.sync.policies.deadline import Deadline
from starprof.sync.policies.drop_compute import DropCompute
from starprof.sync.policies.dynamic_x import DynamicX
from starprof.sync.policies.eager import Eager
from starprof.sync.policies.lb_bsp import LbBsp
from starprof.sync.policies.local_sgd import Hierarchical, LocalSgd
from starprof.sync.policies.m_sync import Backup, Lgc, MSync, MSyncFold
from starprof.sync.policies.rennala import Rennala
from starprof.sync.policies.ring_x import RingX
from starprof.sync.policies.ringmaster import Ringmaster
from starprof.sync.policies.ssgd import Ssgd
from starprof.sync.policies.ssp import Ssp
from starprof.sync.policies.static_x import StaticX
from starprof.sync.policies.sync_switch import SyncSwitch
from starprof.sync.policies.zeno import ZenoPlusPlus

__all__ = [
    "MODES",
    "NOTHING",
    "NO_STEPS",
    "Arrived",
    "Decision",
    "Event",
    "Gradient",
    "Joined",
    "Left",
    "LocalSteps",
    "Policy",
    "Predicted",
    "Scored",
    "Update",
    "Woken",
    "create",
]

MODES: dict[str, type[Policy]] = {
    mode.name: mode
    for mode in (
        Ssgd,
        Asgd,
        StaticX,
        DynamicX,
        RingX,
        MSync,
        MSyncFold,
        Deadline,
        LocalSgd,
        Hierarchical,
        Backup,
        Ssp,
        Lgc,
        LbBsp,
        SyncSwitch,
        ZenoPlusPlus,
        Eager,
        DropCompute,
        Rennala,
        Ringmaster,
    )
}


def create(name: str, workers: Iterable[int], options: Mapping[str, object] | None = None, version: int = 0) -> Policy:
    """A policy by its name.

    Args:
        name: as in `MODES`.
        workers: that take part.
        options: of the mode, by the names of its arguments, such as `{"m": 6}`.
        version: updates that the workers' parameters have seen.

    Raises:
        UsageError: there is no such mode, or it can't be had with these options.
    """
    mode = MODES.get(name)
    if mode is None:
        raise UsageError(f"no synchronisation mode is called {name!r}; there are {', '.join(MODES)}")
    try:
        return mode(workers, **(options or {}), version=version)
    except (TypeError, ValueError) as error:
        takes = [p for p in inspect.signature(mode).parameters if p not in {"workers", "version"}]
        raise UsageError(f"mode {name} takes {', '.join(takes) or 'no options'}: {error}") from error
