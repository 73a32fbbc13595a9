"""Reads the data in a pickle without running anything: builtin containers and scalars, nothing else.

A pickle is a program for a small stack machine. Python's own unpickler looks names up and calls what it finds; this
one knows only the instructions that make None, numbers, text, bytes, lists, tuples and dicts (protocols 0 to 5), and
refuses every other one by its name. What it makes is bounded by the number of objects; references between them are
kept as references, so that a file which refers to itself a billion times over stays as small as it is.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from starprof.errors import InputError

MAX_OBJECTS = 10_000_000
MAX_MARKS = 1000
MAX_NUMBER_BYTES = 64
"""Longer integers are no counters."""

_SCALARS = frozenset({str, int, bool, float, bytes, type(None)})


def read_pickle(data: bytes, name: str, max_objects: int = MAX_OBJECTS) -> Any:
    """What a pickle holds.

    Containers may contain one another or themselves: whoever walks through them must bound the walk.

    Args:
        data: the pickle.
        name: the file's name, for errors.
        max_objects: most objects that it may make.

    Raises:
        InputError: it is damaged, too large, or does something else than to build plain data.
    """
    machine = _Machine(data, name, max_objects)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error, UnicodeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is cut off or damaged: no readable pickle at byte {machine.at}") from error


class _Machine:
    """The stack machine; a method per instruction that needs one."""

    def __init__(self, data: bytes, name: str, max_objects: int) -> None:
        self.data = data
        self.name = name
        self.at = 0
        self.left = max_objects
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Run to the end. Nearly all instructions of a dump are the few that are written out here, for their speed."""
        data, memo, steps, from_bytes = self.data, self.memo, _STEPS, int.from_bytes
        at, stack, left = self.at, self.stack, self.left
        while True:
            code = data[at]
            at += 1
            if code == _BINGET:
                stack.append(memo[data[at]])
                at += 1
            elif code == _LONG_BINGET:
                stack.append(memo[from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == _BINPUT:
                memo[data[at]] = stack[-1]
                at += 1
                continue
            elif code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
                continue
            elif code == _BININT1:
                stack.append(data[at])
                at += 1
            elif code in (_SHORT_BINUNICODE, _BINUNICODE):
                begin = at + (1 if code == _SHORT_BINUNICODE else 4)
                end = begin + from_bytes(data[at:begin], "little")
                if end > len(data):
                    raise IndexError(end)
                stack.append(data[begin:end].decode("utf-8", "surrogatepass"))
                at = end
            else:
                self.at, self.left = at, left
                if code == _STOP:
                    return self._result()
                step = steps[code]
                if step is None:
                    raise InputError(f"{self.name} is no plain data: its pickle has the instruction {_name(code)}")
                step(self)
                at, stack, left = self.at, self.stack, self.left
                continue
            left -= 1
            if left < 0:
                self._too_much()

    def _result(self) -> Any:
        if self.outer:
            raise ValueError("marks left")
        return self.stack.pop()

    def _too_much(self) -> None:
        raise InputError(f"{self.name} holds more than can be true of a dump")

    def take(self, count: int) -> bytes:
        """The next bytes; never fewer."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise IndexError(count)
        part = self.data[self.at : end]
        self.at = end
        return part

    def length(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.at)
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def number(self, digits: bytes) -> int:
        if len(digits) > MAX_NUMBER_BYTES:
            raise ValueError("long number")
        return int(digits)

    def push(self, value: Any) -> None:
        self.left -= 1
        if self.left < 0:
            self._too_much()
        self.stack.append(value)

    def mark(self) -> None:
        if len(self.outer) >= MAX_MARKS:
            raise InputError(f"{self.name} is nested too deeply")
        self.outer.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def keep(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def add(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError("no list")
        target.extend(items)

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise TypeError("no dict")
        _fill(target, items)

    def set_one(self) -> None:
        value = self.stack.pop()
        self.set([self.stack.pop(), value])

    def add_one(self) -> None:
        value = self.stack.pop()
        self.add([value])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError(count)
        self.stack[-count:] = [tuple(self.stack[-count:])]
        self.left -= 1

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.stack = self.outer.pop()

    def old_integer(self) -> None:
        digits = self.line()
        self.push({b"00": False, b"01": True}.get(digits) if digits in (b"00", b"01") else self.number(digits))

    def binary_long(self, size: int) -> None:
        count = self.length(size)
        if count > MAX_NUMBER_BYTES:
            raise ValueError("long number")
        self.push(int.from_bytes(self.take(count), "little", signed=True))


def _fill(target: dict[Any, Any], items: list[Any]) -> None:
    """Only scalar keys: hashing nested tuples may take for ever."""
    keys = items[::2]
    if not _SCALARS.issuperset(map(type, keys)):
        raise TypeError("no scalar key")
    target.update(zip(keys, items[1::2], strict=True))


def _dict_of(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise TypeError("odd")
    made: dict[Any, Any] = {}
    _fill(made, items)
    return made


def _quoted(text: bytes) -> str:
    """Protocol 0's quoted string; the escapes that mean a character by its code."""
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
        raise ValueError("no quotes")
    return text[1:-1].decode("unicode_escape")


def _name(code: int) -> str:
    known = {op.code: op.name for op in pickletools.opcodes}
    return known.get(chr(code), f"0x{code:02x}, which does not exist")


def _table() -> list[Callable[[_Machine], None] | None]:
    """What every instruction does; None: refused."""
    steps: list[Callable[[_Machine], None] | None] = [None] * 256
    named: dict[str, Callable[[_Machine], None]] = {
        "PROTO": lambda m: None if m.length(1) <= 5 else _unknown_protocol(m),
        "FRAME": lambda m: None if m.length(8) <= len(m.data) else _cut(),
        "MARK": _Machine.mark,
        "POP": _Machine.pop,
        "POP_MARK": lambda m: m.since_mark().clear(),
        "DUP": lambda m: m.push(m.stack[-1]),
        "NONE": lambda m: m.push(None),
        "NEWTRUE": lambda m: m.push(True),
        "NEWFALSE": lambda m: m.push(False),
        "INT": _Machine.old_integer,
        "LONG": lambda m: m.push(m.number(m.line().removesuffix(b"L"))),
        "BININT": lambda m: m.push(m.length(4, signed=True)),
        "BININT1": lambda m: m.push(m.length(1)),
        "BININT2": lambda m: m.push(m.length(2)),
        "LONG1": lambda m: m.binary_long(1),
        "LONG4": lambda m: m.binary_long(4),
        "FLOAT": lambda m: m.push(float(m.line())),
        "BINFLOAT": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
        "STRING": lambda m: m.push(_quoted(m.line())),
        "BINSTRING": lambda m: m.push(m.take(m.length(4, signed=True)).decode()),
        "SHORT_BINSTRING": lambda m: m.push(m.take(m.length(1)).decode()),
        "UNICODE": lambda m: m.push(m.line().decode("raw_unicode_escape")),
        "SHORT_BINUNICODE": lambda m: m.push(m.take(m.length(1)).decode("utf-8", "surrogatepass")),
        "BINUNICODE": lambda m: m.push(m.take(m.length(4)).decode("utf-8", "surrogatepass")),
        "BINUNICODE8": lambda m: m.push(m.take(m.length(8)).decode("utf-8", "surrogatepass")),
        "SHORT_BINBYTES": lambda m: m.push(m.take(m.length(1))),
        "BINBYTES": lambda m: m.push(m.take(m.length(4))),
        "BINBYTES8": lambda m: m.push(m.take(m.length(8))),
        "EMPTY_LIST": lambda m: m.push([]),
        "LIST": lambda m: m.push(m.since_mark()),
        "APPEND": _Machine.add_one,
        "APPENDS": lambda m: m.add(m.since_mark()),
        "EMPTY_TUPLE": lambda m: m.push(()),
        "TUPLE": lambda m: m.push(tuple(m.since_mark())),
        "TUPLE1": lambda m: m.tuple_of(1),
        "TUPLE2": lambda m: m.tuple_of(2),
        "TUPLE3": lambda m: m.tuple_of(3),
        "EMPTY_DICT": lambda m: m.push({}),
        "DICT": lambda m: m.push(_dict_of(m.since_mark())),
        "SETITEM": _Machine.set_one,
        "SETITEMS": lambda m: m.set(m.since_mark()),
        "GET": lambda m: m.push(m.memo[m.number(m.line())]),
        "BINGET": lambda m: m.push(m.memo[m.length(1)]),
        "LONG_BINGET": lambda m: m.push(m.memo[m.length(4)]),
        "PUT": lambda m: m.keep(m.number(m.line())),
        "BINPUT": lambda m: m.keep(m.length(1)),
        "LONG_BINPUT": lambda m: m.keep(m.length(4)),
        "MEMOIZE": lambda m: m.keep(len(m.memo)),
    }
    codes = {op.name: ord(op.code) for op in pickletools.opcodes}
    for name, step in named.items():
        steps[codes[name]] = step
    return steps


def _unknown_protocol(machine: _Machine) -> None:
    raise InputError(f"{machine.name} is a pickle of an unknown protocol")


def _cut() -> None:
    raise IndexError("frame")


_STEPS = _table()
_STOP, _BINGET, _LONG_BINGET, _BINPUT, _BININT1, _BINUNICODE = b".hjqKX"
_SHORT_BINUNICODE, _MEMOIZE = 0x8C, 0x94
