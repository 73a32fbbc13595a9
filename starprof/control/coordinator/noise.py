"""Squared norms that ranks send now and then, put together update by update: the running gradient noise scale.

What a round is made of the coordinator knows; what each of its gradients and their sum measure come from different
ranks, in any order. Of a round that is reduced again the newest word counts. What never gets complete is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from starprof.sync.noise_scale import Estimate, NoiseScale, Squares, squares_of
from starprof.sync.protocol.messages import Close, Norms

KEPT = 256
"""Rounds that are remembered: norms of a round come with it, not long after."""

PENDING = 16
"""Updates whose norms are not complete."""


@dataclass(slots=True)
class _Pending:
    """Norms of one update, or of two in a row.

    Attributes:
        own: squared norm of each gradient, by rank and number.
        update: squared norms of the sum, by the try that made it.
        pair: the sum is of two rounds.
    """

    own: dict[tuple[int, int], float] = field(default_factory=dict)
    update: dict[int, float] = field(default_factory=dict)
    pair: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """An update whose norms are complete.

    Attributes:
        version: of the parameters that it was applied to.
        gradients: that went in.
        squares: what they tell.
        estimate: running one, with it.
    """

    version: int
    gradients: int
    squares: Squares
    estimate: Estimate


class NoiseBook:
    """Of one job."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """Begin with nothing; a native step is the mean over these ranks."""
        self._ranks = frozenset(ranks)
        self._closes: dict[int, Close] = {}
        self._native: dict[int, dict[int, Norms]] = {}
        self._rounds: dict[int, _Pending] = {}
        self._scale = NoiseScale()

    @property
    def estimate(self) -> Estimate | None:
        """The running noise scale, in batches of one rank; None before anything was seen."""
        return self._scale.estimate()

    def closed(self, close: Close) -> None:
        """A round is made of this, as far as is known."""
        self._closes[close.round] = close
        if len(self._closes) > KEPT:
            del self._closes[min(self._closes)]

    def told(self, norms: Norms) -> Seen | None:
        """A rank has sent norms; what has become complete with them."""
        if norms.native:
            return self._told_native(norms)
        pending = self._rounds.setdefault(norms.version, _Pending())
        if norms.own is not None and norms.number is not None:
            pending.own[norms.rank, norms.number] = norms.own
        if norms.update is not None:
            pending.update[norms.attempt] = norms.update
            pending.pair = norms.pair
        while len(self._rounds) > PENDING:
            del self._rounds[min(self._rounds)]
        # Norms of the first round of a pair are complete only with the second's.
        return self._complete(norms.version) or self._complete(norms.version + 1)

    def _told_native(self, norms: Norms) -> Seen | None:
        of_all = self._native.setdefault(norms.version, {})
        of_all[norms.rank] = norms
        while len(self._native) > PENDING:
            del self._native[min(self._native)]
        if of_all.keys() != self._ranks:
            return None
        del self._native[norms.version]
        own = [n.own for n in of_all.values() if n.own is not None]
        count = len(self._ranks)
        if norms.update is None or len(own) < count:
            return None
        # The reduced gradients are the mean already.
        return self._seen(norms.version, squares_of(own, [1.0 / count] * count, norms.update), count)

    def _complete(self, version: int) -> Seen | None:
        pending, close = self._rounds.get(version), self._closes.get(version)
        if pending is None or close is None or close.attempt not in pending.update:
            return None
        closes, own = [close], dict(pending.own)
        if pending.pair:
            before = self._closes.get(version - 1)
            if before is None or version - 1 not in self._rounds:
                return None
            closes, own = [before, close], {**self._rounds[version - 1].own, **own}
        gradients = [g for each in closes for g in each.gradients]
        if any((g.worker, g.number) not in own for g in gradients):
            return None
        for each in closes:
            del self._rounds[each.round]
        weights = [1.0] * len(gradients) if pending.pair else close.weights
        squares = [own[g.worker, g.number] for g in gradients]
        return self._seen(version, squares_of(squares, weights, pending.update[close.attempt]), len(gradients))

    def _seen(self, version: int, squares: Squares | None, gradients: int) -> Seen | None:
        if squares is None:
            return None
        self._scale.add(squares)
        estimate = self._scale.estimate()
        assert estimate is not None
        return Seen(version, gradients, squares, estimate)
