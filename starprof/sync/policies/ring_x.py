"""x-order for all-reduce: the fast form a ring, the others hand their gradients to it (arXiv 2512.09685)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starprof.sync.policies.base import Draft, Policy, shared


class RingX(Policy):
    """The x fastest workers reduce among themselves; each other one is the child of one of them.

    A child hands its gradient to its parent when it is ready, and waits. In each round a parent adds what its children
    have handed in, without waiting for the rest, and hands the new parameters down to those. The sum is divided by the
    number of all workers.
    """

    name = "ring-x"

    def __init__(self, workers: Iterable[int], x: int, *, version: int = 0) -> None:
        """A ring of `x`: of those that arrive first, until predictions tell who is fastest."""
        if x < 1:
            raise ValueError(f"x must be at least 1, not {x}")
        super().__init__(workers, version=version)
        self.x = x
        self.ring: list[int] = []
        self._iteration_s: Mapping[int, float] = {}
        self._all_fresh = x >= len(self.members)

    @property
    def max_staleness(self) -> int | None:
        """With everybody in the ring all along nothing is ever late."""
        return 0 if self._all_fresh else None

    @property
    def parents(self) -> dict[int, int]:
        """The ring member that each other worker hands its gradient to, in turn."""
        children = [worker for worker in self.members if worker not in self.ring]
        return {child: self.ring[i % len(self.ring)] for i, child in enumerate(children)} if self.ring else {}

    def _predicted(self, iteration_s: Mapping[int, float], draft: Draft) -> None:  # noqa: ARG002
        self._iteration_s = dict(iteration_s)
        self.ring = sorted(self._fastest(self.members))

    def _join(self, worker: int, draft: Draft) -> None:
        super()._join(worker, draft)
        self._all_fresh &= self.x >= len(self.members)
        if 0 < len(self.ring) < self.x:
            self.ring = sorted([*self.ring, worker])

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        if worker in self.ring:
            # The ring keeps its size as long as there are children to take the place.
            rest = [w for w in self.ring if w != worker]
            others = self._fastest([worker for worker in self.members if worker not in rest])
            self.ring = sorted([*rest, *others[: self.x - len(rest)]])

    def _fastest(self, workers: list[int]) -> list[int]:
        """At most x of them, those without a prediction last."""
        known = self._iteration_s
        return sorted(workers, key=lambda worker: (known.get(worker, float("inf")), worker))[: self.x]

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if not self.ring and self.members and len(self.waiting) >= min(self.x, len(self.members)):
            self.ring = sorted(list(self.waiting)[: self.x])
        if self.ring and all(worker in self.waiting for worker in self.ring):
            taken = self._take(list(self.waiting), draft)
            self._apply(taken, shared(len(taken), len(self.members)), draft)
