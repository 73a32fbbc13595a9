"""Which modes a parameter server can be in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from starprof.control import modes
from starprof.control.modes import NATIVE_NAME, NOT_CARRIED_OUT, Mode
from starprof.errors import UsageError
from starprof.sync.policies import MODES

NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        **NOT_CARRIED_OUT,
        NATIVE_NAME: "without rounds nothing reaches its parameters; ssgd is the mode in which all wait for all",
        "ring-x": "it is a way through a ring of workers; static-x decides alike",
        "local-sgd": "its workers keep no optimizer of their own",
        "hierarchical": "its workers keep no optimizer of their own",
    }
)
"""And why not the others."""

DEFAULT = Mode("ssgd")


def available() -> list[str]:
    """Names that may be asked for."""
    return [name for name in MODES if name not in NOT_HERE]


def mode(name: str, options: Mapping[str, object] | None, workers: Iterable[int]) -> Mode:
    """A mode for these workers.

    Raises:
        UsageError: there is none of that name, not here, or not with these options.
    """
    if name in NOT_HERE:
        raise UsageError(f"a parameter server can't be in mode {name}: {NOT_HERE[name]}")
    return modes.mode(name, options, workers)
