"""How a rank comes by the results of rounds, and hands them to others: it reduces, fetches, takes, gives, refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starprof.sync.protocol.actions import Action, Deliver, Fetch, Reduce, Send
from starprof.sync.protocol.log import Entry, Log, made_of
from starprof.sync.protocol.messages import Answer, Close, Failed, Query, Take
from starprof.sync.protocol.own import OwnGradients


class Results:
    """Those that one rank holds and misses. A void rank gives and takes none: its member tells it of none then.

    Attributes:
        log: what is known of the rounds.
    """

    def __init__(self, version: int, own: OwnGradients, world: tuple[int, ...], do: Callable[[Action], None]) -> None:
        """Begin with rounds from a version on.

        Args:
            version: of the rank's parameters.
            own: its gradients.
            world: all ranks, which get what it leads.
            do: how to have the engine do something.
        """
        self.log = Log(version)
        self._own = own
        self._world = world
        self._do = do

    def restart(self, version: int, closes: Iterable[Close] = ()) -> None:
        """What was known counts no more.

        Args:
            version: of the parameters from here on.
            closes: rounds whose results have come with them.
        """
        self.log = Log(version, {c.round: Entry(c, held=True) for c in closes})
        self.log.advance()

    # What the data plane tells.

    def reduced(self, close: Close) -> bool:
        """A reduction has come to its end here; whether its result was missing.

        It may be one that was begun before this rank got another one's state, of a round that counts no more and whose
        number another one has now.
        """
        entry = self.log.entries.get(close.round)
        if entry is None or made_of(entry.close) != made_of(close) or not self.log.take(entry.close):
            return False
        if entry.close.leader == self._own.rank:
            # Who was taken for lost then asks for it when it counts again.
            left_out = {*entry.close.members, *entry.close.lost}
            self._deliver(entry.close, [other for other in self._world if other not in left_out])
        self._hand_on(entry.close)
        return True

    def reduction_failed(self, number: int, attempt: int) -> None:
        """A reduction has failed here."""
        if not self.log.holds(number) and attempt > self.log.refused.get(number, -1):
            self._refuse(number, attempt)

    def received(self, close: Close) -> bool:
        """Another rank has sent a result; whether it was missing."""
        missing = self.log.take(close)
        if missing:
            self._hand_on(close)
        return missing

    def asked(self, rank: int, number: int) -> None:
        """Another rank wants a round's result: it gets it now, or as soon as it is here."""
        close = self.log.ask(number, rank)
        if close is not None:
            self._deliver(close, [rank])

    # What the coordinator tells.

    def closed(self, close: Close, version: int) -> None:
        """A round is closed, or tried again: its result is to be reduced or fetched, where it is not here.

        Args:
            close: what it is made of.
            version: of the rank's parameters; it has applied all rounds before.
        """
        known = self.log.entries.get(close.round)
        if close.round < self.log.held or (known is not None and (known.held or known.close.attempt >= close.attempt)):
            return
        self.log.trim(min(close.floor, version))
        missing = self.log.closed(close)
        if missing and self._own.rank in close.members and not self.log.refuses(close):
            if self._own.in_void(close):
                self._refuse(close.round, close.attempt)
            else:
                self._do(Reduce(close))
        elif missing and self._own.rank in close.lost and close.leader is not None:
            self._do(Fetch(close.leader, close.round, close.attempt))
        elif not missing and close.gradients:
            self._hand_on(close)

    def queried(self, query: Query) -> None:
        """Is the result here? If not, it is never taken any more, unless `told_to_take` says so."""
        entry, holds = self.log.entries.get(query.round), self.log.holds(query.round)
        if not holds:
            self.log.refused[query.round] = max(query.attempt, self.log.refused.get(query.round, -1))
        gives = entry is not None and entry.held
        self._do(Send(Answer(self._own.rank, query.round, query.attempt, holds, gives)))

    def told_to_take(self, take: Take) -> None:
        """The outcome is fixed: what was refused before is what everybody takes now."""
        if not self.log.holds(take.round):
            self.log.refused.pop(take.round, None)
            self._do(Fetch(take.holder, take.round, take.attempt))

    # What follows.

    def _refuse(self, number: int, attempt: int) -> None:
        self.log.refused[number] = attempt
        self._do(Send(Failed(self._own.rank, number, attempt)))

    def _hand_on(self, close: Close) -> None:
        """A result is here that others may have asked for before."""
        self._deliver(close, self.log.asked_for(close.round))

    def _deliver(self, close: Close, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._do(Deliver(rank, close))
