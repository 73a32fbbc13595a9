"""The one place where starprof and the user's program meet, and the only one that catches everything.

Whatever goes wrong in starprof is swallowed here, counted and reported as an event; after `LIMIT` errors the hook
turns itself off. The user's function is called exactly once, with its own result or exception, in every case.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch.compiler import is_dynamo_compiling

LIMIT = 20
"""Errors of ours after which the hook is off for the rest of the process."""

Enter = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Leave = Callable[[Any, Any], None]


class Guard:
    """Wraps everything of ours that runs in the user's process.

    Attributes:
        errors: how many exceptions of ours were swallowed.
        off: True after too many of them, for the rest of the process: everything passes through.
        report: called with (errors so far, "type at file:line") of each.
        failed: type name of the last exception of the user's that passed a wrapper, "" if none did.
        sampling: measure the time spent in our code.
        own_ns: that time.
        special: off or sampling; the usual path asks only this.
    """

    __slots__ = ("_clock", "_off", "_sampling", "errors", "failed", "own_ns", "report", "special")

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self.errors = 0
        self.report: Callable[[int, str], None] = _unreported
        self.failed = ""
        self.own_ns = 0
        self._off = self._sampling = self.special = False

    @property
    def off(self) -> bool:
        """See the class."""
        return self._off

    @off.setter
    def off(self, value: bool) -> None:
        self._off = value
        self.special = value or self._sampling

    @property
    def sampling(self) -> bool:
        """See the class."""
        return self._sampling

    @sampling.setter
    def sampling(self, value: bool) -> None:
        self._sampling = value
        self.special = value or self._off

    def attempt(self, ours: Callable[..., Any], *args: Any) -> Any:
        """Call something of ours; None if it fails."""
        if self.off:
            return None
        try:
            return ours(*args)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.swallow(error)
            return None

    def callback(self, ours: Callable[..., None]) -> Callable[..., None]:
        """A callback to register with torch or Python: never raises, does nothing in a compiled graph."""

        def safe(*args: Any) -> None:
            if is_dynamo_compiling():
                return
            started = 0
            if self.special:
                if self._off:
                    return
                started = self._clock()
            try:
                ours(*args)
            except Exception as error:  # noqa: BLE001 - the boundary
                self.swallow(error)
            if started:
                self.own_ns += self._clock() - started

        return safe

    def around(self, original: Callable[..., Any], enter: Enter, leave: Leave | None = None) -> Callable[..., Any]:
        """Wrap a function of torch's.

        Args:
            original: the function.
            enter: called before it with (args, kwargs); its result is the token for `leave`, None = leave out.
            leave: called after it with (token, result); result is None when the function raised.
        """

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(*args, **kwargs)
            started = 0
            if self.special:
                if self._off:
                    return original(*args, **kwargs)
                started = self._clock()
            try:
                token = enter(args, kwargs)
            except Exception as error:  # noqa: BLE001 - the boundary
                self.swallow(error)
                token = None
            if started:
                self.own_ns += self._clock() - started
            if token is None or leave is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._left_by(error, leave, token)
                raise
            if started:
                started = self._clock()
            try:
                leave(token, result)
            except Exception as error:  # noqa: BLE001 - the boundary
                self.swallow(error)
            if started:
                self.own_ns += self._clock() - started
            return result

        return wrapper

    def _left_by(self, error: BaseException, leave: Leave, token: Any) -> None:
        """The user's exception passes: remember its name only, never the frames and tensors it holds."""
        if not isinstance(error, StopIteration):
            self.failed = type(error).__name__
        self.attempt(leave, token, None)

    def swallow(self, error: Exception) -> None:
        """Count and report an exception of ours.

        Raises:
            Exception: the same one, when a signal handler of the user's raised it while our code ran.
        """
        with uncompiled():
            if _from_signal_handler(error.__traceback__):
                raise error
            self.errors += 1
            if self.errors >= LIMIT:
                self.off = True
            try:
                self.report(self.errors, describe_error(error))
            except Exception:  # noqa: BLE001 - the boundary: the report itself failed, the count is kept
                self.report = _unreported


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run rare, longer work of ours where torch.compile does not look at the frames of what it calls.

    After a graph break the compiler follows every call, also ours into the standard library.
    """
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None:
        yield
        return
    callback = eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(callback)


def describe_error(error: BaseException) -> str:
    """`type at file:line` of where it was raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__
    place = "/".join(traceback.tb_frame.f_code.co_filename.split("/")[-2:])
    return f"{type(error).__name__} at {place}:{traceback.tb_lineno}: {error}"


def _unreported(_errors: int, _detail: str) -> None:
    """Nobody to tell yet."""


def _from_signal_handler(traceback: TracebackType | None) -> bool:
    """Whether the exception came out of a Python signal handler."""
    handlers: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Callable[[int, FrameType | None], Any] | int | None = signal.getsignal(number)
        code = getattr(handler, "__code__", None)
        if code is not None:
            handlers.add(code)
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False
