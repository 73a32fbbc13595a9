"""Local SGD: every worker steps on its own, and now and then parameters are averaged; flat, or node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starprof.sync.policies.base import Draft, Gradient, LocalSteps, Policy, Update, mean


class LocalSgd(Policy):
    """Every worker makes `period` steps of its own, then waits until all parameters are averaged.

    `version` counts averagings.
    """

    name = "local-sgd"

    def __init__(self, workers: Iterable[int], period: int, *, version: int = 0) -> None:
        """Average after every `period` steps."""
        if period < 1:
            raise ValueError(f"the period must be at least 1 step, not {period}")
        super().__init__(workers, version=version)
        self.period = period
        self._steps: dict[int, int] = {}

    @property
    def local_steps(self) -> LocalSteps:
        """See the class."""
        return LocalSteps(self.period)

    def _arrived(self, gradient: Gradient, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        worker = gradient.worker
        self._steps[worker] = self._steps.get(worker, 0) + 1
        draft.step_locally.append(gradient)
        if self._steps[worker] < self.period:
            draft.release.append(worker)
        else:
            self.waiting[worker] = gradient

    def _leave(self, worker: int, draft: Draft) -> None:
        self.waiting.pop(worker, None)  # applied already: nothing of it is lost that was not its own
        super()._leave(worker, draft)
        self._steps.pop(worker, None)

    def _wind_up(self, draft: Draft) -> None:
        self._take(list(self.waiting), draft)
        self._average(draft)

    def _average(self, draft: Draft) -> None:
        self._steps.clear()
        draft.average.append(tuple(self.members))
        self.version += 1

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        if self.members and len(self.waiting) == len(self.members):
            self._take(self.members, draft)
            self._average(draft)


class Hierarchical(Policy):
    """Inside a group, for instance a node, every step is synchronous; groups average after `period` steps.

    `version` counts averagings between groups.
    """

    name = "hierarchical"

    def __init__(
        self, workers: Iterable[int], groups: Sequence[Sequence[int]], period: int, *, version: int = 0
    ) -> None:
        """Begin with these groups.

        Raises:
            ValueError: the groups are not a partition of the workers, or the period is no number of steps.
        """
        super().__init__(workers, version=version)
        self.groups = [list(group) for group in groups]
        if sorted(worker for group in self.groups for worker in group) != self.members:
            raise ValueError("every worker must be in one group")
        if period < 1:
            raise ValueError(f"the period must be at least 1 step, not {period}")
        self.period = period
        self._steps = [0] * len(self.groups)

    @property
    def local_steps(self) -> LocalSteps:
        """See the class."""
        return LocalSteps(self.period, tuple(map(tuple, self.groups))).among(self.members)

    def _join(self, worker: int, draft: Draft) -> None:
        super()._join(worker, draft)
        self.groups.append([worker])
        self._steps.append(0)

    def _leave(self, worker: int, draft: Draft) -> None:
        super()._leave(worker, draft)
        kept = [
            (left, steps)
            for group, steps in zip(self.groups, self._steps, strict=True)
            if (left := [w for w in group if w != worker])
        ]
        self.groups = [group for group, _ in kept]
        self._steps = [steps for _, steps in kept]

    def _wind_up(self, draft: Draft) -> None:
        done = [w for place, g in enumerate(self.groups) if self._steps[place] >= self.period for w in g]
        draft.release += [worker for worker in done if worker not in self.waiting]
        self._average(draft)

    def _average(self, draft: Draft) -> None:
        draft.average.append(tuple(self.members))
        self._steps = [0] * len(self.groups)
        self.version += 1

    def _settle(self, at_s: float, draft: Draft) -> None:  # noqa: ARG002
        for place, group in enumerate(self.groups):
            if self._steps[place] < self.period and all(worker in self.waiting for worker in group):
                taken = [self.waiting.pop(worker) for worker in group]
                draft.updates.append(Update(self.version, tuple(taken), tuple(mean(len(taken))), tuple(group)))
                self._steps[place] += 1
                if self._steps[place] < self.period:
                    draft.release += group
        if self.groups and min(self._steps) >= self.period:
            draft.release += self.members
            self._average(draft)
