"""Events of a Chrome trace, a few megabytes at a time, and whatever is whole in a damaged one."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import msgspec

from starprof.errors import InputError
from starprof.importers.source import Source

CHUNK_BYTES = 4 << 20
MAX_EVENT_BYTES = 64 << 20
MAX_HEADER_BYTES = 64 << 20
MAX_LOST = 0.01
"""Share of the events that may be unreadable in a trace that still counts as whole."""
_PIECE_BYTES = 32 << 10
"""Read at once: of a gzip file that breaks off, no more than this is lost."""
_TAIL_BYTES = 256 << 10
_CANDIDATES = 4

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST_END = re.compile(rb"(?<=\})\s*\]")
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_NUMBER = re.compile(rb"(:\s*)(?:-?Infinity|-?inf|NaN|nan)(?=\s*[,}\]])")
_CONTROL = bytes(32 if b < 32 else b for b in range(256))


class Args(msgspec.Struct, gc=False):
    """Those arguments of an event that are used; whatever type they have."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    members: Any = msgspec.field(default=None, name="Process Group Ranks")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    correlation: Any = None


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = float("nan")
    dur: float = float("nan")
    tid: int | str | float | None = None
    args: Args | None = None


_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_header = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_FAILURES = (msgspec.MsgspecError, RecursionError, UnicodeError)


class _Cut(Exception):  # noqa: N818 - says where, not that something is wrong
    """The bytes end inside an event."""


class EventStream:
    """The events of one file.

    Attributes:
        header: the trace's keys beside its events, after `chunks` has run to its end.
        damage: in words, what was wrong with the file and how much was lost; empty when nothing was.
        whole: all but few of the events are there.
    """

    def __init__(self, source: Source) -> None:
        self.header: dict[str, Any] = {}
        self.damage: list[str] = []
        self.whole = True
        self._source = source
        self._unreadable = 0
        self._repaired = False
        self._ended = False
        self._cut_off = False
        self._bare = False

    def chunks(self) -> Iterator[list[Event]]:
        """All events in the order of the file.

        Raises:
            InputError: the file can't be read, holds no events, or nothing in it is whole.
        """
        seen = 0
        with self._source.open() as stream:
            buffer = self._before_events(stream)
            while True:
                buffer += self._read(stream, CHUNK_BYTES)
                events, buffer, tail = self._next(buffer)
                seen += len(events)
                if events:
                    yield events
                if tail is not None:
                    self._after_events(tail + self._read(stream, MAX_HEADER_BYTES))
                    break
                if self._ended:
                    self._cut_off = True
                    break
        if self._unreadable and not seen:
            raise InputError(f"{self._source.name}: none of its events can be read")
        if self._cut_off and not seen:
            raise InputError(f"{self._source.name} is cut off before its first event")
        self.whole = not self._cut_off and self._unreadable <= MAX_LOST * seen
        self._describe_damage()

    def _describe_damage(self) -> None:
        if self._cut_off:
            self.damage.append("the file is cut off: what comes after is missing")
        if self._unreadable:
            self.damage.append(f"{self._unreadable} events can't be read and are left out")
        if self._repaired:
            self.damage.append("characters that JSON does not allow were replaced")

    def _read(self, stream: BinaryIO, count: int) -> bytes:
        """Up to `count` bytes; a packed file that breaks off just ends there."""
        parts, left = [], count
        while left > 0 and not self._ended:
            try:
                part = cast("Any", stream).read1(min(left, _PIECE_BYTES))
            except (EOFError, zlib.error, OSError):
                self._cut_off, part = True, b""
            self._ended = not part
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _before_events(self, stream: BinaryIO) -> bytes:
        """Read the keys in front of the events; returns what was read of the events."""
        buffer = b""
        while len(buffer) < MAX_HEADER_BYTES and not self._ended:
            buffer += self._read(stream, CHUNK_BYTES)
            text = buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text.startswith(b"["):
                self._bare = True
                return text[1:]
            first = None
            for match in itertools.islice(_EVENTS_KEY.finditer(text), _CANDIDATES):
                first = first or match
                if self._header(text[: match.end()] + b"]}"):
                    return text[match.end() :]
            if first is not None:
                self.damage.append("what stands before the events can't be read")
                return text[first.end() :]
        raise InputError(f"{self._source.name} holds no traceEvents: it is no profiler trace, or cut off before them")

    def _after_events(self, tail: bytes) -> None:
        """Read the keys behind the events."""
        rest = tail.strip().removeprefix(b",").strip()
        if rest and rest != b"}":
            self._header(b"{" + rest)

    def _header(self, text: bytes) -> bool:
        for attempt in (text, _sanitised(text)):
            try:
                parts = _decode_header(attempt)
                self.header.update({k: msgspec.json.decode(v) for k, v in parts.items() if k != "traceEvents"})
            except _FAILURES:
                continue
            return True
        return False

    def _next(self, buffer: bytes) -> tuple[list[Event], bytes, bytes | None]:
        """Events at the front of the buffer, what is left of it, and what follows the last event of all (or None)."""
        if self._ended and (last := self._last(buffer.rstrip().removesuffix(b","))) is not None:
            return last[0], b"", last[1]
        offset = 0 if self._ended else max(0, len(buffer) - _TAIL_BYTES)
        between = list(_BETWEEN.finditer(buffer, offset))
        damaged = self._ended or len(buffer) > MAX_EVENT_BYTES
        for match in between[: -_CANDIDATES - 1 : -1]:
            try:
                events, tail = self._decode(buffer[: match.start()])
            except _Cut:
                continue
            except msgspec.MsgspecError:
                damaged = True
                continue
            rest = buffer[match.end() :]
            return (events, rest, None) if tail is None else (events, b"", tail + buffer[match.start() :])
        if not damaged:
            return [], buffer, None
        if self._ended:
            complete = buffer.rstrip().endswith((b"}", b"]"))
            return self._salvaged(buffer) if between else [], b"", b"" if between and complete else None
        end = between[-1].end() if between else len(buffer)
        return self._salvaged(buffer[:end]), buffer[end:], None

    def _last(self, whole: bytes) -> tuple[list[Event], bytes | None] | None:
        """The last events and what follows them; None when the text is damaged, or ends inside an event."""
        if not whole:
            return [], None
        ends = list(_LIST_END.finditer(whole, max(0, len(whole) - _TAIL_BYTES)))
        if ends:
            # Most often right, and saves reading the last part twice.
            with contextlib.suppress(_Cut, *_FAILURES):
                return _decode_events(b"[" + whole[: ends[-1].end()]), whole[ends[-1].end() :]
        try:
            events, tail = self._decode(whole)
        except (_Cut, msgspec.MsgspecError):
            return None
        # A bare list may end without its bracket; an object that lacks it is cut off between two events.
        return events, b"" if tail is None and self._bare and not self._cut_off else tail

    def _decode(self, text: bytes) -> tuple[list[Event], bytes | None]:
        """Events of a text that ends behind one of them, or behind the list; then also what follows the list.

        Raises:
            _Cut: the text ends inside an event.
            msgspec.MsgspecError: it is damaged.
        """
        for clean, decode in ((False, _decode_events), (True, _decode_events), (True, self._one_by_one)):
            taken = _sanitised(text) if clean else text
            try:
                events, tail = _split(decode, b"[" + taken + b"]")
            except _FAILURES:
                continue
            self._repaired |= taken != text
            return events, tail
        raise msgspec.DecodeError

    def _one_by_one(self, text: bytes) -> list[Event]:
        """Events of a list in which some have fields of the wrong type."""
        return self._typed([bytes(raw) for raw in _decode_raw(text)])

    def _salvaged(self, text: bytes) -> list[Event]:
        """Those events of a damaged part that are whole."""
        return self._typed([part.strip().removesuffix(b"]") for part in _BETWEEN.split(_sanitised(text))])

    def _typed(self, parts: list[bytes]) -> list[Event]:
        events = []
        for part in parts:
            try:
                events.append(_decode_event(part))
            except _FAILURES:
                self._unreadable += 1
        return events


def _split(decode: Callable[[bytes], list[Event]], wrapped: bytes) -> tuple[list[Event], bytes | None]:
    """Events of a list, and what follows it if it ends early.

    Raises:
        _Cut: it ends inside an event.
        msgspec.MsgspecError: it can't be read.
    """
    try:
        return decode(wrapped), None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        end = _TRAILING.search(str(error))
        if end is not None:
            behind = int(end[1]) - 1  # the number counts the first byte that is too much
            return decode(wrapped[:behind]), wrapped[behind:-1]
        if "truncated" in str(error):
            raise _Cut from None
        raise


def _sanitised(text: bytes) -> bytes:
    """The same without what JSON does not allow: control characters, unknown escapes, NaN, broken UTF-8."""
    text = text.translate(_CONTROL).decode("utf-8", errors="replace").encode()
    text = _SURROGATE.sub(rb"\\ufffd", text)
    text = _ESCAPE.sub(lambda m: m[0] if m[1] else rb"\\", text)
    return _NO_NUMBER.sub(rb"\1-1e18", text)
