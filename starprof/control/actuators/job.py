"""Which processes of this machine belong to a job: its ranks and what they have started, and nobody else.

A rank is known from its ring: the number of its process, which must be running with the job's own spool in its
environment. What it has started belongs to the job when it has the same spool in its environment too: a helper that
somebody's login shell runs below a rank does not. Each is known by its start too, and looked at before it is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starprof.collectors.tree import ProcessTree
from starprof.control.actuators.change import GoneError, RefusedError
from starprof.control.actuators.processes import alive, environment, start_of
from starprof.errors import SpoolError, UsageError
from starprof.model import env
from starprof.spool.layout import Spool
from starprof.spool.ringreader import RingReader


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the job.

    Attributes:
        pid: its number.
        start: when it was started, clock ticks since boot.
        rank: that it is, or that it works for.
        helper: whether it is none itself: a loader's worker, a compiler.
    """

    pid: int
    start: int
    rank: int
    helper: bool = False

    @property
    def words(self) -> str:
        """For people."""
        return f"helper {self.pid} of rank {self.rank}" if self.helper else f"rank {self.rank} ({self.pid})"


class JobHere:
    """A job's part on this machine.

    Attributes:
        spool: of the run.
        name: for people.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.name = spool.root.name.removesuffix(".spool")

    @classmethod
    def of(cls, path: Path) -> JobHere:
        """The job of a run file, or of a spool.

        Raises:
            UsageError: it is not being recorded on this machine.
        """
        spool = Spool(path.absolute()) if path.is_dir() else Spool.beside(path.absolute())
        if not spool.rings.is_dir():
            raise UsageError(f"{path} is not being recorded here: {spool.rings} is not there")
        return cls(spool)

    @property
    def key(self) -> str:
        """The same for every name of its folder."""
        return str(self.spool.root.resolve())

    def members(self) -> list[Member]:
        """All its processes that run now, ranks first."""
        ranks = self._ranks()
        tree = ProcessTree("/proc")
        tree.refresh({member.rank: member.pid for member in ranks})
        known = {member.pid for member in ranks}
        helpers = []
        for pid, rank in sorted(tree.rank_of.items()):
            if pid in known or not self._ours(pid):
                continue
            try:
                helpers.append(Member(pid, start_of(pid), rank, helper=True))
            except GoneError:
                continue
        return ranks + helpers

    def _ranks(self) -> list[Member]:
        found: dict[int, Member] = {}
        for path in sorted(self.spool.rings.glob("*.ring")):
            rank_pid = _described(path)
            if rank_pid is None:
                continue
            rank, pid = rank_pid
            try:
                start = start_of(pid)
            except GoneError:
                continue
            if self._ours(pid):
                found[rank] = Member(pid, start, rank)
        return [found[rank] for rank in sorted(found)]

    def _ours(self, pid: int) -> bool:
        told = environment(pid).get(env.SPOOL)
        return told is not None and os.path.realpath(told) == self.key

    def owns(self, pid: int, start: int) -> bool:
        """Whether this very process belongs to the job."""
        return alive(pid, start) and self._ours(pid)

    def running(self) -> bool:
        """Whether any rank still runs here."""
        return bool(self._ranks())

    def allowed(self, actuator: str, member: Member) -> None:
        """That whoever has started the job lets this be done to it.

        Raises:
            RefusedError: it is not on the job's list.
        """
        check_allowed(actuator, environment(member.pid).get(env.ACTUATORS))


NEED_CONSENT = frozenset({"cgroup", "tc"})
"""What acts on more than single processes: done only to jobs whose owner has named it."""


def check_allowed(actuator: str, listed: str | None) -> None:
    """That an actuator is on a job's list; without a list all are that act on single processes.

    Raises:
        RefusedError: it is not.
    """
    if listed is None:
        if actuator in NEED_CONSENT:
            raise RefusedError(
                f"{actuator} has to be allowed by who starts the job: {env.ACTUATORS}={actuator} in its environment"
            )
        return
    names = {name.strip() for name in listed.split(",")}
    if actuator not in names and "all" not in names:
        raise RefusedError(f"{actuator} is not on the job's list of what may be done to it: {env.ACTUATORS}={listed}")


def chosen(members: Iterable[Member], ranks: Iterable[int] | None, *, helpers: bool | None = None) -> list[Member]:
    """Those of some ranks (None: all); with or without what they have started (None: both).

    Raises:
        UsageError: a rank is not there.
    """
    members = list(members)
    wanted = None if ranks is None else set(ranks)
    missing = (wanted or set()) - {member.rank for member in members if not member.helper}
    if missing:
        raise UsageError(f"rank {min(missing)} does not run here; there are {sorted({m.rank for m in members})}")
    return [
        member
        for member in members
        if (wanted is None or member.rank in wanted) and (helpers is None or member.helper == helpers)
    ]


def _described(path: Path) -> tuple[int, int] | None:
    """Rank and process of a ring."""
    try:
        reader = RingReader(path)
    except SpoolError:
        return None
    try:
        told = reader.description()
    except ValueError:
        return None
    finally:
        reader.close()
    if told is None or not isinstance(told[1].get("rank"), int) or not isinstance(told[1].get("pid"), int):
        return None
    return told[1]["rank"], told[1]["pid"]
