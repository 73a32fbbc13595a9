"""Spans that the user names."""

from __future__ import annotations

from starprof.hook.phases import CHECKPOINT, COMPILE, DATA_WAIT, EVAL, H2D, USER
from starprof.hook.recorder import Recorder
from starprof.model import events

COLUMNS = {"data": DATA_WAIT, "h2d": H2D, "checkpoint": CHECKPOINT, "eval": EVAL, "compile": COMPILE}
"""Names that count to a column of their own."""
LONG_US = 10_000
"""Other spans of this length become events, so that the report can name them."""

Token = tuple[str, int, int]


class UserSpans:
    """Enters and leaves them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def enter(self, name: str) -> Token | None:
        """Begin one; None if this thread is not the loop's."""
        token = self._recorder.enter(COLUMNS.get(name, USER))
        return None if token is None else (name, token, self._recorder.clock())

    def leave(self, token: Token) -> None:
        """End it."""
        name, around, began = token
        recorder = self._recorder
        recorder.machine.leave(around)
        length_us = (recorder.clock() - began) // 1000
        if name not in COLUMNS and length_us >= LONG_US:
            recorder.event(events.SPAN, value=length_us, detail=name)
