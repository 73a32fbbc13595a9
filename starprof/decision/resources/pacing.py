"""How fast each worker may send, so that a node's interface and processor stay below their limits.

A worker that is ready `ready_s` after the begin of an iteration and sends `size_bytes` at a rate `r` is done at
`ready_s + size_bytes / r`. Nobody needs to be done before its job's deadline, when the job's slowest worker elsewhere
is: sending just in time costs nobody anything and takes the least bandwidth. If those rates don't fit below the
limit, all deadlines of the node move by the same time `late_s`, the least with which the rates fit: no other rates
that fit make the latest less late, since with less time each worker would need a higher rate. `late_s` is the root of
a falling function, found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.decision.resources.amounts import LIMIT, NOTHING, TINY, Amount, rate_words, time_words

HALVINGS = 60
LONGEST_S = 3_600.0
"""A delay that needs longer is no plan."""


@dataclass(frozen=True, slots=True)
class Sender:
    """A worker's transmission of one iteration.

    Attributes:
        worker: its name.
        size_bytes: that it sends.
        ready_s: when it begins, from the begin of the iteration.
        deadline_s: when its job's slowest worker is done; sending that long delays nobody.
        most_bytes_per_s: that its own connection allows.
        cores_per_byte_per_s: processor time that sending takes.
    """

    worker: str
    size_bytes: float
    ready_s: float
    deadline_s: float
    most_bytes_per_s: float = math.inf
    cores_per_byte_per_s: float = 0.0

    def __post_init__(self) -> None:
        sound = (
            0.0 < self.size_bytes < math.inf
            and 0.0 <= self.ready_s < math.inf
            and 0.0 <= self.deadline_s < math.inf
            and self.most_bytes_per_s > 0.0
            and 0.0 <= self.cores_per_byte_per_s < math.inf
        )
        if not sound:
            raise ValueError(f"worker {self.worker}: a size, time or rate is out of range")


@dataclass(frozen=True)
class Pacing:
    """Rates of a node's workers.

    Attributes:
        bytes_per_s: of each worker; empty when it is refused.
        late_s: by which all deadlines move, 0 when all are kept.
        total: what the rates take together.
        refused: why there are no such rates; "" when there are.
        steps: how they were found.
    """

    bytes_per_s: Mapping[str, float]
    late_s: float
    total: Amount
    refused: str
    steps: tuple[str, ...]


def pace(senders: Sequence[Sender], capacity: Amount, used: Amount = NOTHING, limit: float = LIMIT) -> Pacing:
    """Rates with which no deadline is missed by more than necessary.

    Args:
        senders: workers of one node, of one job or several.
        capacity: of the node.
        used: by everything else on it.
        limit: share of the capacity that may be used.
    """
    if not senders:
        return Pacing({}, 0.0, NOTHING, "", ("nobody sends",))
    node = _Node(senders, (capacity.times(limit) - used).positive())
    steps = [f"limit: {node.spare.words} are left of {capacity.words} at {100.0 * limit:.3g} %"]
    in_time = node.fits(0.0)
    late_s = 0.0 if in_time else node.least_late_s()
    if math.isinf(late_s):
        why = f"{node.spare.words} left for {len(senders)} workers is not enough to send {node.words} at all"
        return Pacing({}, math.inf, NOTHING, why, (*steps, f"refuse: {why}"))
    rates = node.rates(late_s)
    total = node.total(rates)
    if in_time:
        steps.append(f"just in time: {total.words} together, and nobody is later than its job's slowest worker")
    else:
        steps.append(
            f"late: to stay below the limit all are done {time_words(late_s)} later, at {total.words} together"
        )
    at = int(rates.argmax())
    steps.append(f"fastest: {senders[at].worker} at {rate_words(float(rates[at]))}")
    named = {sender.worker: float(rate) for sender, rate in zip(senders, rates, strict=True)}
    return Pacing(named, late_s, total, "", tuple(steps))


class _Node:
    """The senders as arrays, shape (W,)."""

    def __init__(self, senders: Sequence[Sender], spare: Amount) -> None:
        self.spare = spare
        self._sizes = np.array([s.size_bytes for s in senders])
        self._time_s = np.array([s.deadline_s - s.ready_s for s in senders])
        self._most = np.array([s.most_bytes_per_s for s in senders])
        self._cores = np.array([s.cores_per_byte_per_s for s in senders])

    @property
    def words(self) -> str:
        """How much is sent."""
        return f"{self._sizes.sum() / 1e6:.3g} MB"

    def rates(self, late_s: float) -> NDArray[np.float64]:
        """The least rates with which everybody is done `late_s` after its deadline; infinite where none is enough."""
        time_s = self._time_s + late_s
        rates: NDArray[np.float64] = np.full(len(time_s), np.inf)
        with np.errstate(over="ignore"):  # next to no time needs an endless rate
            np.divide(self._sizes, time_s, out=rates, where=time_s > 0.0)
        return rates

    def total(self, rates: NDArray[np.float64]) -> Amount:
        """What rates take of the node."""
        return Amount(float(rates @ self._cores), float(rates.sum()))

    def fits(self, late_s: float) -> bool:
        """Whether those rates stay below all limits."""
        rates = self.rates(late_s)
        most = np.minimum(self._most, self.spare.bytes_per_s * (1.0 + TINY))
        return bool((rates <= most).all()) and self.total(rates).within(self.spare)

    def least_late_s(self) -> float:
        """The least time by which deadlines must move; infinite when no reasonable time is enough."""
        low, high = 0.0, 1e-6
        while not self.fits(high):
            low, high = high, high * 4.0
            if high > LONGEST_S:
                return math.inf
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high
