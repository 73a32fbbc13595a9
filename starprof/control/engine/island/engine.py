"""What the engines of an island's leader and of its followers have in common."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Set
from typing import Any

from starprof.control.codec import decode
from starprof.control.engine.engine import Engine
from starprof.control.engine.groups import Groups
from starprof.control.engine.island.holding import ShardExchange
from starprof.control.engine.island.lines import Word
from starprof.control.engine.island.shards import Shards
from starprof.control.engine.roles import Data, Updates
from starprof.control.engine.states import States
from starprof.control.engine.waiting import LostError, unlocked
from starprof.errors import StarprofError, TransportError
from starprof.sync.policies import LocalSteps
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Close

LOOK_EVERY_S = 1.0


class ApartError(StarprofError):
    """The ranks of one island are not at the same place of their loops."""


class IslandEngine(Engine):
    """The engine of one rank of an island; rounds are made of its shards."""

    exchange_kind = ShardExchange
    _exchange: ShardExchange

    def __init__(
        self,
        member: Member,
        shards: Shards,
        states: States,
        groups: Groups,
        updates: Updates,
        data: Data,
        lock: Any,
        lag: LagLimit | None = None,
    ) -> None:
        """As `Engine`.

        Args:
            member: state machine of the island, or what stands for it.
            shards: of the parameters.
            states: of this rank's part of the model.
            groups: for reductions among the ranks that have the same shards.
            updates: how to make one.
            data: batches of the loop.
            lock: reentrant.
            lag: results of how much are kept for an island that is behind; None: of all.
        """
        super().__init__(member, shards.layout, states, groups, updates, data, lock, lag, gradients=shards)
        self._exchange.on_here = self._have
        self._ended: str | None = None

    def asked_for_result(self, rank: int, number: int) -> None:
        """See `peers.Owner`. Every rank of another island asks the one with the same shards, and asks again."""
        with self._changed:
            close = self._member.can_deliver(number)
            if close is not None:
                self._exchange.deliver(rank, close)

    def _have(self, close: Close) -> None:
        """This rank has its part of a result."""
        raise NotImplementedError

    # Whether all of it is still there.

    def _end(self, reason: str) -> None:
        """The island can't go on with others; its training thread is told when it comes here."""
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()

    def _check(self) -> None:
        """Whether the island can go on.

        Raises:
            LostError: it can't, and is in rounds.
            TransportError: it can't, and is in native steps, which need none of this.
        """
        if self._ended is not None:
            raise (TransportError if self.native else LostError)(f"this rank's island can't go on: {self._ended}")

    def _wait_for(self, kinds: Set[str], words: deque[Word], most_s: float) -> Word:
        """The next word of another rank of the island, which must be of one of these kinds; the lock is held."""
        deadline_s = time.monotonic() + most_s
        while not words:
            self._check()
            if time.monotonic() > deadline_s:
                self._end(f"nothing has been heard for {most_s:.0f} s")
            if not self._changed.wait(LOOK_EVERY_S):
                with unlocked(self._changed):
                    self.while_waiting()
        word = words.popleft()
        if word["is"] not in kinds:
            told = " or ".join(sorted(map(repr, kinds)))
            raise ApartError(f"ranks of one island are at different places: {word['is']!r} came, and not {told}")
        return word


def close_in(word: Word) -> Close:
    """The description of a round that a word is about.

    Raises:
        TransportError: there is none in it.
    """
    close = decode(str(word["close"]).encode())
    if not isinstance(close, Close):
        raise TransportError("a word on a round without the round")
    return close


def where(member: Member) -> list[object]:
    """Where a member is, for who has none of its own."""
    return [member.version, member.meetings, member.local.period, member.local.groups]


def place_in(told: list[Any]) -> tuple[int, int, LocalSteps]:
    """What `where` has told: version, meetings, and steps that ranks make on that version."""
    version, meetings, period, groups = told
    return version, meetings, LocalSteps(period, tuple(map(tuple, groups)))
