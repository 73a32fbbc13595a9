"""Steps that a group of ranks makes together, without the coordinator: each with the mean of the group's gradients.

Groups are raw gloo groups, used again from step to step. A group in which anything went wrong is left alone until the
next averaging, which makes all ranks equal anyway; there everybody learns that somebody had trouble, and new groups are
made, of the same name on all ranks (their era).
"""

from __future__ import annotations

import threading
import time
from functools import partial

from starprof.control.engine.flat import Pool
from starprof.control.engine.gradients import Gradients
from starprof.control.engine.groups import Groups
from starprof.sync.protocol.messages import Parted

Place = tuple[int, int]


class Sharing:
    """One rank's part in its group.

    Attributes:
        era: names the groups.
        alone: this rank takes no part until the next averaging.
    """

    def __init__(self, gradients: Gradients, pool: Pool, groups: Groups, changed: threading.Condition) -> None:
        """Begin without a group.

        Args:
            gradients: of the model.
            pool: for them.
            groups: of this rank; those of this module are apart from them.
            changed: the engine's lock.
        """
        self.era = ""
        self.alone = False
        self._gradients = gradients
        self._pool = pool
        self._all = groups
        self._groups: Groups | None = None
        self._made_for = ""
        self._changed = changed
        self._parted: dict[int, Parted] = {}
        self._awaited = ""
        self._complete: bool | None = None

    def begin(self, era: str) -> None:
        """New groups from here on, for all ranks."""
        self.era, self.alone = era, False

    def parted(self, message: Parted) -> None:
        """A rank makes no more than so many steps on a version; the lock is held."""
        self._parted[message.rank] = message
        self._changed.notify_all()

    def mean(self, members: tuple[int, ...], at: Place, number: int, scale: float) -> float:
        """Make the group's mean the parameters' gradients; they stay what they are where it can't be had.

        Args:
            members: of the group, this rank among them.
            at: where the ranks are: version, and meetings behind them.
            number: of the step since, from 1.
            scale: of this rank's gradients.

        Returns:
            Time spent waiting, in seconds.
        """
        if self.alone:
            return 0.0
        own, flat = self._pool.take(), self._pool.take()
        self._gradients.collect(own)
        own.factor = 1.0 / scale
        flat.take(own, 1.0 / len(members))
        self._pool.give(own)
        name = f"{self.era}.{at[0]}.{number}"
        began_s = time.monotonic()
        with self._changed:
            self._awaited, self._complete = name, None
        self._groups_now().reduce(members, name, 0, flat.tensor, partial(self._reduced, name))
        if self._ended(members, at, number):
            self._gradients.put(flat, scale)
            self._pool.give(flat)
        else:
            self.alone = True
        return time.monotonic() - began_s

    def _groups_now(self) -> Groups:
        if self._groups is None or self._made_for != self.era:
            self.close()
            self._groups, self._made_for = self._all.apart(f"steps/{self.era}"), self.era
        return self._groups

    def close(self) -> None:
        """End the groups."""
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    def _reduced(self, name: str, complete: bool) -> None:
        """Called by a thread of gloo's."""
        with self._changed:
            if name == self._awaited:
                self._complete = complete
                self._changed.notify_all()

    def _ended(self, members: tuple[int, ...], at: Place, number: int) -> bool:
        """Wait for the sum, as long as all members can still come to it; gloo's own limits bound it.

        A sum that is given up may go on for a while: its flat tensor is left to it.
        """
        with self._changed:
            while self._complete is None and not any(self._left(member, at, number) for member in members):
                self._changed.wait(1.0)
            complete, self._awaited = self._complete is True, ""
        if not complete and self._groups is not None:
            self._groups.abandon(members)
        return complete

    def _left(self, member: int, at: Place, number: int) -> bool:
        told = self._parted.get(member)
        return told is not None and (told.version, told.meeting) >= at and told.steps < number
