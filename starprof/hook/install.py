"""Puts the hook into this process: once, and only when a recorder asked for it."""

from __future__ import annotations

from starprof.hook.boundary import Guard
from starprof.hook.patches import (
    backward,
    collectives,
    compilation,
    copies,
    data,
    interpreter,
    modules,
    optimizer,
    saving,
)
from starprof.hook.patches.optimizer import StepBoundary
from starprof.hook.recorder import from_environment
from starprof.hook.session import Hook
from starprof.hook.spans import UserSpans


class Installed:
    """The hook of this process and what ends its steps."""

    def __init__(self, hook: Hook, boundary: StepBoundary) -> None:
        self.hook = hook
        self.boundary = boundary
        self.spans = UserSpans(hook.recorder)


_installed: Installed | None = None


def install() -> Installed | None:
    """Patch torch, if recording was asked for; a second call changes nothing.

    Returns:
        The hook, None when nobody asked for a recording.
    """
    global _installed
    if _installed is None:
        guard = Guard()
        recorder = from_environment(guard)
        if recorder is None:
            return None
        hook = Hook(recorder, guard)
        for patch in (data, modules, backward, collectives, saving, interpreter, compilation, copies):
            guard.attempt(patch.install, hook)
        _installed = Installed(hook, optimizer.install(hook))
    return _installed
