"""A change of one value that somebody else may change too, and how it is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starprof.errors import StarprofError


class GoneError(StarprofError):
    """What held the value has ended, or is another one by now: there is nothing to be taken back."""


class RefusedError(StarprofError):
    """It may not be done, or can't be done here; the text says why."""


class Knob(Protocol):
    """Something that holds a value: a thread's niceness, a file of a control group, an interface's queue."""

    def read(self, target: Mapping[str, Any]) -> Any:
        """Its value now, as JSON has it.

        Raises:
            GoneError: there is no such thing any more.
            OSError: it can't be read.
        """
        ...

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """Set it.

        Raises:
            GoneError: there is no such thing any more.
            OSError: it can't be set.
        """
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """One value that is to be changed; all of it can be written as JSON.

    Attributes:
        knob: name of what holds it, see `knobs.KNOBS`.
        target: which one; of a process with its start, so that no other one with the same number is meant.
        old: value before.
        new: value after.
        words: the change in words, for people.
    """

    knob: str
    target: Mapping[str, Any]
    old: Any
    new: Any
    words: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {"knob": self.knob, "target": dict(self.target), "old": self.old, "new": self.new, "words": self.words}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Change:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError: it is none.
        """
        return cls(str(told["knob"]), dict(told["target"]), told["old"], told["new"], str(told.get("words", "")))
