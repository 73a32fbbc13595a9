"""Whole states that go from rank to rank: whoever was lost, or is too far behind, goes on from another one's.

    [ progress, meetings, length of the plan | plan: what ranks do on that version | the state itself ]

The engine's lock is held wherever the docstring does not say otherwise.
"""

from __future__ import annotations

import struct
import threading

from starprof.control.engine.ownsteps import OwnSteps, packed
from starprof.control.engine.pace import Pace
from starprof.control.engine.peers import Peers
from starprof.control.engine.roles import Updates
from starprof.sync.protocol.actions import PullState
from starprof.sync.protocol.member import Member

_HEADER = struct.Struct("<dqq")


class Handover:
    """One rank's part in it.

    Attributes:
        peers: connections to the other ranks.
    """

    peers: Peers

    def __init__(
        self, member: Member, updates: Updates, own: OwnSteps, pace: Pace, changed: threading.Condition
    ) -> None:
        """Begin with nobody who wants a state.

        Args:
            member: state machine of this rank.
            updates: which have the state.
            own: steps of this rank's own, with which no state is handed on.
            pace: goes with the state.
            changed: the engine's lock.
        """
        self._member = member
        self._updates = updates
        self._own = own
        self._pace = pace
        self._changed = changed
        self._wanted: list[tuple[int, int]] = []
        self._last: tuple[int, bytes] | None = None
        self._pull: PullState | None = None
        self._come: tuple[int, bytearray] | None = None

    # To others.

    @property
    def due(self) -> bool:
        """Whether another rank waits for a state that can be handed on."""
        return bool(self._wanted) and not self._own.made

    def asked(self, rank: int, version: int) -> None:
        """A rank wants the state, of this version or newer."""
        if self._last is not None:
            self.peers.send_state(rank, *self._last)
            return
        self._wanted.append((rank, version))
        self._changed.notify_all()

    def serve(self, version: int) -> None:
        """Parameters are those of a version now, unless with steps of its own on top, and nobody changes them.

        Called by the training thread, with the lock or without.
        """
        if self._own.made:
            return
        wanted, self._wanted = self._wanted, []
        # Whoever wants a version that is not here yet asks again.
        now = {rank for rank, least in wanted if least <= version}
        if now and not self._member.void:
            self._hand_on(sorted(now), version)

    def _hand_on(self, ranks: list[int], version: int) -> None:
        state = self._state()
        for rank in ranks:
            self.peers.send_state(rank, version, state)

    def leave(self, version: int) -> None:
        """The training is over here; whoever is left behind can have the state as it is now."""
        if self._member.hello().lost and not self._own.made:
            self._last = (version, self._state())

    def _state(self) -> bytes:
        plan = packed(self._own.plan)
        return _HEADER.pack(self._pace.counts.progress, self._member.meetings, len(plan)) + plan + self._updates.state()

    # From another.

    def pull(self, wish: PullState) -> None:
        """Ask for a state, and for no other one any more."""
        self._pull, self._come = wish, None
        self.peers.pull(wish.holder, wish.version)

    def ask_again(self) -> None:
        """What was on its way to this rank may be lost with the connection that it was on."""
        if self._pull is not None:
            self.peers.pull(self._pull.holder, self._pull.version)

    def came(self, rank: int, version: int, state: bytearray) -> None:
        """A rank has sent its state."""
        pull = self._pull
        if pull is not None and rank == pull.holder and version >= pull.version:
            self._come = (version, state)
            self._changed.notify_all()

    @property
    def here(self) -> bool:
        """Whether the state is there that was asked for."""
        return self._come is not None

    def take(self) -> tuple[int, int]:
        """Go on from that state; its version, and the meetings behind it. Called by the training thread."""
        assert self._come is not None
        (version, state), self._come = self._come, None
        self._pace.counts.progress, meetings, told = _HEADER.unpack_from(state)
        self._own.pulled(state[_HEADER.size : _HEADER.size + told])
        self._updates.load(state[_HEADER.size + told :])
        self._pull = None
        return version, meetings
