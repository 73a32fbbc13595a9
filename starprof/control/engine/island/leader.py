"""The engine of the rank that speaks for its island: what its member wants done, all ranks of the island do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starprof.control.codec import encode
from starprof.control.engine.island.engine import ApartError, IslandEngine, close_in, where
from starprof.control.engine.island.handover import LeaderHandover
from starprof.control.engine.island.holding import Count
from starprof.control.engine.island.lines import Line, Word
from starprof.control.engine.waiting import GIVE_UP_S
from starprof.sync.protocol.actions import Action, Begin, Deliver, Fetch, Reduce, Resume
from starprof.sync.protocol.messages import Close, Go, Parted, Query, Rejoin, ToRank


class IslandLeader(IslandEngine):
    """See the module. Followers hear all orders in the order in which they were given."""

    def __init__(self, *args: Any, lines: Mapping[int, Line]) -> None:
        """As `IslandEngine`; `lines`: to the followers, by rank."""
        super().__init__(*args)
        self._lines = lines
        self._said: dict[int, deque[Word]] = {rank: deque() for rank in lines}
        self._count = Count(1 + len(lines))
        self._handover: LeaderHandover = LeaderHandover(
            self._member, self._updates, self._own, self._pace, self._changed
        )
        self._handover.order, self._handover.followers = self._order, len(lines)
        self._life = 0  # of the island's state: what is said of another one's results counts no more
        self._limit: int | None = None
        self._met: Resume | None = None
        self._left: set[int] = set()
        self._on_lost: Callable[[], None] = lambda: None

    def start(self, on_lost: Callable[[], None]) -> None:
        """Hear the followers; `on_lost` is called when one of them is gone."""
        self._on_lost = on_lost
        for rank, line in self._lines.items():
            line.start(f"starprof-island-{rank}", partial(self._heard, rank), partial(self._gone, rank))

    def close(self) -> None:
        """Hang up."""
        for line in self._lines.values():
            line.close()

    # The training thread.

    def _before_native(self) -> None:
        """The followers are told what kind of step it is."""
        self._check()
        self._handover.listening = True
        super()._before_native()
        self._handover.listening = False
        self._order("step", native=self.native, where=where(self._member))

    def done(self) -> None:
        """See `Engine`."""
        super().done()
        self._order("bye")

    def _gather(self, what: str, at: int) -> None:
        """The island's gradient is there when all its ranks have theirs; it stands when all of them do."""
        with self._changed:
            for rank, words in self._said.items():
                word = self._wait_for({what}, words, GIVE_UP_S)
                if word["at"] != at:
                    raise ApartError(f"rank {rank} of this island is in iteration {word['at']}, and not in {at}")
            self._handover.listening = True

    def _wait_for_begin(self) -> Begin | Resume:
        begin = super()._wait_for_begin()
        self._met = begin if isinstance(begin, Resume) else None
        return begin

    def _released(self) -> list[Close]:
        """What is to be made now, by all ranks of the island."""
        closes = super()._released()
        met, self._met = self._met, None
        self._limit = self._skip_limit
        self._count.trim(self._applied)
        self._handover.listening = False
        self._order(
            "go",
            closes=_encoded(closes),
            where=where(self._member),
            native=self.native,
            limit=self._limit,
            keeps_last=self.keeps_last,
            together=met is not None,
            skip=0 if met is None else met.skip,
        )
        return closes

    def _take_standing(self) -> list[Close]:
        closes = super()._take_standing()
        if closes:
            self._order("make", closes=_encoded(closes), where=where(self._member))
        return closes

    def _averaged(self) -> None:
        """The followers wait with the mean until it has been handed on to whoever wants it."""
        self._handover.listening = True
        super()._averaged()
        self._handover.listening = False
        self._order("on")

    def _take_state(self) -> None:
        """All ranks of the island have theirs."""
        self._lose()
        self._order("take", life=self._life)
        super()._take_state()

    def _lose(self) -> None:
        """The state that results were for counts no more."""
        self._life += 1
        self._count.clear()

    def _catch_up(self) -> None:
        """All ranks of the island pass over the same iterations, whatever this one has heard since they were told."""
        self._pace.catch_up(self._limit, keeps_last=self.keeps_last)

    def _ask_again(self, times: int) -> None:
        self._check()
        super()._ask_again(times)
        self._order("ask again", times=times)

    # What the followers do.

    def told(self, message: ToRank) -> None:
        """See `Engine`."""
        with self._changed:
            if isinstance(message, Go) and not message.kept:
                self._order("forget", number=message.number)
            elif isinstance(message, Close):
                self._order("close", message)
            elif isinstance(message, Query):
                self._order("give up", round=message.round)
            elif isinstance(message, Rejoin):
                self._lose()
                self._order("lost", life=self._life)
            elif isinstance(message, Parted):
                self._order("parted", message=encode(message).decode())
            super().told(message)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Reduce(close):
                    self._order("reduce", close)
                case Deliver(to, close):
                    self._order("deliver", close, to=to)
                case Fetch(holder, number, _):
                    self._order("fetch", holder=holder, round=number)
        super()._do(actions)

    def _have(self, close: Close) -> None:
        self._has(self._rank, close)

    def _has(self, rank: int, close: Close) -> None:
        if self._count.has(rank, close):
            self._exchange.settle(close, self._asked)

    def _asked(self, close: Close, tell: Callable[[], list[Action]]) -> list[Action]:
        """Whether the member wants a result of which all ranks of the island have their part."""
        before = self._member.can_deliver(close.round)
        actions = tell()
        after = self._member.can_deliver(close.round)
        if after is not None and after != before:
            self._order("keep", after)
        else:
            self._order("throw away", close)
        return actions

    def _order(self, what: str, close: Close | None = None, **more: object) -> None:
        word: Word = {"is": what, **more}
        if close is not None:
            word["close"] = encode(close).decode()
        for line in self._lines.values():
            line.say(word)

    # What the followers say.

    def _heard(self, rank: int, word: Word) -> None:
        with self._changed:
            match word["is"]:
                case "here" | "stands":
                    self._said[rank].append(word)
                    self._changed.notify_all()
                case "has":
                    if word["life"] == self._life:
                        self._has(rank, close_in(word))
                case "state":
                    self._handover.part_came(rank, word["version"], word["wish"])
                case "failed":
                    self._do(self._member.reduction_failed(word["round"], word["attempt"]))
                case "bye":
                    self._left.add(rank)
                    self._end(f"rank {rank} has left it")

    def _gone(self, rank: int, reason: str) -> None:
        self._end(f"rank {rank} of it: {reason}")
        if rank not in self._left:  # at the end of the training this rank leaves as well
            self._on_lost()


def _encoded(closes: list[Close]) -> list[str]:
    return [encode(close).decode() for close in closes]
