"""What the loop is doing now: an exclusive phase, so that a step's spans add up to the step by construction.

Every moment belongs to exactly one phase. A span that begins inside another takes over only where that makes
sense (`NEXT`): waiting for other ranks is waiting wherever it happens, but a data loader inside an evaluation is
part of the evaluation. What no span claims is `UNACCOUNTED`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from operator import floordiv

from starprof.model.schema import STEP_SPANS

PHASES = len(STEP_SPANS)
(
    DATA_WAIT,
    H2D,
    FORWARD,
    BACKWARD,
    BLOCKED,
    OPTIMIZER,
    GC,
    CHECKPOINT,
    EVAL,
    COMPILE,
    USER,
    UNACCOUNTED,
) = range(PHASES)
"""Phase numbers: the places of their columns in `STEP_SPANS`."""

_THOUSAND = repeat(1000)

_ALWAYS = {GC, BLOCKED}
_TAKES_OVER: dict[int, set[int]] = {
    UNACCOUNTED: set(range(PHASES)),
    USER: set(range(PHASES)) - {UNACCOUNTED},
    DATA_WAIT: {COMPILE} | _ALWAYS,
    H2D: _ALWAYS,
    FORWARD: {H2D, COMPILE, CHECKPOINT} | _ALWAYS,
    BACKWARD: {H2D, COMPILE} | _ALWAYS,
    BLOCKED: {GC},
    # A closure runs forward and backward inside the optimizer.
    OPTIMIZER: {DATA_WAIT, H2D, FORWARD, BACKWARD, COMPILE} | _ALWAYS,
    GC: set(),
    CHECKPOINT: _ALWAYS,
    # A backward pass shows that the "evaluation" was training.
    EVAL: {BACKWARD, OPTIMIZER, CHECKPOINT, COMPILE} | _ALWAYS,
    COMPILE: _ALWAYS,
}

NEXT: tuple[tuple[int, ...], ...] = tuple(
    tuple(new if new in _TAKES_OVER[current] else current for new in range(PHASES)) for current in range(PHASES)
)
"""NEXT[current][new]: the phase after `new` was entered inside `current`."""


class PhaseMachine:
    """Adds every nanosecond to the phase that was current.

    Attributes:
        current: the phase now.
        since: when it was last accounted for, ns.
        spent: ns per phase since the last `cut`.
    """

    __slots__ = ("_clock", "current", "since", "spent")

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self.current = UNACCOUNTED
        self.since = clock()
        self.spent = [0] * PHASES

    def reset(self) -> int:
        """Begin anew, outside all spans. Returns the time."""
        self.current = UNACCOUNTED
        return self.restart()

    def enter(self, phase: int) -> int:
        """Begin a span; returns what `leave` needs to go back to the span around it."""
        previous = self.current
        new = NEXT[previous][phase]
        if new != previous:
            now = self._clock()
            self.spent[previous] += now - self.since
            self.since = now
            self.current = new
        return previous

    def leave(self, previous: int) -> None:
        """End a span."""
        current = self.current
        if current != previous:
            now = self._clock()
            self.spent[current] += now - self.since
            self.since = now
            self.current = previous

    def arrive(self, waits: bool) -> int:
        """A gradient is ready inside a backward pass; returns the time.

        Everything since the last one was own work, also when that one looked like the last of all. With `waits`
        the time from here on is waiting for the gradients of others, until another gradient shows otherwise.
        """
        now = self._clock()
        if self.current in (BACKWARD, BLOCKED):
            self.spent[BACKWARD] += now - self.since
            self.since = now
            self.current = BLOCKED if waits else BACKWARD
        return now

    def cut(self) -> tuple[int, list[int]]:
        """End the step here: (now, ns per phase). The current phase goes on in the next step."""
        now = self._clock()
        spent = self.spent
        spent[self.current] += now - self.since
        self.since = now
        self.spent = [0] * PHASES
        return now, spent

    def restart(self) -> int:
        """Forget what was spent: a step begins now. Returns the time."""
        self.spent = [0] * PHASES
        self.since = self._clock()
        return self.since


def spans_us(duration_ns: int, spent_ns: list[int]) -> tuple[int, list[int]]:
    """Whole microseconds that still add up: (duration, spans in the order of `STEP_SPANS`).

    Each span is rounded down, and what that loses is unaccounted.
    """
    duration = duration_ns // 1000
    spans = list(map(floordiv, spent_ns, _THOUSAND))
    spans[UNACCOUNTED] += duration - sum(spans)
    return duration, spans
