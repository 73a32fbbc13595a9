"""The advisor's talk with the job's coordinator: one question each time, by which it keeps its lease."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starprof.advisor.events import NATIVE, Denied, Event, Job, Loss, Move
from starprof.control.controlsocket import NobodyListensError, ask, folder_of
from starprof.errors import StarprofError, TransportError

PATIENCE_S = 2.0


@dataclass
class CoordinatorDesk:
    """Of one job.

    Attributes:
        spool: of the recording, beside which the coordinator listens.
        lease_s: how long the job may stay where the advisor has moved it without hearing of it.
        acts: whether it may ask for anything; else it only looks.
        there: whether the coordinator answered last time.
    """

    spool: Path
    lease_s: float
    acts: bool
    there: bool = False
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))
    _serial: int = 0
    _heard: int = -1
    _epoch: int = -1
    _home: str = NATIVE
    """What the job's mode is called in which all wait for all; an advisor takes it for native steps."""

    def talk(self, move: Move | None, state: dict[str, Any]) -> list[Event]:
        """Say that we are there and what is wanted; hear how the job is."""
        self._serial += 1
        question: dict[str, Any] = {"do": "status"}
        if self.acts:
            question = {
                "do": "advise",
                "holder": self._holder,
                "serial": self._serial,
                "lease_s": self.lease_s,
                "state": json.dumps({name: state[name] for name in state.keys() - {"notes", "memory"}}),
                "after": self._heard,
            }
            if move is not None:
                mode = self._home if move.mode == NATIVE else move.mode
                question |= {"mode": mode, "options": dict(move.options), "reason": move.reason}
        try:
            answer = ask(folder_of(self.spool), question, PATIENCE_S)
        except (NobodyListensError, TransportError):
            self.there = False
            return [Denied("the coordinator does not answer")] if move is not None else []
        self.there = True
        if answer.get("ok") is not True:
            return [Denied(str(answer.get("error", "refused")))] if move is not None else []
        try:
            return self._events(answer, asked=move is not None)
        except (KeyError, TypeError, ValueError) as error:
            raise StarprofError(f"the coordinator's answer makes no sense: {error!r}") from error

    def _events(self, answer: dict[str, Any], *, asked: bool) -> list[Event]:
        if answer["epoch"] != self._epoch:
            self._epoch, self._heard = answer["epoch"], -1  # another coordinator numbers anew
        self._home = str(answer.get("home", NATIVE))
        found: list[Event] = []
        for entry in answer.get("health", ()):
            self._heard = max(self._heard, int(entry["serial"]))
            found.append(Loss(entry.get("loss"), entry.get("norm"), bool(entry["finite"])))
        found.append(_job(answer, self._home))
        if asked and answer.get("denied"):
            found.append(Denied(str(answer["denied"])))
        return found


def _job(answer: dict[str, Any], home: str) -> Job:
    reasons = [reason for told in answer["refusals"] for reason in told["reasons"]]
    noise = answer["noise"]
    last = answer["last_switch"]
    return Job(
        mode=NATIVE if answer["mode"] == home else str(answer["mode"]),
        options=dict(answer["options"]),
        asked_by=str(answer.get("asked_by") or (last["asked_by"] if last else "")),
        frozen=str(answer["frozen_by"] or ""),
        operator=str(answer["operator"] or ""),
        refused=str(answer["refused"] or "; ".join(sorted(set(reasons)))),
        settled=answer["state"] == ("native" if answer["mode"] == NATIVE else "rounds")
        and (answer["wish"], answer["wish_options"]) == (answer["mode"], answer["options"]),
        noise=_noise(noise),
    )


def _noise(told: dict[str, Any] | None) -> tuple[float, float] | None:
    """An end that is not known leaves the whole unknown."""
    if told is None or told["low"] is None or told["high"] is None:
        return None
    return max(float(told["low"]), 0.0), float(told["high"])
