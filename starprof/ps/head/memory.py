"""What a head keeps in mind for the next one of its job, in a file that is replaced as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.errors import SpoolError

NAME = "head.json"


@dataclass
class Memory:
    """See the module.

    Attributes:
        epoch: counts the heads of this job.
        mode: that is wanted.
        options: of the mode.
        asked_by: who wants it.
        frozen_by: who wants it to stay so; "" for nobody.
        operator: who has taken the decision from the advisor; "" for nobody.
        spec: the model, as `Spec.to_json` tells it; None: nobody has told it yet.
        begun: all shards have had their initial parameters, and come back with what they have.
    """

    epoch: int = 0
    mode: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    asked_by: str = ""
    frozen_by: str = ""
    operator: str = ""
    spec: dict[str, Any] | None = None
    begun: bool = False

    @classmethod
    def read(cls, folder: Path) -> Memory:
        """What is there; nothing where there was no head before.

        Raises:
            SpoolError: it can't be read.
        """
        try:
            told = json.loads((folder / NAME).read_text())
            return cls(**told)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError) as error:
            raise SpoolError(f"{folder / NAME} can't be read: {error}") from error

    def write(self, folder: Path) -> None:
        """Keep it.

        Raises:
            SpoolError: that can't be.
        """
        part = folder / f"{NAME}.part"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps(vars(self)))
            part.rename(folder / NAME)
        except OSError as error:
            raise SpoolError(f"{folder / NAME} can't be written: {error}") from error
