"""What was wished for, in a line that ranks keep in mind: a coordinator that follows another one wants the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from starprof.control import modes
from starprof.control.modes import Mode
from starprof.errors import UsageError

MAX_CHARACTERS = 4000
"""A longer one is not kept: with the newest coordinator it is gone."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted.

    Attributes:
        mode: to be moved to.
        asked_by: who wants it.
        frozen_by: who wants it to stay so; "" for nobody.
        operator: who has taken the choice from the advisor; "" for nobody.
    """

    mode: Mode
    asked_by: str
    frozen_by: str = ""
    operator: str = ""

    def text(self) -> str:
        """As one line."""
        told = {
            "mode": self.mode.name,
            "options": dict(self.mode.options),
            "asked_by": self.asked_by,
            "frozen_by": self.frozen_by,
            "operator": self.operator,
        }
        return json.dumps(told)


def wish_of(text: str, ranks: Iterable[int]) -> Wish | None:
    """What a line means, if anything that makes sense."""
    try:
        told = json.loads(text)
        mode = modes.mode(str(told["mode"]), dict(told["options"]), ranks)
        return Wish(mode, str(told["asked_by"]), str(told["frozen_by"]), str(told["operator"]))
    except (ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None
