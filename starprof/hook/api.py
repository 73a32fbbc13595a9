"""What a training script may call: `watch`, `step`, `span`, `steps`.

All of them do nothing, and say nothing, when no recorder is active: a script that uses them runs anywhere.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

from starprof.hook.steps import steps
from starprof.model import env

if TYPE_CHECKING:
    from starprof.hook.install import Installed

__all__ = ["span", "step", "steps", "watch"]

_installed: Installed | None = None


def _hook() -> Installed | None:
    """The hook, if this process is recorded; torch is only loaded in that case."""
    global _installed
    if _installed is None and os.environ.get(env.SPOOL) and os.environ.get(env.DISABLE) != "1":
        from starprof.hook.install import install

        _installed = install()
    return _installed


def watch(model: Any, optimizer: Any | None = None) -> None:
    """Record this training loop: time the model's forward, and end a step with the optimizer's.

    Needed only where the loop is not started by `starprof record`, or where the wrong optimizer of several
    would mark the steps.

    Args:
        model: the root module that the loop calls.
        optimizer: the one whose `step` ends a training step; by default the first that steps.
    """
    installed = _hook()
    if installed is not None:
        installed.hook.guard.attempt(_watch, installed, model, optimizer)


def _watch(installed: Installed, model: Any, optimizer: Any | None) -> None:
    if not installed.hook.recorder.activate():
        return
    installed.hook.roots.add(model)
    if optimizer is not None:
        installed.boundary.watch(optimizer)


class step:  # noqa: N801 - reads as a statement: `with starprof.step():`
    """One training step of a loop that has no torch optimizer; then optimizers no longer end steps.

    A block that is left by an exception is no step.
    """

    def __enter__(self) -> None:
        installed = _hook()
        if installed is not None:
            installed.hook.guard.attempt(_begin_step, installed)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        installed = _installed
        if installed is None:
            return
        if kind is None:
            installed.hook.guard.attempt(_end_step, installed)
        else:
            installed.hook.guard.failed = kind.__name__


def _begin_step(installed: Installed) -> None:
    recorder = installed.hook.recorder
    if not recorder.activate() or not recorder.counts():
        return
    recorder.explicit = True
    if not recorder.started:
        recorder.begin_step_again()


def _end_step(installed: Installed) -> None:
    if installed.hook.recorder.counts():
        installed.hook.recorder.finish_step()


class span:  # noqa: N801 - reads as a statement: `with starprof.span("h2d"):`
    """A named part of a step.

    Args:
        name: `data`, `h2d`, `checkpoint`, `eval` and `compile` count to these columns; any other name counts to
            `user_us`, and is kept as an event when the span is long.
    """

    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._token: Any = None

    def __enter__(self) -> None:
        installed = _hook()
        if installed is not None:
            self._token = installed.hook.guard.attempt(installed.spans.enter, self._name)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is not None and _installed is not None:
            _installed.hook.guard.attempt(_installed.spans.leave, token)
