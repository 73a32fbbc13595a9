"""Gradients that this rank has handed in, and results of rounds: reduced, delivered, kept, and asked for.

The engine's lock is held wherever the docstring does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starprof.control.codec import encode
from starprof.control.engine.flat import Flat, Layout, Pool
from starprof.control.engine.groups import Groups
from starprof.control.engine.peers import Peers
from starprof.control.engine.results import Results
from starprof.sync.protocol.actions import Action
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Close


class Exchange:
    """One rank's part in all rounds.

    Attributes:
        pool: flat tensors that are not in use.
        peers: connections to the other ranks.
    """

    peers: Peers

    def __init__(
        self, member: Member, layout: Layout, groups: Groups, lock: Any, do: Callable[[list[Action]], None]
    ) -> None:
        """Begin with nothing.

        Args:
            member: state machine of this rank.
            layout: of the gradients.
            groups: for reductions.
            lock: the engine's.
            do: carries out what the member says.
        """
        self.pool = Pool(layout)
        self._results = Results(self.pool)
        self._member = member
        self._rank = member.rank
        self._groups = groups
        self._lock = lock
        self._do = do
        self._own: dict[int, tuple[Flat, bytes]] = {}
        self._expected: dict[int, Close] = {}
        self._reducing: dict[int, Close] = {}
        self._floor = 0

    # Gradients.

    def hand_in(self, number: int, flat: Flat, settings: bytes) -> None:
        """A gradient of this rank, which waits for a round that uses it."""
        self._own[number] = (flat, settings)

    def forget(self, number: int) -> None:
        """A gradient of this rank is not needed any more."""
        own = self._own.pop(number, None)
        if own is not None:
            self.pool.give(own[0])

    def clear(self) -> None:
        """Nothing of what is here counts any more."""
        for number in list(self._own):
            self.forget(number)
        self._results.clear()
        self._expected = {}

    # Rounds.

    def told(self, close: Close, applied: int) -> None:
        """The coordinator has said what a round is made of, and the member has heard it.

        Args:
            close: its word.
            applied: rounds before this one are made here.
        """
        self._floor = max(self._floor, close.floor)
        if close.gradients and close.round >= applied and self._member.can_deliver(close.round) is None:
            self._expected[close.round] = close
        else:
            self._expected.pop(close.round, None)
            self._used(close)

    def trim(self, applied: int) -> None:
        """Rounds before `applied` are made here, and needed no more unless another rank may still ask for them."""
        self._results.trim(min(self._floor, applied))

    def result(self, number: int) -> Flat:
        """A round's result, which is here."""
        flat = self._results.get(number)
        assert flat is not None, f"round {number} is to be applied and not here"
        return flat

    def reduce(self, close: Close) -> None:
        """Begin to sum this rank's weighted gradients with those of the round's other contributors."""
        parts = zip(close.gradients, close.weights, strict=True)
        mine = [(self._own[g.number][0], weight) for g, weight in parts if g.worker == self._rank]
        work = self.pool.take()
        work.take(*mine[0])
        for flat, weight in mine[1:]:
            work.add(flat, weight)
        freshest = max(close.gradients, key=lambda g: (g.version, -g.worker, g.number))
        if freshest.worker == self._rank:
            work.settings = self._own[freshest.number][1]
        finished = partial(self._reduced, close, work)
        if len(close.members) == 1:
            finished(True)
            return
        self._reducing[close.round] = close
        name = f"{close.epoch}.{close.round}.{close.attempt}"
        self._groups.reduce(close.members, name, close.attempt, work.tensor, finished)

    def give_up(self, number: int) -> None:
        """Somebody is lost, and this rank has said that it does not hold a round: it won't wait for the sum either."""
        running = self._reducing.get(number)
        if running is not None and self._member.can_deliver(number) is None:
            self._groups.abandon(running.members)

    def deliver(self, to: int, close: Close) -> None:
        """Send a round's result to another rank."""
        result = self._results.acquire(close.round)
        if result is None:
            return

        def done() -> None:
            with self._lock:
                self._results.release(result)

        self.peers.send_result(to, encode(close), result.flat, done)

    def ask_again(self, times: int) -> None:
        """What was on its way to this rank may be lost with the connection that it was on."""
        for close in list(self._expected.values()):
            others = [member for member in close.members if member != self._rank]
            if others and self._rank not in close.members:
                self.peers.fetch(others[times % len(others)], close.round)

    def came(self, close: Close, flat: Flat) -> None:
        """Another rank has sent a result."""
        self._keep(close, flat, partial(self._member.received, close))

    def _reduced(self, close: Close, flat: Flat, complete: bool) -> None:
        """A reduction has ended; called without the lock, by a thread of gloo's."""
        with self._lock:
            if self._reducing.get(close.round) is close:
                del self._reducing[close.round]
            if complete:
                self._keep(close, flat, partial(self._member.reduced, close.round, close.attempt))
            else:
                self.pool.give(flat)
                self._do(self._member.reduction_failed(close.round, close.attempt))

    def _keep(self, close: Close, flat: Flat, tell: Callable[[], list[Action]]) -> None:
        """A result is here; it is kept if the member takes it."""
        before = self._member.can_deliver(close.round)
        actions = tell()
        after = self._member.can_deliver(close.round)
        if after is not None and after != before:
            self._results.put(close.round, flat)
            if self._expected.pop(close.round, None) is not None:
                self._used(after)  # else it is early: the round may yet be made of other gradients
        else:
            self.pool.give(flat)
        self._do(actions)

    def _used(self, close: Close) -> None:
        for gradient in close.gradients:
            if gradient.worker == self._rank:
                self.forget(gradient.number)
