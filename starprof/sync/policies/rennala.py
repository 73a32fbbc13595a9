"""Rennala SGD: a batch of gradients on the same parameters, from whoever is quick; stale ones are dropped."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Gradient, Policy, mean


class Rennala(Policy):
    """A step along the mean of the first `batch` gradients that were computed on the newest parameters.

    Nobody waits: a quick worker computes several of them.
    """

    name = "rennala"
    drops = True

    def __init__(self, workers: Iterable[int], batch: int, *, version: int = 0) -> None:
        """Steps of `batch` gradients."""
        if batch < 1:
            raise ValueError(f"the batch must be at least 1 gradient, not {batch}")
        super().__init__(workers, version=version)
        self.batch = batch
        self._collected: list[Gradient] = []

    @property
    def leaves_out(self) -> bool:
        """Whoever is late."""
        return True

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        (self._collected if gradient.version == self.version else draft.dropped).append(gradient)
        draft.release.append(gradient.worker)

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        draft.dropped += [g for g in self._collected if g.worker == worker]
        self._collected = [g for g in self._collected if g.worker != worker]

    def _wind_up(self, draft: Draft) -> None:
        draft.dropped += self._collected
        self._collected = []

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if len(self._collected) >= self.batch:
            taken, self._collected = self._collected, []
            self._apply(taken, mean(len(taken)), draft)
