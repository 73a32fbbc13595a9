"""Gradients that this rank has handed in, and results of rounds: reduced, delivered, kept, and asked for.

The engine's lock is held wherever the docstring does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starprof.control.codec import encode
from starprof.control.engine.flat import Flat, Layout, Pool
from starprof.control.engine.groups import Groups, Members
from starprof.control.engine.noise import NoiseLooks
from starprof.control.engine.peers import Peers
from starprof.control.engine.results import Results
from starprof.control.engine.star import Star, fits, fits_bytes
from starprof.sync.protocol.actions import Action, Send
from starprof.sync.protocol.lag import LagLimit
from starprof.sync.protocol.member import Member
from starprof.sync.protocol.messages import Arrive, Close
from starprof.sync.transfers import Sent

MOST_PREPARED = 8
"""Ranks of jobs that connect before they reduce: a group of gloo's has threads, and sockets to each other member."""


class Exchange:
    """One rank's part in all rounds.

    Attributes:
        pool: flat tensors for gradients that are not in use.
        states: the same for states.
        star: for small sums.
        peers: connections to the other ranks.
        noise: looks at the gradients' noise now and then; None: nobody does.
    """

    peers: Peers
    noise: NoiseLooks | None

    def __init__(
        self,
        member: Member,
        layout: Layout,
        states: Layout,
        groups: Groups,
        lock: Any,
        do: Callable[[list[Action]], None],
        lag: LagLimit | None,
    ) -> None:
        """Begin with nothing.

        Args:
            member: state machine of this rank.
            layout: of the gradients.
            states: layout of the states.
            groups: for reductions.
            lock: the engine's.
            do: carries out what the member says.
            lag: results of how much are kept for a rank that is behind, here for this one; None: of all.
        """
        self.pool = Pool(layout)
        self.states = Pool(states)
        self.noise = None
        self._of_states = states
        self._results = Results(self.give)
        self._member = member
        self._rank = member.rank
        self._groups = groups
        self.star = Star(member.rank, lambda *told: self.peers.send_numbers(*told))
        self._lock = lock
        self._do = do
        self._lag = lag
        self._own: dict[int, tuple[Flat, bytes]] = {}
        self._expected: dict[int, Close] = {}
        self._reducing: dict[int, Close] = {}
        self._floor = 0
        self._prepared = False

    def reach_out(self) -> None:
        """All ranks are there, and rounds may follow: connect to those that add up and hand round, the first of a set.

        The very first may be the slow one; the second then takes its place.
        """
        first = self._member.world[:2]
        for rank in self._member.world if self._rank in first else first:
            if rank != self._rank:
                self.peers.reach(rank)
        if not self._prepared:
            self._prepared = True
            self._groups.prepare(self._likely_sets())

    def _likely_sets(self) -> list[Members]:
        """Of those that reduce through gloo, which would connect in the middle of a step: all, and all but one rank."""
        world = self._member.world
        if not 1 < len(world) <= MOST_PREPARED or fits_bytes(world, self.pool.layout.bytes):
            return []
        but_one = [tuple(rank for rank in world if rank != other) for other in world]
        return [members for members in (world, *but_one) if self._rank in members and len(members) > 1]

    def give(self, flat: Flat) -> None:
        """A flat tensor is not needed any more."""
        (self.states if flat.layout is self._of_states else self.pool).give(flat)

    def come_to_rest(self) -> None:
        """The process may end: see `Groups`; called without the lock."""
        self.star.settle()
        self._groups.settle()

    # Gradients and states.

    def hand_in(self, actions: list[Action], flat: Flat, settings: bytes) -> None:
        """A gradient of this rank, or a state, which waits for a round that uses it, unless the member does without."""
        sent = (action.message for action in actions if isinstance(action, Send))
        number = next((message.gradient.number for message in sent if isinstance(message, Arrive)), None)
        if number is None:
            self.give(flat)
        else:
            self._own[number] = (flat, settings)

    def sent(self) -> tuple[Sent, ...]:
        """What is known of this rank's part in reductions since it last told."""
        return (*self._groups.sent(), *self.peers.sent())

    def forget(self, number: int) -> None:
        """A gradient of this rank is not needed any more."""
        own = self._own.pop(number, None)
        if own is not None:
            self.give(own[0])

    def clear(self, first: int = 0) -> None:
        """Of what is here nothing counts any more, but results of rounds before the first."""
        for number in list(self._own):
            self.forget(number)
        self._results.clear(first)
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
        own = [(g, self._own[g.number][0], weight) for g, weight in parts if g.worker == self._rank]
        if self.noise is not None:
            self.noise.contributes(close, [(gradient, flat) for gradient, flat, _ in own])
        mine = [(flat, weight) for _, flat, weight in own]
        work = (self.states if close.steps else self.pool).take()
        work.take(*mine[0])
        for flat, weight in mine[1:]:
            work.add(flat, weight)
        freshest = max(close.gradients, key=lambda g: (g.version, g.steps, -g.worker, g.number))
        if freshest.worker == self._rank:
            work.settings = self._own[freshest.number][1]
        finished = partial(self._reduced, close, work)
        if len(close.members) == 1:
            finished(True)
            return
        self._reducing[close.round] = close
        name = f"{close.epoch}.{close.round}.{close.attempt}"
        if close.attempt == 0 and fits(close.members, work.tensor):
            self.star.reduce(close.members, name, work.tensor, finished)
        else:
            self._groups.reduce(close.members, name, close.attempt, work.tensor, finished)

    def give_up(self, number: int) -> None:
        """Somebody is lost, and this rank has said that it does not hold a round: it won't wait for the sum either."""
        running = self._reducing.get(number)
        if running is not None and self._member.can_deliver(number) is None:
            self.star.abandon(running.members)
            self._groups.abandon(running.members)

    def deliver(self, to: int, close: Close) -> None:
        """Send a round's result to another rank."""
        result = self._results.acquire(close.round)
        if result is None:
            return

        def done() -> None:
            with self._lock:
                self._results.release(result)

        self.peers.send_result(to, encode(close), result.flat, done, timed=len(close.members) == 1)

    def ask_again(self, times: int) -> None:
        """What was on its way to this rank may be lost with the connection that it was on."""
        self.star.look()
        for close in list(self._expected.values()):
            others = [member for member in close.members if member != self._rank]
            if others and self._rank not in close.members:
                self.peers.fetch(others[times % len(others)], close.round)

    def came(self, close: Close, flat: Flat, applied: int) -> None:
        """Another rank has sent a result; rounds before `applied` are made here."""
        if self._too_far_ahead(close.round, applied):
            self.give(flat)
            return
        self._keep(close, flat, partial(self._member.received, close))

    def _too_far_ahead(self, number: int, applied: int) -> bool:
        """While this rank computes, the others get so far that it will take a state, or ask: this is not kept."""
        if self._lag is None or number - applied <= self._lag.rounds:
            return False
        waiting = [self._member.can_deliver(kept) for kept in range(applied, number)]
        return self._lag.exceeded(number - applied, sum(c.steps or sum(c.weights) for c in waiting if c is not None))

    def _reduced(self, close: Close, flat: Flat, complete: bool) -> None:
        """A reduction has ended; called without the lock, by a thread of gloo's or of a connection."""
        with self._lock:
            if self._reducing.get(close.round) is close:
                del self._reducing[close.round]
            if complete:
                self._keep(close, flat, partial(self._member.reduced, close))
            else:
                self.give(flat)
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
            self.give(flat)
        self._do(actions)

    def _used(self, close: Close) -> None:
        for gradient in close.gradients:
            if gradient.worker == self._rank:
                self.forget(gradient.number)
