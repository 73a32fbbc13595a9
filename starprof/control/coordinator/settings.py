"""What a coordinator is told when it starts: one JSON object on its command line, and the secret apart from it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from starprof.control import modes
from starprof.control.modes import NATIVE, Mode
from starprof.errors import UsageError

TOKEN = "STARPROF_CONTROL_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the secret of the job's ranks and its coordinator."""

MAX_RANKS = 65_536
_SECRET_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """See `of`.

    Attributes:
        ranks: of the job; in JSON also how many, for 0 to that less one.
        state: folder of the control socket.
        host: to listen on.
        port: to listen on, 0 for any.
        epoch: greater than that of every coordinator of this job before.
        mode: that is wanted at the start; in JSON a name, with `options`.
        asked_by: who wants it.
        segments: folder of segments of this node's spool, where what was done is recorded; None: nowhere.
        node: id of this node.
        attempt: restart count of the job.
        max_lag: rounds that a rank may be behind before it has to take another one's state; None: any number.
        launcher: process that has started the ranks of this machine, in whose place the coordinator is to run; None: in
            that of whoever has started it.
        token_fd: file descriptor to read the secret from; None: it is in the environment.
        lease_s: a rank whose connection is cut may come back within this time.
        silent_s: a connection over which nothing has come, or much is not taken, for this time is cut; ranks say
            something each second.
        gather_s: how long the first hello of a rank may take.
        idle_s: end when no rank has been connected for this time.
        linger_s: how long to go on when all ranks have left.
    """

    ranks: tuple[int, ...]
    state: Path
    host: str = "127.0.0.1"
    port: int = 0
    epoch: int = 1
    mode: Mode = NATIVE
    asked_by: str = "user"
    segments: Path | None = None
    node: int = 0
    attempt: int = 0
    max_lag: int | None = None
    launcher: int | None = None
    token_fd: int | None = None
    lease_s: float = 2.0
    silent_s: float = 5.0
    gather_s: float = 10.0
    idle_s: float = 120.0
    linger_s: float = 1.0

    @classmethod
    def of(cls, text: str) -> Settings:
        """Read them.

        Raises:
            UsageError: they make no sense.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the settings are no JSON: {error}") from error
        if not isinstance(given, dict) or not {"ranks", "state"} <= given.keys():
            raise UsageError("the settings are an object with at least ranks and state")
        known = {field.name for field in fields(cls)}
        unknown = given.keys() - known - {"options"}
        if unknown:
            raise UsageError(f"there are no settings called {', '.join(sorted(map(str, unknown)))}")
        ranks = _ranks(given["ranks"])
        made: dict[str, Any] = {name: _value(name, given[name]) for name in given.keys() & known - {"ranks", "mode"}}
        wanted = modes.mode(_text("mode", given.get("mode", NATIVE.name)), _options(given.get("options")), ranks)
        return cls(ranks=ranks, mode=wanted, **made)

    def secret(self, environ: Mapping[str, str] = os.environ) -> bytes:
        """The secret, which is never on a command line.

        Raises:
            UsageError: there is none.
        """
        if self.token_fd is None:
            token = environ.get(TOKEN, "").encode()
        else:
            try:
                with open(self.token_fd, "rb") as stream:  # noqa: PTH123 - a descriptor has no path
                    token = stream.read(_SECRET_BYTES).strip()
            except OSError as error:
                raise UsageError(f"descriptor {self.token_fd} can't be read: {error.strerror or error}") from error
        if not token:
            raise UsageError(f"no secret: set {TOKEN}, or give token_fd")
        return token


def _ranks(value: Any) -> tuple[int, ...]:
    if type(value) is int and 0 < value <= MAX_RANKS:
        return tuple(range(value))
    if isinstance(value, list) and 0 < len(value) <= MAX_RANKS and all(type(r) is int and r >= 0 for r in value):
        return tuple(sorted(set(value)))
    raise UsageError(f"ranks is how many there are, or a list of them, up to {MAX_RANKS}")


def _options(value: Any) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("options is an object")
    return value


def _value(name: str, value: Any) -> Any:
    if name in {"state", "segments"}:
        return None if value is None and name == "segments" else Path(_text(name, value))
    if name in {"host", "asked_by"}:
        return _text(name, value)
    if name.endswith("_s"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise UsageError(f"{name} is a positive number of seconds")
        return float(value)
    if name in {"token_fd", "max_lag", "launcher"} and value is None:
        return None
    if type(value) is not int or value < 0 or (name == "port" and value > 65_535):
        raise UsageError(f"{name} is a whole number")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise UsageError(f"{name} is a text")
    return value
