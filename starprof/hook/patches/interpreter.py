"""What the interpreter tells: garbage collection, uncaught exceptions, exit, fork."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from types import TracebackType
from typing import Any

from starprof.hook.phases import GC
from starprof.hook.session import Hook
from starprof.model import events

FULL_GENERATION = 2


def install(hook: Hook) -> None:
    """Register the callbacks."""
    recorder = hook.recorder
    around: list[int] = []

    def collecting(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            token = recorder.enter(GC)
            if token is not None:
                around.append(token)
        elif around and recorder.counts():
            started = recorder.machine.since
            recorder.machine.leave(around.pop())
            if info.get("generation") == FULL_GENERATION:
                recorder.event(events.GC, value=(recorder.machine.since - started) // 1000)

    gc.callbacks.append(hook.guard.callback(collecting))
    _watch_exceptions(hook)
    atexit.register(hook.guard.attempt, recorder.finish)
    os.register_at_fork(after_in_child=lambda: hook.guard.attempt(_forked, recorder, around))


def _forked(recorder: Any, around: list[int]) -> None:
    around.clear()
    recorder.reset()


def _watch_exceptions(hook: Hook) -> None:
    """Note the exception that ends the process; whoever handled it before still does."""
    handle = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        hook.guard.attempt(hook.recorder.ended_by, kind.__name__)
        handle(kind, value, traceback)

    sys.excepthook = excepthook
