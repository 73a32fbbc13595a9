"""Where workers' own times come from: descriptions, from which each simulation draws anew.

A source says how long the worker's next iteration takes, computing only: neither its transfers, which the exchange
adds, nor any waiting. All times are in seconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Draw = Callable[[float], float]
"""Own time of the iteration that begins at this simulated time."""

BLOCK = 256
"""Numbers that are drawn at once."""


class Source(ABC):
    """Own times of one worker."""

    @abstractmethod
    def start(self, seed: Sequence[int]) -> Draw:
        """Begin to draw; equal seeds give equal times.

        The last number of the seed is the worker's index, those before are the same for all workers of a job.
        """

    @property
    @abstractmethod
    def typical_s(self) -> float:
        """Mean own time, without what happens now and then."""


def in_blocks(fill: Callable[[int], np.ndarray]) -> Draw:
    """Draw many numbers at once and hand them out one by one."""
    ready: list[float] = []

    def draw(at_s: float) -> float:  # noqa: ARG001 - does not depend on it
        if not ready:
            ready.extend(fill(BLOCK)[::-1].tolist())
        return ready.pop()

    return draw


def _checked(mean_s: float) -> None:
    if not (mean_s > 0 and math.isfinite(mean_s)):
        raise ValueError(f"an iteration takes a time above 0 s, not {mean_s}")


@dataclass(frozen=True)
class Steady(Source):
    """Lognormal around a mean, each time like the one before to some degree.

    Attributes:
        mean_s: mean own time.
        cv: standard deviation over mean.
        correlation: of the logarithms of two consecutive times (AR(1)).
    """

    mean_s: float
    cv: float = 0.0
    correlation: float = 0.0

    def __post_init__(self) -> None:
        _checked(self.mean_s)
        if self.cv < 0 or not 0 <= self.correlation < 1:
            raise ValueError(f"cv {self.cv} must be at least 0, correlation {self.correlation} in [0, 1)")

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return self.mean_s

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        if self.cv == 0.0:
            mean_s = self.mean_s
            return lambda at_s: mean_s  # noqa: ARG005
        random = np.random.default_rng(seed)
        sigma = math.sqrt(math.log1p(self.cv**2))
        offset = math.log(self.mean_s) - sigma**2 / 2
        rho, fresh = self.correlation, math.sqrt(1 - self.correlation**2)
        last = [float(random.standard_normal())]

        def fill(count: int) -> np.ndarray:
            noise = random.standard_normal(count)
            if rho:
                level = last[0]
                for place in range(count):
                    level = rho * level + fresh * noise[place]
                    noise[place] = level
                last[0] = level
            return np.exp(offset + sigma * noise)

        return in_blocks(fill)


@dataclass(frozen=True)
class Exponential(Source):
    """A fixed part and an exponential one; `mean_s` is the mean of the sum."""

    mean_s: float
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        _checked(self.mean_s)
        if not 0 <= self.fixed_s < self.mean_s:
            raise ValueError(f"the fixed part {self.fixed_s} s must be less than the mean {self.mean_s} s")

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return self.mean_s

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        random = np.random.default_rng(seed)
        return in_blocks(lambda count: self.fixed_s + random.exponential(self.mean_s - self.fixed_s, count))


@dataclass(frozen=True)
class HeavyTailed(Source):
    """Pareto times: P(t > y) = (least / y)^tail_index, with the given mean.

    Attributes:
        mean_s: mean own time.
        tail_index: above 1, below which there is no mean; at most 2 there is no variance.
    """

    mean_s: float
    tail_index: float

    def __post_init__(self) -> None:
        _checked(self.mean_s)
        if not self.tail_index > 1:
            raise ValueError(f"a tail index of {self.tail_index} has no mean: it must be above 1")

    @property
    def least_s(self) -> float:
        """The shortest possible time."""
        return self.mean_s * (self.tail_index - 1) / self.tail_index

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return self.mean_s

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        random = np.random.default_rng(seed)
        return in_blocks(lambda count: self.least_s * (1.0 + random.pareto(self.tail_index, count)))


@dataclass(frozen=True)
class Episodes(Source):
    """A worker that is slower in some periods of simulated time.

    Attributes:
        base: its times otherwise.
        factor: by which iterations are longer that begin in one of the periods.
        periods_s: begin and end of each.
    """

    base: Source
    factor: float
    periods_s: tuple[tuple[float, float], ...]

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return self.base.typical_s

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        draw, periods, factor = self.base.start(seed), self.periods_s, self.factor

        def slowed(at_s: float) -> float:
            slow = any(begin <= at_s < end for begin, end in periods)
            return draw(at_s) * (factor if slow else 1.0)

        return slowed


@dataclass(frozen=True)
class Rotating(Source):
    """One of `count` workers is slow at a time, and another one in each period.

    Attributes:
        base: times otherwise.
        factor: by which the slow one's iterations are longer.
        period_s: how long it stays slow.
        turn: which of the turns is this worker's, from 0.
        count: turns until it is slow again.
    """

    base: Source
    factor: float
    period_s: float
    turn: int
    count: int

    @property
    def typical_s(self) -> float:
        """See the class above."""
        return self.base.typical_s

    def start(self, seed: Sequence[int]) -> Draw:
        """See the class above."""
        draw = self.base.start(seed)

        def slowed(at_s: float) -> float:
            slow = int(at_s / self.period_s) % self.count == self.turn
            return draw(at_s) * (self.factor if slow else 1.0)

        return slowed
