"""What a head is told when it starts: one JSON object on its command line; the secret is in the environment."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starprof.control.modes import Mode
from starprof.errors import UsageError
from starprof.ps.head import modes

MAX_WORKERS = 65_536


@dataclass(frozen=True, slots=True)
class Settings:
    """See `of`.

    Attributes:
        workers: that are waited for at the start; more may join later.
        shards: that the parameters are spread over.
        folder: of the control socket.
        state: folder of what the next head of this job has to know.
        host: to listen on.
        port: to listen on; 0 for any.
        mode: at the start.
        asked_by: who wants it.
        clip: norm that each update is clipped to; 0: not at all.
        segments: folder of segments of this node's spool; None: nothing is recorded.
        node: id of this node.
        attempt: restart count of the job.
        keep: what the shards have stays where it is when the training is over.
        lease_s: a worker whose connection is cut may come back within this time.
        silent_s: a connection over which nothing has come for this time is cut.
        gather_s: how long workers are waited for once the first one is there.
        idle_s: end when no worker has been there for this time.
        linger_s: how long to go on when all workers have left.
    """

    workers: int
    shards: int
    folder: Path
    state: Path
    host: str = "127.0.0.1"
    port: int = 0
    mode: Mode = modes.DEFAULT
    asked_by: str = "user"
    clip: float = 0.0
    segments: Path | None = None
    node: int = 0
    attempt: int = 0
    keep: bool = False
    lease_s: float = 2.0
    silent_s: float = 10.0
    gather_s: float = 120.0
    idle_s: float = 120.0
    linger_s: float = 1.0

    @classmethod
    def of(cls, text: str) -> Settings:
        """Read them.

        Raises:
            UsageError: they make no sense.
        """
        try:
            told = json.loads(text)
            workers, shards = _count("workers", told.pop("workers")), _count("shards", told.pop("shards"))
            name, options = told.pop("mode", "ssgd"), told.pop("options", {})
            wanted = modes.mode(str(name), dict(options), range(workers))
            given: dict[str, Any] = {key: _value(key, value) for key, value in told.items()}
            return cls(workers, shards, mode=wanted, **given)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"the settings of a head are no such object: {error}") from error


def _count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_WORKERS:
        raise UsageError(f"{name} is a number from 1 to {MAX_WORKERS}")
    return value


def _value(name: str, value: Any) -> Any:
    if name in {"folder", "state", "segments"}:
        return None if value is None else Path(str(value))
    if name == "clip" or name.endswith("_s"):
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise UsageError(f"{name} is a number that is not negative")
        return float(value)
    return value
