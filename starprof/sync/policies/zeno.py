"""Zeno++: asynchronous, but a gradient must pass a test of the server's own before it is applied."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Gradient, Policy, Scored, shared


class ZenoPlusPlus(Policy):
    """Each gradient's score is asked for; it is applied when the score is high enough, else dropped.

    The score estimates how much the loss on the server's own validation batch falls by the step: the server has it
    from the inner product of the gradient with its validation gradient and from the gradient's norm.
    """

    name = "zeno++"
    drops = True

    def __init__(
        self, workers: Iterable[int], *, least_score: float = 0.0, staleness_cap: int = 64, version: int = 0
    ) -> None:
        """Apply what scores at least `least_score` and is not staler than the cap."""
        super().__init__(workers, version=version)
        self.least_score = least_score
        self.staleness_cap = staleness_cap

    @property
    def max_staleness(self) -> int:
        """Older ones are dropped unscored."""
        return self.staleness_cap

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self._too_old(gradient):
            draft.dropped.append(gradient)
            draft.release.append(gradient.worker)
        else:
            self.waiting[gradient.worker] = gradient
            draft.score.append(gradient)

    def _scored(self, event: Scored, draft: Draft) -> None:
        gradient = event.gradient
        if self.waiting.get(gradient.worker) != gradient:
            return  # its worker has left meanwhile
        self._take([gradient.worker], draft)
        if event.score >= self.least_score and not self._too_old(gradient):
            self._apply([gradient], shared(1, len(self.members)), draft)
        else:
            draft.dropped.append(gradient)

    def _too_old(self, gradient: Gradient) -> bool:
        return self.version - gradient.version > self.staleness_cap

    def _settle(self, at_s: float, draft: Draft) -> None:
        """Nothing happens but by a score."""
