"""Messages, first those of the round protocol, as bytes: JSON arrays, by the records' own type annotations.

A record is an array of its fields in order. Where one of several records may stand, as at the top, its class's name
comes first. Anything that does not fit the annotations is refused, so what comes out can be trusted to be well formed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from starprof.control.brief import FIRST, pack, unpack
from starprof.errors import TransportError
from starprof.sync.protocol.messages import ToCoordinator, ToRank

MAX_MESSAGE_BYTES = 16 << 20
"""A hello of a rank of hundreds that has missed a thousand rounds."""

MAX_EQUAL = 65_536
"""Equal numbers that are told as one: no message has more weights than a job has ranks, and some have gone on."""

_MAX_TEXT = 4096
_BRIEF = bytes((FIRST,))
_INT_LIMIT = 1 << 63

_Read = Callable[[Any], Any]
_Write = Callable[[Any], Any]


def _refuse(what: object) -> Any:
    raise TransportError(f"a message is not well formed: {str(what)[:80]}")


_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_decode_json = json.JSONDecoder(parse_constant=_refuse).raw_decode


class Codec:
    """Messages that are some records, as bytes and back."""

    def __init__(self, records: tuple[type, ...]) -> None:
        """For these."""
        self._read = _choice_reader(records)
        self._write = _choice_writer(records)

    def encode(self, message: Any) -> bytes:
        """A message as bytes.

        Raises:
            TransportError: it holds what no message may hold, or is too long.
        """
        try:
            data = _encode_json(self._write(message)).encode()
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise TransportError(f"a {type(message).__name__} can't be sent: {error}") from error
        if len(data) > MAX_MESSAGE_BYTES:
            raise TransportError(f"a {type(message).__name__} of {len(data)} bytes is too long to be sent")
        return data

    def decode(self, data: bytes) -> Any:
        """The message that some bytes mean.

        Raises:
            TransportError: they mean none.
        """
        if len(data) > MAX_MESSAGE_BYTES:
            _refuse(f"{len(data)} bytes")
        try:
            text = data.decode("ascii")
            value, end = _decode_json(text)
        except (ValueError, RecursionError) as error:
            raise TransportError("the other side sent something that is no message") from error
        if end != len(text):
            _refuse(text)
        return self._read(value)


# One reader and one writer are made for every annotation, once.


@cache
def _reader(hint: Any) -> _Read:
    if hint in _READERS:
        return _READERS[hint]
    if is_dataclass(hint):
        return _record_reader(cast("type", hint))
    choices = get_args(hint)
    if get_origin(hint) is tuple:
        return _tuple_reader(choices)
    if get_origin(hint) in (Union, UnionType):
        rest = _without_none(choices)
        one = _reader(rest[0]) if len(rest) == 1 else _choice_reader(rest)
        return one if len(rest) == len(choices) else lambda value: None if value is None else one(value)
    raise TypeError(f"messages can't hold {hint}")


@cache
def _writer(hint: Any) -> _Write:
    if hint in _READERS:
        return _READERS[hint]  # what may be written is what may be read
    if is_dataclass(hint):
        return _record_writer(cast("type", hint))
    choices = get_args(hint)
    if get_origin(hint) is tuple:
        return _tuple_writer(choices)
    if get_origin(hint) in (Union, UnionType):
        rest = _without_none(choices)
        one = _writer(rest[0]) if len(rest) == 1 else _choice_writer(rest)
        return one if len(rest) == len(choices) else lambda value: None if value is None else one(value)
    raise TypeError(f"messages can't hold {hint}")


def _without_none(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(choice for choice in choices if choice is not NoneType)


def _bool(value: Any) -> bool:
    return value if type(value) is bool else bool(_refuse(value))


def _int(value: Any) -> int:
    return value if type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT else int(_refuse(value))


def _ints(values: Any) -> Any:
    """Several at once: most of all messages is whole numbers, and a step of the training waits for them."""
    for value in values:
        if type(value) is not int or not -_INT_LIMIT <= value < _INT_LIMIT:
            _refuse(value)
    return values


def _float(value: Any) -> float:
    if type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT:
        return float(value)
    return value if type(value) is float and math.isfinite(value) else float(_refuse(value))


def _floats(value: Any) -> tuple[float, ...]:
    """Several at once: as they are, or how many of which one."""
    if type(value) is dict and value.keys() == {"n", "x"}:
        count, one = _int(value["n"]), _float(value["x"])
        return (one,) * count if 0 < count <= MAX_EQUAL else tuple(_refuse(count))
    return tuple([_float(part) for part in value]) if type(value) is list else tuple(_refuse(value))


def _written_floats(values: tuple[float, ...]) -> Any:
    """Weights are mostly equal, and have seventeen digits each."""
    first = _float(values[0]) if values else 0.0
    if len(values) > 1 and values.count(first) == len(values):
        return {"n": len(values), "x": first}
    return [_float(value) for value in values]


def _str(value: Any) -> str:
    return value if type(value) is str and len(value) <= _MAX_TEXT else str(_refuse(value))


_READERS: dict[Any, _Read] = {bool: _bool, int: _int, float: _float, str: _str}


def _record_reader(record: type) -> _Read:
    hints = get_type_hints(record)
    kinds = [hints[field.name] for field in fields(record)]
    readers = [_reader(kind) for kind in kinds]
    count = len(readers)

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != count:
            _refuse(value)
        return record(*[one(part) for one, part in zip(readers, value)])  # noqa: B905 - as many, and it takes time

    def read_ints(value: Any) -> Any:
        if type(value) is not list or len(value) != count:
            _refuse(value)
        return record(*_ints(value))

    return read_ints if set(kinds) == {int} else read


def _record_writer(record: type) -> _Write:
    hints = get_type_hints(record)
    kinds = [hints[field.name] for field in fields(record)]
    if not kinds:
        return lambda _value: []
    values_of = attrgetter(*[field.name for field in fields(record)])
    writers = [_writer(kind) for kind in kinds]
    if len(writers) == 1:
        return lambda value: [writers[0](values_of(value))]
    if set(kinds) == {int}:
        return lambda value: _ints(values_of(value))
    return lambda value: [one(part) for one, part in zip(writers, values_of(value))]  # noqa: B905


def _tuple_reader(choices: tuple[Any, ...]) -> _Read:
    if len(choices) == 2 and choices[1] is Ellipsis:
        one = _reader(choices[0])
        if choices[0] is int:
            return lambda value: tuple(_ints(value)) if type(value) is list else _refuse(value)
        if choices[0] is float:
            return _floats

        def read_all(value: Any) -> tuple[Any, ...]:
            if type(value) is not list:
                _refuse(value)
            return tuple([one(part) for part in value])

        return read_all
    readers = [_reader(choice) for choice in choices]

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(readers):
            _refuse(value)
        return tuple([one(part) for one, part in zip(readers, value, strict=True)])

    return read


def _tuple_writer(choices: tuple[Any, ...]) -> _Write:
    if len(choices) == 2 and choices[1] is Ellipsis:
        one = _writer(choices[0])
        if choices[0] is int:
            return _ints
        if choices[0] is float:
            return _written_floats
        return lambda value: [one(part) for part in value]
    writers = [_writer(choice) for choice in choices]
    return lambda value: [one(part) for one, part in zip(writers, value, strict=True)]


def _choice_reader(records: tuple[Any, ...]) -> _Read:
    readers = {record.__name__: _reader(record) for record in records}

    def read(value: Any) -> Any:
        if type(value) is not list or not value or type(value[0]) is not str or value[0] not in readers:
            _refuse(value)
        return readers[value[0]](value[1:])

    return read


def _choice_writer(records: tuple[Any, ...]) -> _Write:
    writers = {record: (record.__name__, _writer(record)) for record in records}

    def write(value: Any) -> list[Any]:
        name, one = writers[type(value)]
        return [name, *one(value)]

    return write


MESSAGES: tuple[type, ...] = (*get_args(ToRank), *get_args(ToCoordinator))
"""Every record that may be sent."""

_PROTOCOL = Codec(MESSAGES)


def encode(message: ToRank | ToCoordinator) -> bytes:
    """A message of the round protocol as bytes; raises TransportError as of `Codec.encode`."""
    return _PROTOCOL.encode(message)


def encode_briefly(message: ToRank | ToCoordinator) -> bytes:
    """A message as few bytes, where it has such a form (`brief`).

    Raises:
        TransportError: as `encode`.
    """
    return pack(message) or encode(message)


def decode(data: bytes) -> ToRank | ToCoordinator:
    """The message of the round protocol that some bytes mean.

    Raises:
        TransportError: they mean none.
    """
    if data[:1] == _BRIEF:
        return unpack(data)
    return cast("ToRank | ToCoordinator", _PROTOCOL.decode(data))
