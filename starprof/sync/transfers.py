"""Whose network interface is slow: a running estimate of what each rank's part in the reductions costs the others.

A rank that computes fast hands its gradient in early, a word to the coordinator. What then takes long is its part of
the reduction, which everybody waits for. Each rank tells for how long its data was on its way to another one. A slow
way may be the fault of either end; who takes the blame is the rank that the most slow ways have as an end, until none
is left. Where two are equal the sender does. A rank that is blamed wrongly is free again as soon as it isn't: while
it is left out, the others' ways become different ones, and tell more.

A rank that is left out has no part in reductions, so nothing new is learned of it. It is tried again from time to
time, so seldom that the slow rounds which that may bring are a small share of the time, and of its gradients.

No clock: whoever tells something says when it was.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

REMEMBERED = 8
"""Reductions that a way is judged by."""

ENOUGH = 5
"""Reductions that a way is judged after: a hiccup is none."""

LEAST_S = 0.010
"""What matters: less is within a few ticks of the kernel's clock for such times, and busy machines vary by it."""

TRIED_SHARE = 0.05
"""Of the time may be lost with trying ranks again."""

TRIED_AFTER = 20
"""Gradients that a rank has handed in since it was last tried."""

CLEARED_BY = 3
"""Reductions in a row in which a rank that is tried was not half as slow as it was known to be: that is forgotten."""

TRIED_FOR = 12
"""Gradients after which a trial ends that has told nothing, or too little."""

MAX_DELAY_S = 10.0
"""A gradient is held back no longer, whatever was measured."""

Way = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank tells of the reductions since it last told.

    Attributes:
        to: rank that its data went to.
        us: that the data of a reduction was on its way, from the first byte to the last one's acknowledgement.
    """

    to: int
    us: int


@dataclass(slots=True)
class _Slow:
    """A rank that the others would wait for.

    Attributes:
        extra_s: how much longer its part takes than a usual one.
        try_at_s: when it may be tried again.
        handed_in: gradients since it was last tried.
        tried: whether it is just now.
        good: reductions in a row in which it was not slow when it was tried.
    """

    extra_s: float
    try_at_s: float
    handed_in: int = 0
    tried: bool = False
    good: int = 0


class Transfers:
    """Those of one job."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Nothing is known of these ranks."""
        self._judged_every = len(set(ranks))
        self._told = 0
        self._suspicious = False
        self._ways: dict[Way, deque[int]] = {}
        self._limit_s = LEAST_S
        self._slow: dict[int, _Slow] = {}

    @property
    def slow(self) -> dict[int, float]:
        """How much longer the reductions take with a rank in them, in seconds, of those that are held back."""
        return {rank: known.extra_s for rank, known in self._slow.items()}

    def told(self, rank: int, sent: Sequence[Sent], now_s: float) -> None:
        """A rank has told for how long its data was on its way, if it has."""
        if not sent:
            return
        for one in sent:
            way = (rank, one.to)
            self._ways.setdefault(way, deque(maxlen=REMEMBERED)).append(one.us)
            self._suspicious |= one.us * 1e-6 > LEAST_S
            if self._slow:
                self._tried(way, one.us * 1e-6, now_s)
        self._told += 1
        if self._told >= self._judged_every:
            if self._suspicious or self._slow:
                self._judge(now_s)
            self._told, self._suspicious = 0, False

    def delay_s(self, rank: int, now_s: float) -> float:
        """A rank hands a gradient in: how much later than now it counts as ready; 0 also where the rank is tried."""
        known = self._slow.get(rank)
        if known is None:
            return 0.0
        known.handed_in += 1
        if known.tried and known.handed_in > TRIED_FOR:
            self._try_later(known, now_s)
        elif not known.tried and known.handed_in > TRIED_AFTER and now_s >= known.try_at_s:
            known.tried, known.handed_in = True, 0
        return 0.0 if known.tried else min(known.extra_s, MAX_DELAY_S)

    def _tried(self, way: Way, took_s: float, now_s: float) -> None:
        """What a reduction says on a rank that is being tried, if one of its ends is."""
        for rank, other in (way, way[::-1]):
            known = self._slow.get(rank)
            if known is None or not known.tried:
                continue
            slow = took_s > self._limit_s + known.extra_s / 2
            if slow and other not in self._slow:
                known.good = 0
                self._try_later(known, now_s)
            elif not slow and rank == way[0]:
                known.good += 1
                if known.good >= CLEARED_BY:
                    self._clear(rank)

    def _try_later(self, known: _Slow, now_s: float) -> None:
        """All who are slow share the time that may be lost."""
        known.tried, known.handed_in = False, 0
        known.try_at_s = now_s + len(self._slow) * known.extra_s / TRIED_SHARE

    def _clear(self, rank: int) -> None:
        """What was known of it counts no more."""
        self._slow.pop(rank, None)
        for way in [way for way in self._ways if rank in way]:
            del self._ways[way]

    def _judge(self, now_s: float) -> None:
        usual = {way: median(times) * 1e-6 for way, times in self._ways.items() if len(times) >= ENOUGH}
        if not usual:
            return
        ordinary_s = sorted(usual.values())[(len(usual) - 1) // 4]
        self._limit_s = ordinary_s + max(LEAST_S, ordinary_s)
        blamed = blame({way: time_s - ordinary_s if time_s > self._limit_s else 0.0 for way, time_s in usual.items()})
        for rank in [rank for rank, known in self._slow.items() if rank not in blamed and not known.tried]:
            del self._slow[rank]
        for rank, extra_s in blamed.items():
            known = self._slow.get(rank)
            if known is None:
                known = self._slow[rank] = _Slow(extra_s, now_s)
                self._try_later(known, now_s)
            known.extra_s = extra_s


def blame(extra_s: Mapping[Way, float]) -> dict[int, float]:
    """Who takes the blame for slow ways, and for how much; as few ranks as are found by taking the worst one first.

    Args:
        extra_s: how much longer each way takes than a usual one; 0: it is none of the slow ones.
    """
    found: dict[int, float] = {}
    left = dict(extra_s)
    while any(left.values()):
        slow, fast = Counter[int](), Counter[int]()
        for way, more_s in left.items():
            (slow if more_s else fast).update(way)
        senders = {way[0] for way, more_s in left.items() if more_s}
        who = max(slow, key=lambda rank: (slow[rank], rank in senders, -fast[rank], -rank))
        found[who] = max(more_s for way, more_s in left.items() if who in way)
        left = {way: more_s for way, more_s in left.items() if who not in way}
    return found
