"""torch.compile: time of a compilation; and keeping our own code out of what it traces."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any

from starprof.hook.lateimport import after_import
from starprof.hook.phases import COMPILE
from starprof.hook.session import Hook

OURS = "starprof."


def install(hook: Hook) -> None:
    """Time compilations once the compiler is loaded."""
    after_import("torch._dynamo.callback", lambda module: hook.guard.attempt(_time_compilations, hook, module))
    after_import("torch._dynamo", lambda _module: hook.guard.attempt(keep_out_of_graphs))


def _time_compilations(hook: Hook, module: ModuleType) -> None:
    """Extend the handler's own methods: registered callbacks are dropped by `torch._dynamo.reset`."""
    recorder = hook.recorder
    around: list[int] = []

    def start(_args: Any, _kwargs: Any) -> None:
        token = recorder.enter(COMPILE)
        if token is not None:
            around.append(token)

    def end(_args: Any, _kwargs: Any) -> None:
        if around and recorder.counts():
            recorder.machine.leave(around.pop())

    hook.wrap(module.CompilationCallbackHandler, "run_start_callbacks", start)
    hook.wrap(module.CompilationCallbackHandler, "run_end_callbacks", end)


def keep_out_of_graphs() -> int:
    """Tell the compiler to run the frames of our functions as they are; returns how many.

    After a graph break it would otherwise compile our wrappers, as functions that the user's code calls.
    """
    from torch._dynamo.eval_frame import skip_code

    codes: set[CodeType] = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and module is not None:
            _collect(vars(module).values(), name, codes)
    for code in codes:
        skip_code(code)
    return len(codes)


def _collect(values: Any, module: str, codes: set[CodeType]) -> None:
    for value in list(values):
        if isinstance(value, type) and value.__module__ == module:
            _collect(vars(value).values(), module, codes)
        else:
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if isinstance(function, FunctionType) and function.__module__ == module:
                _nested(function.__code__, codes)


def _nested(code: CodeType, codes: set[CodeType]) -> None:
    codes.add(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _nested(constant, codes)
