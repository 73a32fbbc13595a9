"""The emulated accelerator of a rank, and the slow ranks that are emulated with it.

A step's compute is a sleep: the device works and the CPU is free, so that eight ranks on two cores don't slow each
other down. A straggler's sleeps are longer. The seed says when, the same for every mode that is compared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

BOUT_S = (1.5, 6.0)
"""When the transient straggler is slow, from the start of the training on."""
TURN_S = 1.0
"""For how long a rank is the slow one where they take turns."""
RANDOMLY = 0.1
"""Share of the steps in which a rank is slow where everybody is now and then."""
JITTER = 0.03
"""Standard deviation of a healthy step's compute, as a part of it."""

Slow = Callable[[float, random.Random], bool]
"""Whether a step that begins so many seconds after the start of the training is slow."""


def persistent(rank: int, world: int) -> Slow:
    """The last rank, always."""
    return lambda _at_s, _draw: rank == world - 1


def between(rank: int, world: int, from_s: float, to_s: float) -> Slow:
    """The last rank, from one moment to another."""
    return lambda at_s, _draw: rank == world - 1 and from_s <= at_s < to_s


def transient(rank: int, world: int) -> Slow:
    """The last rank, for some seconds."""
    return between(rank, world, *BOUT_S)


def randomly(_rank: int, _world: int) -> Slow:
    """Everybody, in some steps."""
    return lambda _at_s, draw: draw.random() < RANDOMLY


def rotating(rank: int, world: int) -> Slow:
    """One after the other."""
    return lambda at_s, _draw: int(at_s / TURN_S) % world == rank


def nobody(_rank: int, _world: int) -> Slow:
    """No rank."""
    return lambda _at_s, _draw: False


EMULATED: Mapping[str, Callable[[int, int], Slow]] = MappingProxyType(
    {
        "none": nobody,
        "persistent": persistent,
        "transient": transient,
        "random": randomly,
        "rotating": rotating,
    }
)


class Accelerator:
    """Computes for a rank.

    Attributes:
        began_s: start of the training, by the clock that all processes of the machine share.
        random: what this rank draws from.
    """

    def __init__(self, slow: Slow, factor: float, seed: int, work: Callable[[float], object] = time.sleep) -> None:
        """Compute by `work`, `factor` times as long in slow steps; `seed` differs between ranks."""
        self.began_s = time.monotonic()
        self._slow = slow
        self._factor = factor
        self.random = random.Random(seed)
        self._work = work
        self._this_step = 1.0

    def next_step(self) -> None:
        """A step begins."""
        slow = self._slow(time.monotonic() - self.began_s, self.random)
        self._this_step = max(0.5, self.random.gauss(1.0, JITTER)) * (self._factor if slow else 1.0)

    def __call__(self, seconds: float) -> None:
        """A part of the step that takes a healthy rank so long."""
        self._work(seconds * self._this_step)
