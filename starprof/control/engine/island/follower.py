"""The engine of a rank that does with its shards what its island's leader does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from starprof.control.codec import decode, encode
from starprof.control.engine.island.engine import IslandEngine, close_in, place_in
from starprof.control.engine.island.handover import FollowerHandover
from starprof.control.engine.island.lines import Line, Word
from starprof.control.engine.island.mirror import Mirror
from starprof.control.engine.waiting import GIVE_UP_S, unlocked
from starprof.errors import TransportError
from starprof.sync.protocol.actions import Action, Begin, PullState, Resume
from starprof.sync.protocol.messages import Arrive, Close, Failed, Leave, Parted, Pause, ToCoordinator

MEANWHILE = frozenset({"serve", "make", "take"})
"""What a leader may want done while its followers wait for its word on something else."""
NATIVE_S = 1800.0
"""In native steps a leader may be away for as long as collectives may take; after it, control ends."""


class ToLeader:
    """What a member says to its coordinator, as a follower says it to its leader."""

    def __init__(self, line: Line) -> None:
        """By this line."""
        self._line = line

    def send(self, message: ToCoordinator) -> None:
        """See `roles.Link`."""
        match message:
            case Arrive():
                self._line.say({"is": "here", "at": message.iterations})
            case Pause():
                self._line.say({"is": "stands", "at": message.index})
            case Failed():
                self._line.say({"is": "failed", "round": message.round, "attempt": message.attempt})
            case Leave():
                self._line.say({"is": "bye"})

    def has(self, close: Close, life: int) -> None:
        """This rank has its part of a result; `life`: of the state that it is for."""
        self._line.say({"is": "has", "close": encode(close).decode(), "life": life})

    def has_state(self, version: int, wish: int) -> None:
        """This rank has its part of another island's state, as it was told to ask for."""
        self._line.say({"is": "state", "version": version, "wish": wish})


class IslandFollower(IslandEngine):
    """See the module."""

    _member: Mirror

    def __init__(self, *args: Any, line: Line) -> None:
        """As `IslandEngine`; `line`: to the leader."""
        super().__init__(*args)
        self._line = line
        self._to_leader = ToLeader(line)
        self._orders: deque[Word] = deque()
        self._closes: list[Close] = []
        self._handover: FollowerHandover = FollowerHandover(
            self._member, self._updates, self._own, self._pace, self._changed
        )
        self._handover.tell = self._to_leader.has_state
        self._life = 0
        self._going = 0  # the training thread has been told to make rounds before this one
        self._passes = False

    @property
    def link(self) -> ToLeader:
        """What stands for the connection to the coordinator."""
        return self._to_leader

    def start(self) -> None:
        """Hear the leader."""
        self._line.start("starprof-island", self._heard, lambda reason: self._end(f"its leader: {reason}"))

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    # The training thread.

    def _before_native(self) -> None:
        """The leader says what kind of step it is."""
        with self._changed:
            word = self._next("step", NATIVE_S)
            self._stand(word)
            self._own.turn(self._member.local, self._member.version)
            self.native = bool(word["native"])

    def _wait_for_begin(self) -> Begin | Resume:
        began_s = time.monotonic()
        # The leader gives up before, and says so by its end.
        word = self._next("go", 2 * GIVE_UP_S)
        self._closes = _closes_in(word)
        self._stand(word)
        self._skip_limit, self.keeps_last = word["limit"], word["keeps_last"]
        self.native = word["native"]
        self._passes = self._standing and not word["together"]
        self.counts.waited_s += time.monotonic() - began_s
        if word["together"]:
            return Resume(self._applied, self.native, word["skip"])
        return Begin(self._applied, self.native)

    def _met_without(self) -> bool:
        """Whether its leader goes on from where they stand, though the others have not come."""
        passes, self._passes = self._passes, False
        return passes

    def _released(self) -> list[Close]:
        closes, self._closes = self._closes, []
        return closes

    def _averaged(self) -> None:
        with self._changed:
            self._next("on", 2 * GIVE_UP_S)

    def _next(self, kind: str, most_s: float) -> Word:
        """The leader's next word of this kind; what it wants done meanwhile is done. The lock is held."""
        while True:
            word = self._wait_for({kind, *MEANWHILE}, self._orders, most_s)
            match word["is"]:
                case "serve":
                    with unlocked(self._changed):
                        self._handover.hand_on(word["to"], word["version"])
                case "make":
                    closes = _closes_in(word)
                    self._stand(word)
                    with unlocked(self._changed):
                        self._make(closes, own_step=False)
                case "take":
                    self._take_state()
                case _:
                    return word

    def _stand(self, word: Word) -> None:
        self._member.stands_at(*place_in(word["where"]))

    def _take_state(self) -> None:
        """Go on from another island's state; what came for the old one is gone already."""
        self._closes = []
        self._applied, meetings = self._handover.take()
        self._member.stands_at(self._applied, meetings, self._own.plan)

    # What the leader says.

    def _heard(self, word: Word) -> None:
        with self._changed:
            match word["is"]:
                case "step" | "go" | "on" | "make" | "serve":
                    self._expect(word)
                case "take":
                    self._lose(word)
                    self._member.goes_on()
                    self._expect(word)
                case "bye":
                    self._end("its leader has left")
                case "forget":
                    self._exchange.forget(word["number"])
                    self._member.dropped(word["number"])
                case "fetch":
                    self._peers.fetch(word["holder"], word["round"])
                case "give up":
                    self._exchange.give_up(word["round"])
                case "ask again":
                    self._exchange.ask_again(word["times"])
                    self._handover.ask_again()
                case "pull":
                    self._handover.pull_too(PullState(word["holder"], word["version"]), word["wish"])
                case "lost":
                    self._lose(word)
                case "parted":
                    self._own.sharing.parted(_parted_in(word))
                case _:
                    self._heard_of(close_in(word), word)

    def _expect(self, word: Word) -> None:
        """A word for the training thread."""
        for close in _closes_in(word):
            self._going = max(self._going, close.round + 1)
        self._orders.append(word)
        self._changed.notify_all()

    def _lose(self, word: Word) -> None:
        """Of what is here nothing counts any more, but what the training thread may just be making updates of."""
        self._life = word["life"]
        self._member.lost()
        self._exchange.clear(self._going)

    def _heard_of(self, close: Close, word: Word) -> None:
        """Something on a round."""
        match word["is"]:
            case "close":
                if self._member.closed(close):
                    self._exchange.drop(close.round)
                self._exchange.told(close, self._applied)
                self._member.trim(min(close.floor, self._applied))
            case "reduce":
                self._exchange.reduce(close)
            case "deliver":
                self._exchange.deliver(word["to"], close)
            case "keep":
                self._exchange.settle(close, self._keep)
            case "throw away":
                self._exchange.throw_away(close)

    def _keep(self, close: Close, _tell: Callable[[], list[Action]]) -> list[Action]:
        return self._member.keep(close)

    def _have(self, close: Close) -> None:
        self._to_leader.has(close, self._life)


def _closes_in(word: Word) -> list[Close]:
    return [close_in({"close": close}) for close in word.get("closes", ())]


def _parted_in(word: Word) -> Parted:
    message = decode(str(word["message"]).encode())
    if not isinstance(message, Parted):
        raise TransportError("a word on who is gone without saying who")
    return message
