"""What an advisor may do at most: the user's word, checked before anything begins."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from starprof.control import modes
from starprof.errors import UsageError


class Authority(enum.StrEnum):
    """What an advisor does about what it finds."""

    OBSERVE = "observe"
    SUGGEST = "suggest"
    APPLY = "apply"


SAFE_MODES = ("m-sync", "m-sync-fold", "lgc", "backup", "deadline")
"""Those in which updates are made of fresh gradients, or of ones that are few updates old."""


@dataclass(frozen=True, slots=True)
class Limits:
    """See docs/advisor.md.

    Attributes:
        modes: that a job may be moved to, beside native steps.
        staleness: of any gradient, in updates.
        actions_per_hour: how often a job may be moved away from where it is; back to native steps it always may.
        accuracy_risk: see `starprof.decision.choice.progress.accuracy_risk`.
        gain: that a move must bring for sure: 0.1 is a tenth less time for the same progress.
        hold_s: after a way there and back nothing is moved for so long; each further one doubles it.
        canary_steps: of a new mode, after which it is judged.
        expiry_s: a verdict that nothing has confirmed for so long is void.
        lease_s: a job whose advisor is silent for so long goes back to native steps.
        drain_s: time that a host may be late in all before it is said that it should be drained.
        momentum: of the user's optimizer.
        shuffled: data are dealt out anew in each epoch.
    """

    modes: tuple[str, ...] = SAFE_MODES
    staleness: int = 8
    actions_per_hour: int = 6
    accuracy_risk: float = 0.5
    gain: float = 0.10
    hold_s: float = 20.0
    canary_steps: int = 30
    expiry_s: float = 120.0
    lease_s: float = 10.0
    drain_s: float = 300.0
    momentum: float = 0.9
    shuffled: bool = True

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Limits:
        """Read them, as they come from the command line or a JSON object.

        Raises:
            UsageError: there are none of that name, or not of that size.
        """
        known = {field.name: field for field in fields(cls)}
        made: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise UsageError(f"no limit is called {name!r}; there are {', '.join(known)}")
            made[name] = _modes(value) if name == "modes" else _value(name, value, type(known[name].default))
        return cls(**made)

    def to_json(self) -> dict[str, Any]:
        """As `of` reads it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _modes(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise UsageError("limit modes is a list such as m-sync,lgc")
    for name in names:
        if name not in modes.available() or name == modes.NATIVE_NAME:
            raise UsageError(f"limit modes: no running job can be moved to {str(name)!r}")
    return tuple(names)


def _value(name: str, value: object, kind: type) -> object:
    if kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"limit {name} is true or false")
        return value
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float) and math.isfinite(value))):
        raise UsageError(f"limit {name} is a {'whole ' if kind is int else ''}number")
    number = kind(value)
    least = {"canary_steps": 5, "hold_s": 1.0, "lease_s": 1.0, "expiry_s": 5.0}.get(name, 0)
    if number < least or (name == "momentum" and number >= 1) or (name == "accuracy_risk" and number > 1):
        raise UsageError(f"limit {name} can't be {value}")
    return number
