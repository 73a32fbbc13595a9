"""An advisor's say in the mode: on lease, from one of them at a time, and never against the operator.

Whoever advises asks anew all the time. When nothing is heard of it for as long as it wanted its lease to be, a job that
it has moved away goes back to where all wait for all: an advisor that is dead, cut off or stuck can't keep a job
anywhere. A second advisor is told to stay away while the lease of the first one lasts; what was said before, and comes
again, counts nothing. All times are those of the coordinator's own clock, which does not jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from starprof.control.modes import NATIVE, Mode
from starprof.errors import StarprofError

ADVISOR = "advisor"
"""As whom it asks for a mode."""

MIN_LEASE_S, MAX_LEASE_S = 0.5, 60.0
TAKEN_OVER_S = 10.0
"""An advisor has this time to find the coordinator that has taken over."""

MAX_STATE_CHARACTERS = 4000


class NotYoursError(StarprofError):
    """Somebody else advises this job, or the operator decides."""


@dataclass(frozen=True, slots=True)
class Word:
    """What an advisor says each time.

    Attributes:
        holder: its name, a random one.
        serial: grows with each word of the same holder.
        lease_s: how long it may be silent.
        mode: to move the job to; None: it stays.
        reason: why.
        state: what it is doing, in JSON, for whoever asks the coordinator.
    """

    holder: str
    serial: int
    lease_s: float
    mode: Mode | None = None
    reason: str = ""
    state: str = ""


class Advised:
    """Keeps the lease.

    Attributes:
        operator: who has taken the decision from the advisor; "" for nobody.
        holder: advisor whose lease lasts, "" for none.
        state: what it said last that it is doing.
    """

    def __init__(self, want: Callable[[Mode, str, str], None], home: Mode = NATIVE) -> None:
        """Nobody advises.

        Args:
            want: moves the job: mode, asked by, reason. It raises where that can't be.
            home: mode of a job that nobody has moved, where all wait for all.
        """
        self.operator = ""
        self.holder = ""
        self.state = ""
        self._want = want
        self._home = home
        self._serials: dict[str, int] = {}
        self._until_s = -math.inf
        self._moved = False

    def said(self, word: Word, now_s: float) -> None:
        """An advisor has spoken: it has its lease, and its mode is wanted if it names one.

        Raises:
            NotYoursError: another one has the lease, the word is an old one, or the operator decides.
            StarprofError: the mode can't be had.
        """
        if self.holder and self.holder != word.holder and now_s < self._until_s:
            raise NotYoursError("another advisor is at work on this job")
        if word.serial <= self._serials.get(word.holder, -1):
            raise NotYoursError("that was said before")
        self._serials[word.holder] = word.serial
        self.holder = word.holder
        self._until_s = now_s + min(max(word.lease_s, MIN_LEASE_S), MAX_LEASE_S)
        self.state = word.state[:MAX_STATE_CHARACTERS]
        if word.mode is None:
            return
        if self.operator:
            raise NotYoursError(f"the mode is {self.operator}'s choice until `starprof ctl JOB unfreeze`")
        self._want(word.mode, ADVISOR, word.reason)
        self._moved = word.mode != self._home

    def overruled(self, by: str) -> None:
        """The operator has asked for a mode himself: it holds until he gives it back, with "".

        What the advisor has moved, and the operator has only frozen, is still on lease afterwards.
        """
        self.operator = by
        self._moved = self._moved and not by

    def taken_over(self, asked_by: str, operator: str, mode: Mode, now_s: float) -> None:
        """A coordinator before this one has moved the job: its advisor has to speak up here, or the job goes back."""
        self.operator = operator
        self._moved = asked_by == ADVISOR and mode != self._home
        if self._moved:
            self._until_s = now_s + TAKEN_OVER_S

    def refused(self) -> None:
        """The job stays with native steps: there is nothing to take back."""
        self._moved = False

    def tick(self, now_s: float) -> None:
        """Take back what an advisor has done that is silent."""
        if now_s < self._until_s:
            return
        self.holder = self.state = ""
        if self._moved:
            self._moved = False
            self._want(self._home, "coordinator", "the advisor that moved the job is silent: its lease is over")
