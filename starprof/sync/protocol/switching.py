"""From native steps to rounds, in two phases: all promise how far they go, then the version is set."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starprof.sync.protocol.messages import Abort, Commit, Prepare, Prepared, ToRank

MIN_NATIVE_STEPS = 2
"""DDP rebuilds its buckets in its second step, with a collective of its own."""


class Switch:
    """The switch under way, if any, and the last one that was carried out.

    Attributes:
        number: counts the switches.
        promises: version from which on each rank begins no native step; None: no switch is under way.
        commit: the last switch, while its rounds go on.
    """

    def __init__(self, tell_all: Callable[[ToRank], None]) -> None:
        """Begin in native steps.

        Args:
            tell_all: how to speak to all ranks.
        """
        self._tell_all = tell_all
        self.number = 0
        self.promises: dict[int, int] | None = None
        self.commit: Commit | None = None

    def prepare(self, epoch: int) -> None:
        """Ask for promises."""
        self.number += 1
        self.promises = {}
        self._tell_all(Prepare(epoch, self.number))

    def abort(self, epoch: int) -> None:
        """Native steps go on, whether or not ranks hold still for a switch."""
        self.promises = None
        self._tell_all(Abort(epoch, self.number))

    def promised(self, message: Prepared) -> None:
        """A rank has promised."""
        if self.promises is not None and message.switch == self.number:
            self.promises[message.rank] = message.version

    def committed(self, epoch: int, live: Collection[int]) -> Commit | None:
        """The version at which rounds begin, once all have promised; all are told."""
        if self.promises is None or not live or any(rank not in self.promises for rank in live):
            return None
        version = max(MIN_NATIVE_STEPS, *self.promises.values())
        self.promises = None
        self.commit = Commit(epoch, self.number, version)
        self._tell_all(self.commit)
        return self.commit
