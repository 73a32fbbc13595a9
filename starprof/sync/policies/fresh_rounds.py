"""Rounds of gradients on the newest parameters, and what becomes of those that come too late for theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Gradient, Policy, mean, shared


class FreshRounds(Policy):
    """A round closes on some rule over the fresh gradients; late ones are dropped, or folded into the round under way.

    A worker that comes late is released at once with the newest parameters: it must not wait for a round that it
    does not hold up.

    Dropping takes the mean over those who contribute; folding, which gives every gradient its turn, the sum divided
    by the number of workers.
    """

    def __init__(self, workers: Iterable[int], *, staleness_cap: int = 0, version: int = 0) -> None:
        """Fold gradients of at most this staleness; 0: drop all that are late."""
        if staleness_cap < 0:
            raise ValueError(f"the staleness cap can't be negative: {staleness_cap}")
        super().__init__(workers, version=version)
        self.staleness_cap = staleness_cap
        self._folded: list[Gradient] = []

    @property
    def max_staleness(self) -> int | None:
        """Older ones are dropped."""
        return self.staleness_cap

    @property
    def leaves_out(self) -> bool:
        """Whoever is late."""
        return True

    @abstractmethod
    def _closes(self, at_s: float, draft: Draft) -> list[int]:
        """Who makes up the round that closes now, in order of arrival; nobody: it stays open."""

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if gradient.version == self.version:
            self.waiting[gradient.worker] = gradient
        else:
            self._late(gradient, draft)

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        draft.dropped += [g for g in self._folded if g.worker == worker]
        self._folded = [g for g in self._folded if g.worker != worker]

    def _settle(self, at_s: float, draft: Draft) -> None:
        while closing := self._closes(at_s, draft):
            taken = self._take(closing, draft) + self._folded
            self._folded = []
            folding = self.staleness_cap > 0
            weights = shared(len(taken), len(self.members)) if folding else mean(len(taken))
            self._apply(taken, weights, draft)
            # Whoever had arrived too, but was not needed, is late now.
            for worker in list(self.waiting):
                self._late(self.waiting.pop(worker), draft)

    def _wind_up(self, draft: Draft) -> None:
        if self._folded:
            taken, self._folded = self._folded, []
            self._apply(taken, shared(len(taken), len(self.members)), draft)

    def _late(self, gradient: Gradient, draft: Draft) -> None:
        kept = self.version - gradient.version <= self.staleness_cap
        (self._folded if kept else draft.dropped).append(gradient)
        draft.release.append(gradient.worker)
