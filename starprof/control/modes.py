"""What a running job can be moved to: native steps, or rounds under one of the synchronisation modes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import get_type_hints

from starprof.errors import UsageError
from starprof.sync.policies import MODES, Policy, create
from starprof.sync.policies.ssgd import Ssgd

NATIVE_NAME = "native"
MANY_RANKS = 4096
"""Stands for the number of ranks where that is not known yet."""

NOT_CARRIED_OUT: Mapping[str, str] = MappingProxyType(
    {
        "zeno++": "it needs scores of gradients",
        "lb-bsp": "it needs batches of other sizes",
        "drop-compute": "it needs workers that stop in the middle of an iteration",
    }
)
"""Modes for the simulator alone, and why."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode as users name it.

    Attributes:
        name: `native`, or a name of `MODES`.
        options: of the mode.
    """

    name: str = NATIVE_NAME
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        """Whether these are the framework's own steps."""
        return self.name == NATIVE_NAME

    def policy(self, ranks: Iterable[int], version: int) -> Policy:
        """The policy of this mode for some ranks; rounds of everybody where too few of them are left for it."""
        ranks = list(ranks)
        options = dict(self.options)
        if "groups" in options:
            options["groups"] = _groups_of(options["groups"], ranks)
        try:
            return create(self.name, ranks, options, version)
        except UsageError:
            return Ssgd(ranks, version=version)


def _groups_of(groups: object, ranks: list[int]) -> list[list[int]]:
    """Those ranks in their groups; of a rank that is lost the rest of its group remains."""
    assert isinstance(groups, list)
    left = [[rank for rank in group if rank in ranks] for group in groups]
    return [group for group in left if group]


NATIVE = Mode()


def available() -> list[str]:
    """Names that may be asked for, native first."""
    return [NATIVE_NAME, *(name for name in MODES if name not in NOT_CARRIED_OUT)]


def mode(name: str, options: Mapping[str, object] | None, ranks: Iterable[int]) -> Mode:
    """A mode that a job of these ranks can be moved to.

    Raises:
        UsageError: there is none of that name, not for running jobs, or not with these options.
    """
    if name == NATIVE_NAME:
        if options:
            raise UsageError("mode native takes no options")
        return NATIVE
    if name in NOT_CARRIED_OUT:
        raise UsageError(f"mode {name} can't be had in a running job: {NOT_CARRIED_OUT[name]}")
    if name not in MODES:
        raise UsageError(f"no synchronisation mode is called {name!r}; there are {', '.join(available())}")
    for option, kind in get_type_hints(MODES[name].__init__).items():
        if options and option in options and not _fits(options[option], kind):
            raise UsageError(f"option {option} of mode {name} can't be {options[option]!r}")
    create(name, ranks, options)
    return Mode(name, dict(options or {}))


def before_start(name: str, options: Mapping[str, object] | None) -> Mode:
    """A mode for a job that has no ranks yet: those that the options name, else any number of them.

    Raises:
        UsageError: as of `mode`.
    """
    groups = (options or {}).get("groups")
    named = {rank for group in groups for rank in group} if isinstance(groups, list) and _fits(groups, list) else set()
    return mode(name, options, named or range(MANY_RANKS))


def _fits(value: object, kind: object) -> bool:
    """Whether a value has the kind of an option; the modes themselves look at how large it is."""
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if kind in (int, bool):
        return type(value) is kind
    return isinstance(value, list) and all(isinstance(group, list) and {*map(type, group)} <= {int} for group in value)
