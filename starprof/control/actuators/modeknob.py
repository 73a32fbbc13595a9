"""The synchronisation mode of a job, as something that is changed for a while and put back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starprof.control.actuators.change import GoneError, RefusedError
from starprof.control.controlsocket import NobodyListensError, ask, folder_of
from starprof.errors import TransportError


class ModeKnob:
    """Target: `spool` of the job. Value: the wanted mode, [name, options]."""

    def read(self, target: Mapping[str, Any]) -> Any:
        """See `change.Knob`."""
        told = self._ask(target, {"do": "status"})
        return [told["wish"], told["wish_options"]]

    def write(self, target: Mapping[str, Any], value: Any) -> None:
        """See `change.Knob`."""
        name, options = value
        question = {"do": "mode", "mode": name, "options": options, "by": "calibrate", "reason": "a measurement"}
        self._ask(target, question)

    def _ask(self, target: Mapping[str, Any], question: dict[str, Any]) -> dict[str, Any]:
        try:
            told = ask(folder_of(Path(target["spool"])), question)
        except NobodyListensError as error:
            raise GoneError(str(error)) from error
        except TransportError as error:
            raise RefusedError(str(error)) from error
        if told.get("ok") is not True:
            raise RefusedError(str(told.get("error", "the coordinator refused")))
        return told
