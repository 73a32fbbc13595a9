"""What stands for an island's member on a rank that only does what its leader says."""

from __future__ import annotations

from starprof.control.engine.island.holding import part_of
from starprof.sync.policies import LocalSteps
from starprof.sync.protocol.actions import Action, Send
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Close, Failed, Pause


class Mirror(Member):
    """Stands for the island's member on a follower: it holds what the leader says is held, and decides nothing."""

    def __init__(self, rank: int, world: tuple[int, ...], *, version: int = 0) -> None:
        """As `Member`, of the island."""
        super().__init__(rank, world, version=version)
        self._kept: dict[int, Close] = {}

    def native_done(self) -> list[Action]:
        """See `Member`."""
        self.version += 1
        return []

    def pause(self, index: int, place: str = "") -> list[Action]:
        """See `Member`."""
        return [Send(Pause(self.rank, 0, index, 0, place))]

    def reduction_failed(self, number: int, attempt: int) -> list[Action]:
        """See `Member`."""
        return [Send(Failed(self.rank, number, attempt))]

    def can_deliver(self, number: int) -> Close | None:
        """See `Member`."""
        return self._kept.get(number)

    def keep(self, close: Close) -> list[Action]:
        """A round's result is held by the whole island."""
        self._kept[close.round] = close
        return []

    def closed(self, close: Close) -> bool:
        """What a round is made of; whether something else was held for it, which counts no more."""
        self._newest = close.serial, close.lost
        self._own.used(close)
        kept = self._kept.get(close.round)
        if kept is None or part_of(kept) == part_of(close):
            return False
        del self._kept[close.round]
        return True

    def dropped(self, number: int) -> None:
        """A gradient is not needed any more."""
        self._own.dropped(number)

    def trim(self, floor: int) -> None:
        """Nobody asks for rounds before `floor`."""
        self._kept = {number: close for number, close in self._kept.items() if number >= floor}

    def stands_at(self, version: int, meetings: int, local: LocalSteps) -> None:
        """The leader's member is at this version, behind so many meetings, and ranks make these steps on it."""
        self.version, self._meeting.meetings, self.local = version, meetings, local

    def lost(self) -> None:
        """The island's state is void, and all that was held."""
        self._kept = {}

    def goes_on(self) -> None:
        """On another island's state: what was handed in went with the old one."""
        self._kept = {}
        self._own.void()
