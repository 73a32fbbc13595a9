"""States that go from island to island: each rank's part to the rank that has the same shards, all of one version.

The leader of an island is asked, and serves where its followers wait for its word: they all stand at one version then.
The island that wants a state goes on with it once the parts of all its ranks are there and of the same version. A part
that is here stays until then; where parts don't fit together, all are thrown away and asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starprof.control.engine.handover import Handover
from starprof.sync.protocol.actions import PullState


class LeaderHandover(Handover):
    """The part of a rank that speaks for its island.

    Attributes:
        listening: the followers wait for a word; those that step on their own don't.
        order: tells them what to do.
        followers: how many they are.
    """

    listening = True
    order: Callable[..., None]
    followers: int

    def __init__(self, *args: Any) -> None:
        """See `Handover`."""
        super().__init__(*args)
        self._wish = 0
        self._parts: dict[int, int] = {}

    @property
    def due(self) -> bool:
        """See `Handover`."""
        return self.listening and super().due

    def serve(self, version: int) -> None:
        """See `Handover`."""
        if self.listening:
            super().serve(version)

    def _hand_on(self, ranks: list[int], version: int) -> None:
        self.order("serve", to=ranks, version=version)
        super()._hand_on(ranks, version)

    def pull(self, wish: PullState) -> None:
        """See `Handover`; the followers ask for theirs."""
        self._wish += 1
        self._parts = {}
        self.order("pull", holder=wish.holder, version=wish.version, wish=self._wish)
        super().pull(wish)

    def came(self, rank: int, version: int, state: bytearray) -> None:
        """See `Handover`."""
        if self._come is None:
            super().came(rank, version, state)
            self._compare()

    def part_came(self, follower: int, version: int, wish: int) -> None:
        """A follower has its part, in answer to one of the wishes."""
        if wish == self._wish:
            self._parts[follower] = version
            self._compare()

    def _compare(self) -> None:
        if self._come is None or self._pull is None:
            return
        if any(version != self._come[0] for version in self._parts.values()):
            self.pull(self._pull)
        self._changed.notify_all()

    @property
    def here(self) -> bool:
        """See `Handover`."""
        return self._come is not None and len(self._parts) == self.followers


class FollowerHandover(Handover):
    """The part of a rank that does what its leader says.

    Attributes:
        tell: tells the leader that a part of this version is here, and in answer to which wish.
    """

    tell: Callable[[int, int], None]

    def __init__(self, *args: Any) -> None:
        """See `Handover`."""
        super().__init__(*args)
        self._wish = 0

    def asked(self, rank: int, version: int) -> None:
        """See `Handover`; as long as there is a leader, it says when."""
        if self._last is not None:
            super().asked(rank, version)

    def serve(self, version: int) -> None:
        """See `Handover`; the leader says when."""

    def hand_on(self, ranks: list[int], version: int) -> None:
        """The leader says: now. Called by the training thread, whose parameters are those of this version."""
        self._hand_on(ranks, version)

    def pull_too(self, wish: PullState, number: int) -> None:
        """The leader pulls a state."""
        self._wish = number
        self.pull(wish)

    def came(self, rank: int, version: int, state: bytearray) -> None:
        """See `Handover`."""
        if self._come is None:
            super().came(rank, version, state)
            if self.here:
                self.tell(version, self._wish)
