"""Dynamic x-order: workers of like speed synchronise among themselves (arXiv 2512.09685)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from starprof.sync.policies.base import Draft, Policy, shared
from starprof.sync.policies.grouping import by_speed

THRESHOLD = 0.15
"""Share of the median iteration time by which groups differ."""


class DynamicX(Policy):
    """Each group makes a step once all its workers are there; groups don't wait for each other.

    Groups follow the predicted iteration times, or are given. A worker without a prediction is alone. The sum is
    divided by the number of all workers.
    """

    name = "dynamic-x"

    def __init__(
        self,
        workers: Iterable[int],
        groups: Sequence[Sequence[int]] | None = None,
        *,
        threshold: float = THRESHOLD,
        version: int = 0,
    ) -> None:
        """Begin with these groups; with one of all workers when none are given.

        Raises:
            ValueError: the groups are not a partition of the workers.
        """
        super().__init__(workers, version=version)
        self.groups = [list(self.members)] if groups is None else [list(group) for group in groups]
        self.threshold = threshold
        if sorted(worker for group in self.groups for worker in group) != self.members:
            raise ValueError("every worker must be in one group")
        self._all_fresh = len(self.groups) <= 1

    @property
    def max_staleness(self) -> int | None:
        """With one group all along nothing is ever late."""
        return 0 if self._all_fresh else None

    def _predicted(self, iteration_s: Mapping[int, float], draft: Draft) -> None:  # noqa: ARG002
        known = {worker: iteration_s[worker] for worker in self.members if worker in iteration_s}
        self.groups = by_speed(known, self.threshold) + [[w] for w in self.members if w not in known]
        self._all_fresh &= len(self.groups) <= 1

    def _join(self, worker: int, draft: Draft) -> None:
        super()._join(worker, draft)
        self.groups.append([worker])
        self._all_fresh &= len(self.groups) <= 1

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        self.groups = [left for group in self.groups if (left := [w for w in group if w != worker])]

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        for group in self.groups:
            if all(worker in self.waiting for worker in group):
                taken = self._take(group, draft)
                self._apply(taken, shared(len(taken), len(self.members)), draft)
