"""What control sockets of coordinators and of parameter servers have in common: words of a question, the audit log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starprof.control.coordinator.advised import ADVISOR, Word
from starprof.control.modes import Mode
from starprof.errors import UsageError
from starprof.spool.audit import Audit

SCHEMA = 1
MAX_WORDS = 200
_CHANGES = frozenset({"mode", "freeze", "unfreeze", "gone", "move"})
_TOLD = ("mode", "options", "reason", "rank", "shard", "to")


def words(question: Mapping[str, Any], name: str, default: str) -> str:
    """A short text of the question."""
    return str(question.get(name, default))[:MAX_WORDS]


def options_of(question: Mapping[str, Any]) -> dict[str, Any] | None:
    """Options of a mode.

    Raises:
        UsageError: they are no object.
    """
    options = question.get("options")
    if options is not None and not isinstance(options, dict):
        raise UsageError("options is an object")
    return options


def advice_of(question: Mapping[str, Any], mode_of: Callable[[str, dict[str, Any] | None], Mode]) -> tuple[Word, int]:
    """What an advisor says, and the number of the last it has heard of the training's health.

    Raises:
        UsageError: it makes no sense, or the job can't be in that mode.
    """
    holder, serial, lease_s = question.get("holder"), question.get("serial"), question.get("lease_s")
    if not isinstance(holder, str) or not 0 < len(holder) <= MAX_WORDS or type(serial) is not int:
        raise UsageError("an advisor tells holder and serial")
    if type(lease_s) not in (int, float) or not math.isfinite(lease_s):  # type: ignore[arg-type]
        raise UsageError("lease_s is a number of seconds")
    after, options = question.get("after", -1), options_of(question)
    if type(after) is not int:
        raise UsageError("after is a number")
    wanted = mode_of(str(question["mode"]), options) if question.get("mode") is not None else None
    state = str(question.get("state", ""))
    return Word(holder, serial, float(lease_s), wanted, words(question, "reason", ""), state), after  # type: ignore[arg-type]


def write_down(segments: Path | None, question: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Whatever is to change the job goes into the run's audit log, whether it does or is refused."""
    if segments is None or (question.get("do") not in _CHANGES and "mode" not in question):
        return
    what = {name: question[name] for name in _TOLD if name in question}
    outcome = "accepted" if said["ok"] else said["error"]
    by = ADVISOR if question.get("do") == "advise" else words(question, "by", "user")
    Audit.of_spool(segments.parent).note(str(question.get("do")), by=by, **what, outcome=outcome)
