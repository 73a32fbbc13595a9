"""Command lines of this tool that carry a mode out, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starprof.model.rundata import RunData


def ctl_mode(run: RunData, mode: str, options: Mapping[str, object], reason: str = "") -> str:
    """Moves the running job to a mode."""
    parts = ["starprof", "ctl", _file(run), "mode", mode, *_options(options)]
    return shlex.join([*parts, "--reason", reason] if reason else parts)


def record_with_mode(run: RunData, mode: str, options: Mapping[str, object]) -> str:
    """Starts the job in a mode, with the command that was recorded."""
    started = shlex.join(["starprof", "record", "--control", "--mode", mode, *_options(options), "--"])
    return f"{started} {_command(run)}"


def record_controlled(run: RunData) -> str:
    """Starts the job so that its mode can be changed."""
    return f"starprof record --control -- {_command(run)}"


def imported(run: RunData) -> bool:
    """Whether the run came from files of another tool."""
    return bool(run.info.get("source_format"))


def _options(options: Mapping[str, object]) -> list[str]:
    told: list[str] = []
    for name, value in options.items():
        told += ["--option", f"{name}={json.dumps(value, separators=(',', ':'))}"]
    return told


def _file(run: RunData) -> str:
    return str(run.info.get("file") or "RUN")


def _command(run: RunData) -> str:
    """The recorded command as it was typed; imported runs have none."""
    known = run.info.get("command")
    if isinstance(known, str) and known and not imported(run):
        return known
    return "COMMAND"
