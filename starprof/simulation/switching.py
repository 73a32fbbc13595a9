"""When a job that is to change its mode can do so."""

from __future__ import annotations

from starprof.simulation.setting import Mode, PolicyMaker
from starprof.sync.policies import Policy

EVERYBODY = Mode("ssgd")


class Switching:
    """A mode that is wanted, and what must come before it.

    From one mode of rounds to another it goes at once. Where workers step on their own, that begins after a round of
    everybody, and ends when their states have been averaged.
    """

    def __init__(self) -> None:
        """Nothing is wanted."""
        self._wanted: PolicyMaker | None = None
        self._round_of_all_since: int | None = None

    def want(self, mode: PolicyMaker) -> None:
        """Go there as soon as possible; whatever was wanted before is not any more."""
        self._wanted = mode

    def next(self, policy: Policy, *, apart: bool) -> PolicyMaker | None:
        """What is to follow now; None: nothing. `apart`: workers have states of their own."""
        wanted = self._wanted
        if wanted is None or (policy.local_steps.period and apart):
            return None
        alone = wanted(policy.members, policy.version).local_steps.period > 0
        if alone and not policy.local_steps.period:
            if self._round_of_all_since is None:
                self._round_of_all_since = policy.version
                return EVERYBODY
            if policy.version == self._round_of_all_since:
                return None
        self._wanted = self._round_of_all_since = None
        return wanted
