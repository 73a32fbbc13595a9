"""Steps that a rank makes on its own, or with its group, between two averagings of all ranks' states."""

from __future__ import annotations

import json

from starprof.control.engine.flat import Flat
from starprof.control.engine.roles import Updates
from starprof.control.engine.sharing import Sharing
from starprof.control.engine.states import States
from starprof.sync.policies import NO_STEPS, LocalSteps
from starprof.sync.protocol.messages import Close


class OwnSteps:
    """One rank's, since the version of its parameters.

    Attributes:
        plan: what ranks do on this version.
        made: so many of them.
        sharing: its part in its group.
    """

    def __init__(self, rank: int, updates: Updates, states: States, sharing: Sharing) -> None:
        """Begin with gradients, or native steps."""
        self.plan = NO_STEPS
        self.made = 0
        self.sharing = sharing
        self._rank = rank
        self._updates = updates
        self._states = states

    @property
    def due(self) -> bool:
        """Whether it is time to hand the state in."""
        return 0 < self.plan.period <= self.made

    def make(self, version: int, meetings: int) -> float:
        """The loop makes its next update with the gradients of this rank or its group; time that was waited, in s."""
        self.made += 1
        group = next((group for group in self.plan.groups if self._rank in group), None)
        waited_s = self._shared(group, (version, meetings)) if group is not None else 0.0
        self._updates.local()
        return waited_s

    def _shared(self, group: tuple[int, ...], at: tuple[int, int]) -> float:
        return self.sharing.mean(group, at, self.made, self._updates.scale())

    def collect(self, flat: Flat) -> bytes:
        """Put the state with these steps there; what of it has no mean."""
        self._states.trouble.fill_(self.sharing.alone)
        return self._states.collect(flat)

    def put(self, flat: Flat, close: Close) -> None:
        """Take the mean of states that a round is made of."""
        self._states.put(flat)
        self._updates.keep_pace(close.steps - self.made)
        self.made = 0
        untold = self.sharing.alone and self._rank not in close.members
        if self._states.trouble > 0:
            self.sharing.begin(str(close.round + 1))
        self.sharing.alone = untold

    def turn(self, plan: LocalSteps, version: int) -> None:
        """What ranks do on a version that they have come to."""
        if plan != self.plan:
            self.plan = plan
            self.sharing.begin(str(version))

    def met(self, version: int, meetings: int) -> None:
        """All ranks stand at one version."""
        self.sharing.begin(f"{version}.{meetings}")

    def pulled(self, told: bytes | bytearray) -> None:
        """The state is another rank's, which said what ranks do on it; its groups go on without this rank."""
        period, groups = json.loads(told)
        self.plan = LocalSteps(period, tuple(map(tuple, groups)))
        self.made = 0
        self.sharing.alone = True


def packed(plan: LocalSteps) -> bytes:
    """What ranks do on a version, as it goes with a state of that version."""
    return json.dumps([plan.period, plan.groups]).encode()
