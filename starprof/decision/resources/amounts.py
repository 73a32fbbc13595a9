"""Amounts of what jobs on a node compete for, and how they are written in explanations."""

from __future__ import annotations

import math
from dataclasses import dataclass

LIMIT = 0.9
"""Share of a node's capacity above which it is taken for overloaded: queues grow without bound towards 1."""

ABSURD = 1e20
"""A share beyond this is one of nothing."""

TINY = 1e-9
"""Relative; smaller differences are rounding."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Processor time and bandwidth: cores, and bytes per second through the node's interface."""

    cores: float = 0.0
    bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cores) and math.isfinite(self.bytes_per_s)):
            raise ValueError(f"an amount must be finite: {self.cores} cores, {self.bytes_per_s} bytes/s")

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cores + other.cores, self.bytes_per_s + other.bytes_per_s)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.cores - other.cores, self.bytes_per_s - other.bytes_per_s)

    def times(self, factor: float) -> Amount:
        """Both multiplied."""
        return Amount(self.cores * factor, self.bytes_per_s * factor)

    def at_most(self, other: Amount) -> Amount:
        """The lesser of each."""
        return Amount(min(self.cores, other.cores), min(self.bytes_per_s, other.bytes_per_s))

    def positive(self) -> Amount:
        """The same with nothing below zero."""
        return Amount(max(self.cores, 0.0), max(self.bytes_per_s, 0.0))

    def share_of(self, capacity: Amount) -> float:
        """The larger share of a capacity; infinite where something is wanted of what is not there at all."""
        return max(_share(self.cores, capacity.cores), _share(self.bytes_per_s, capacity.bytes_per_s))

    def within(self, other: Amount) -> bool:
        """Whether the other covers both, up to rounding."""
        cores = self.cores <= other.cores + TINY * max(abs(self.cores), abs(other.cores))
        return cores and self.bytes_per_s <= other.bytes_per_s + TINY * max(
            abs(self.bytes_per_s), abs(other.bytes_per_s)
        )

    @property
    def nothing(self) -> bool:
        """Whether there is none of either."""
        return self.cores <= 0.0 and self.bytes_per_s <= 0.0

    @property
    def words(self) -> str:
        """As readers know it: "1.5 cores and 120 MB/s"."""
        parts = [f"{self.cores:.3g} cores"] if self.cores else []
        parts += [rate_words(self.bytes_per_s)] if self.bytes_per_s else []
        return " and ".join(parts) or "nothing"


NOTHING = Amount()


def _share(wanted: float, capacity: float) -> float:
    if capacity > 0.0:
        return wanted / capacity
    return math.inf if wanted > 0.0 else 0.0


def rate_words(bytes_per_s: float) -> str:
    """A rate in a unit of its size: "120 MB/s"."""
    return f"{bytes_words(bytes_per_s)}/s"


def bytes_words(size_bytes: float) -> str:
    """A size in a unit that suits it: "45.2 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.3g} bytes"


def share_words(share: float) -> str:
    """A share of a capacity: "87 %"."""
    return f"{100.0 * share:.3g} %" if share < ABSURD else "more than there is"


def time_words(seconds: float) -> str:
    """A time in a unit that suits it: "12.5 ms"."""
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1.0 else f"{seconds:.3g} s"
