"""From native steps to rounds, in two phases: all promise how far they go, then the version is set."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from starprof.sync.policies import LocalSteps
from starprof.sync.protocol.messages import Abort, Commit, Prepare, Prepared, ToRank

MIN_NATIVE_STEPS = 2
"""DDP rebuilds its buckets in its second step, with a collective of its own."""


class Switch:
    """The coordinator's side: the switch under way, if any, and the last one that was carried out.

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

    def agreed(self, live: Collection[int]) -> int | None:
        """The version at which rounds begin, once all have promised; `commit_to` follows."""
        if self.promises is None or not live or any(rank not in self.promises for rank in live):
            return None
        version = max(MIN_NATIVE_STEPS, *self.promises.values())
        self.promises = None
        return version

    def commit_to(self, epoch: int, version: int, local: LocalSteps) -> None:
        """Rounds begin; all are told."""
        self.commit = Commit(epoch, self.number, version, local)
        self._tell_all(self.commit)


@dataclass(slots=True)
class SwitchAtRank:
    """A rank's side of it.

    Attributes:
        rank: whose.
        prepared: the switch under way: it has promised how far it goes, or is about to; None: there is none.
        commit: the newest switch that it was told of, while its rounds go on.
    """

    rank: int
    prepared: int | None = None
    commit: Commit | None = None

    def told(self, message: Prepare | Commit | Abort) -> None:
        """Native steps are about to end, end at a version, or go on after all."""
        self.prepared = message.switch if isinstance(message, Prepare) else None
        if isinstance(message, Commit):
            self.commit = message

    def promise(self, version: int) -> Prepared:
        """To begin no native step from a version on, before it hears how the switch under way ends."""
        assert self.prepared is not None
        return Prepared(self.rank, self.prepared, version)

    def begun(self, version: int) -> Commit | None:
        """The switch by which rounds have begun at this version; None: its next step is a native one."""
        return self.commit if self.commit is not None and version >= self.commit.version else None
