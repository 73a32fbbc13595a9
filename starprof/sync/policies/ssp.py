"""Stale synchronous parallel: asynchronous, but nobody runs far ahead of the slowest."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.sync.policies.base import Draft, Gradient, Policy, shared


class Ssp(Policy):
    """Each gradient is applied on arrival; its worker waits when it is more than s iterations ahead of the slowest."""

    name = "ssp"

    def __init__(self, workers: Iterable[int], s: int, *, version: int = 0) -> None:
        """Allow a lead of `s` iterations."""
        if s < 0:
            raise ValueError(f"s can't be negative: {s}")
        super().__init__(workers, version=version)
        self.s = s
        self._done = dict.fromkeys(self.members, 0)
        self._ahead: list[int] = []
        self._came = len(self.members)

    @property
    def max_staleness(self) -> int:
        """The others make at most s + 1 updates each before and s after the slow one's last, while it computes.

        Whoever comes anew, for the first time or again, may make as many once more.
        """
        return (2 * self.s + 1) * max(0, self._came - 1)

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        self._apply([gradient], shared(1, len(self.members)), draft)
        self._done[gradient.worker] += 1
        self._ahead.append(gradient.worker)

    def _check(self, gradient: Gradient) -> None:
        if gradient.worker in self._ahead:
            raise ValueError(f"worker {gradient.worker} waits and can't have computed another gradient")
        super()._check(gradient)

    def _join(self, worker: int, draft: Draft) -> None:
        # A newcomer starts level with the slowest: its past must not hold up the others.
        start = min(self._done.values(), default=0)
        super()._join(worker, draft)
        self._came += 1
        self._done[worker] = start

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        del self._done[worker]
        self._ahead = [w for w in self._ahead if w != worker]

    def _wind_up(self, draft: Draft) -> None:
        draft.release += self._ahead
        self._ahead = []

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        slowest = min(self._done.values(), default=0)
        free = [worker for worker in self._ahead if self._done[worker] - slowest <= self.s]
        self._ahead = [worker for worker in self._ahead if worker not in free]
        draft.release += free
