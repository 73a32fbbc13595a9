"""Gradients of ranks whose part in a reduction takes long: they count as handed in later than they were.

So whoever leaves late ranks out leaves these out as well, by its own rule. Nobody waits longer for it than without:
what nobody else would come before is let through at once.
"""

from __future__ import annotations

from starprof.sync.policies import Gradient, Policy


class Held:
    """Those of one job, of each rank at most one: it waits for what becomes of it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._until: dict[int, tuple[float, Gradient]] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._until)

    @property
    def next_s(self) -> float | None:
        """When the first of them is due."""
        return min((due_s for due_s, _ in self._until.values()), default=None)

    def hold(self, gradient: Gradient, until_s: float) -> None:
        """It counts as handed in then."""
        self._until[gradient.worker] = (until_s, gradient)

    def forget(self, rank: int) -> None:
        """Its rank is gone, or has another state."""
        self._until.pop(rank, None)

    def all(self) -> tuple[Gradient, ...]:
        """All of them, the first that is due first; none is held after it."""
        found = tuple(gradient for _, gradient in sorted(self._until.values(), key=_when))
        self._until.clear()
        return found

    def ready(self, policy: Policy, now_s: float, wakes: bool) -> Gradient | None:
        """One that is to be told to a policy now, held no more; None: there is none.

        Args:
            policy: that decides.
            now_s: time.
            wakes: whether it decides something by itself later on, if nothing else happens.
        """
        due_s, gradient = min(self._until.values(), key=_when)
        late = next((g for _, g in self._until.values() if _is_dropped(policy, g)), None)
        if late is not None:
            gradient = late  # it need not wait for what it would only be told then
        elif due_s > now_s and policy.leaves_out and (wakes or self._others_come(policy)):
            return None
        self.forget(gradient.worker)
        return gradient

    def _others_come(self, policy: Policy) -> bool:
        return any(rank not in policy.waiting and rank not in self._until for rank in policy.members)


def _is_dropped(policy: Policy, gradient: Gradient) -> bool:
    limit = policy.max_staleness
    return policy.drops and limit is not None and policy.version - gradient.version > limit


def _when(entry: tuple[float, Gradient]) -> tuple[float, int]:
    return entry[0], entry[1].worker
