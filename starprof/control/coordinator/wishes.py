"""What was wished for, on disk: a coordinator that follows another one wants what that one was told to want."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starprof.control import modes
from starprof.control.modes import Mode
from starprof.errors import UsageError

NAME = "wish.json"
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Wish:
    """What the users and advisors of a job want.

    Attributes:
        mode: to be moved to.
        asked_by: who wants it.
        frozen_by: who wants it to stay so; "" for nobody.
    """

    mode: Mode
    asked_by: str
    frozen_by: str = ""

    def keep(self, folder: Path) -> None:
        """Write it down; where that can't be, the next coordinator starts with what the job was started with."""
        told = {
            "mode": self.mode.name,
            "options": dict(self.mode.options),
            "asked_by": self.asked_by,
            "frozen_by": self.frozen_by,
        }
        aside = folder / f".{NAME}.{os.getpid()}"
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(told))
            aside.replace(folder / NAME)


def kept(folder: Path, ranks: Iterable[int]) -> Wish | None:
    """What was written down there, if anything that makes sense."""
    try:
        with (folder / NAME).open("rb") as stream:
            told = json.loads(stream.read(_MOST_BYTES))
        mode = modes.mode(str(told["mode"]), dict(told["options"]), ranks)
        return Wish(mode, str(told["asked_by"]), str(told["frozen_by"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None
