"""A local socket in an event loop: questions and answers, each a line of JSON, with whoever this user lets in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

MAX_QUESTION_BYTES = 1 << 16
MAX_WAITING_BYTES = 8 << 20
MAX_VISITORS = 32
IDLE_S = 60.0


class Counter:
    """Everybody who has connected; the oldest makes room where there are too many."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """`answer` gets a question, and says what came of it; whatever is wrong with it."""
        self.answer = answer
        self.visitors: dict[Visitor, None] = {}

    def accept(self) -> Visitor:
        """The protocol of a new connection."""
        return Visitor(self)


class Visitor(asyncio.Protocol):
    """One connection."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        visitors = self._counter.visitors
        visitors[self] = None
        if len(visitors) > MAX_VISITORS:
            next(iter(visitors)).leave()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Called by the loop."""
        self._counter.visitors.pop(self, None)
        if self._idle is not None:
            self._idle.cancel()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._wait()
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            self._answer(line)
        if len(self._buffer) > MAX_QUESTION_BYTES:
            self.leave()

    def leave(self) -> None:
        """Hang up."""
        self._counter.visitors.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.leave)

    def _answer(self, line: bytes) -> None:
        assert self._transport is not None
        try:
            question = json.loads(line)
        except (ValueError, RecursionError):
            question = None
        said = self._counter.answer(question if isinstance(question, dict) else {})
        self._transport.write(json.dumps(said).encode() + b"\n")
        if self._transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self.leave()
