"""Looks into the user's loop for collectives that it may call now and then, such as `if step % 100 == 0: barrier()`.

A rank that passes over iterations comes to such a place at another count than the others, which then wait for ever.
They can't be seen coming from the first steps, but in the code: in the body of the loop, and in what that calls of the
user's own. A name that is not found there may still be called by a library; one that is found may never be called.
"""

from __future__ import annotations

import dis
import inspect
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

PLAIN = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast_object_list",
        "gather_for_metrics",
        "gather_object",
        "monitored_barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter_object_list",
        "wait_for_everyone",
    }
)
"""Names that mean a collective wherever they stand."""
OF_TORCH = frozenset({"broadcast", "gather", "recv", "reduce", "scatter", "send"})
"""Names that mean one where they are torch.distributed's; tensors and others have methods called so."""
MOST_FUNCTIONS = 300
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = __file__.rpartition("/control/")[0]
_LOADS = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_OF_OBJECTS = ("LOAD_ATTR", "LOAD_METHOD")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some code of the user's, and what its names mean."""

    code: CodeType
    names: Mapping[str, Any]
    start: int = 0
    end: int = 1 << 62


def collective_in(frame: FrameType) -> str | None:
    """What collective the loop around a fetch may call; None if none is found.

    Args:
        frame: that has called the loader's iterator.
    """
    loop = _loop_around(frame)
    if isinstance(loop, str):
        return loop
    pending = [loop] if loop is not None else []
    seen: set[CodeType] = set()
    while pending and len(seen) < MOST_FUNCTIONS:
        piece = pending.pop()
        if piece.code in seen:
            continue
        seen.add(piece.code)
        for found in _called(piece):
            if isinstance(found, str):
                return found
            pending.append(found)
    return None


def _loop_around(frame: FrameType | None) -> _Piece | str | None:
    """The body of the loop that fetches batches; the name of a library whose loop it is."""
    while frame is not None:
        code = frame.f_code
        generator = bool(code.co_flags & inspect.CO_GENERATOR)
        if not generator and not code.co_filename.startswith(_OURS):
            if code.co_filename.startswith(_LIBRARIES):
                return f"a collective inside {frame.f_globals.get('__name__', 'a library')}"
            bounds = _bounds(code, frame.f_lasti)
            if bounds is not None:
                return _Piece(code, {**frame.f_globals, **frame.f_locals}, *bounds)
        frame = frame.f_back
    return None


def _bounds(code: CodeType, at: int) -> tuple[int, int] | None:
    """Where the loop begins and ends that an instruction is in: its own where it is a `for`'s, else the outermost."""
    ends: dict[int, int] = {}
    iterates = False
    for instruction in dis.get_instructions(code):
        if "JUMP_BACKWARD" in instruction.opname:
            ends[instruction.argval] = max(instruction.offset, ends.get(instruction.argval, 0))
        iterates = iterates or (instruction.offset == at and instruction.opname == "FOR_ITER")
    around = [(start, end) for start, end in ends.items() if start <= at <= end]
    if not around:
        return None
    return min(around, key=_length) if iterates else max(around, key=_length)


def _length(bounds: tuple[int, int]) -> int:
    return bounds[1] - bounds[0]


def _called(piece: _Piece) -> Iterator[_Piece | str]:
    """What a piece of code names: collectives, and functions of the user's."""
    holder: Any = None
    for instruction in dis.get_instructions(piece.code):
        if not piece.start <= instruction.offset <= piece.end:
            continue
        name = instruction.argval
        if isinstance(name, CodeType):
            yield _Piece(name, piece.names)
            continue
        if instruction.opname.startswith(_LOADS) and isinstance(name, str):
            holder = target = piece.names.get(name)
        elif instruction.opname.startswith(_OF_OBJECTS) and isinstance(name, str):
            target = holder = _attribute(holder, name)
        else:
            continue
        module = getattr(target, "__module__", None) or ""
        if name in PLAIN or (name in OF_TORCH and str(module).startswith("torch.distributed")):
            yield name
        function = target.__func__ if isinstance(target, MethodType) else target
        if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith((*_LIBRARIES, _OURS)):
            yield _Piece(function.__code__, function.__globals__)


def _attribute(holder: Any, name: str) -> Any:
    """What a module, a class or an object has under a name, without running any code of it."""
    if isinstance(holder, ModuleType):
        return vars(holder).get(name)
    try:
        found = inspect.getattr_static(holder, name)
    except AttributeError:
        return None
    return getattr(found, "__func__", found) if isinstance(found, staticmethod | classmethod) else found
