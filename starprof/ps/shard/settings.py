"""What a shard is told when it starts: one JSON object on its command line; the secret is in the environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from starprof.errors import UsageError
from starprof.ps.speech import address_of


@dataclass(frozen=True, slots=True)
class Settings:
    """See `of`.

    Attributes:
        head: where the head listens.
        folder: of its files, its own.
        host: to listen on.
        port: to listen on; 0 for any.
        to_disk: what is acknowledged is on the disk itself, and outlives the machine.
        threads: of torch.
    """

    head: tuple[str, int]
    folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    to_disk: bool = False
    threads: int = 1

    @classmethod
    def of(cls, text: str) -> Settings:
        """Read them.

        Raises:
            UsageError: they make no sense.
        """
        try:
            told = json.loads(text)
            return cls(
                address_of(told["head"]),
                Path(told["folder"]),
                str(told.get("host", "127.0.0.1")),
                int(told.get("port", 0)),
                bool(told.get("to_disk", False)),
                int(told.get("threads", 1)),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"the settings of a shard are no such object: {error}") from error
