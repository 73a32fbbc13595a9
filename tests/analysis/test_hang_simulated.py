"""Jobs that are played until they stand still: whatever stops them, nobody else is ever named.

Every rank has a program of calls over its groups. Its host schedules calls up to a depth ahead of its device; its
device works them off in order; a call ends when all its members' devices have come to it.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model import causes
from starprof.model.ranklists import listed
from starprof.model.rundata import RankInfo
from starprof.model.tables.trace import COLLECTIVE

KINDS = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")


def grid(tensor, data):
    """Groups by name: rows, columns, and all."""
    ranks = tensor * data
    groups = {f"tp{i}": [i * tensor + j for j in range(tensor)] for i in range(data)}
    groups |= {f"dp{j}": [i * tensor + j for i in range(data)] for j in range(tensor)}
    return groups | {"world": list(range(ranks))}


@dataclass
class Play:
    """A job in motion.

    Attributes:
        depth: calls that the host of each rank schedules ahead.
        host_stops: per rank the number of calls after which its host stops.
        device_stops: per rank the number of calls after which its device stops.
    """

    groups: dict[str, list[int]]
    depth: dict[int, int]
    host_stops: dict[int, int] = field(default_factory=dict)
    device_stops: dict[int, int] = field(default_factory=dict)
    steps: int = 6

    def __post_init__(self):
        self.ranks = sorted({rank for members in self.groups.values() for rank in members})
        self.program = {rank: [] for rank in self.ranks}
        for step in range(self.steps):
            for group, members in self.groups.items():
                for sequence in [2 * step + 1, 2 * step + 2] if group.startswith("tp") else [step + 1]:
                    for rank in members:
                        self.program[rank].append((group, sequence))
        self.scheduled = dict.fromkeys(self.ranks, 0)
        self.done = dict.fromkeys(self.ranks, 0)

    def play(self):
        """Until nothing moves any more."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                limit = min(
                    len(self.program[rank]), self.done[rank] + self.depth[rank], self.host_stops.get(rank, 10**9)
                )
                if self.scheduled[rank] < limit:
                    self.scheduled[rank], moved = limit, True
            for group, members in self.groups.items():
                heads = {self.head(rank) for rank in members}
                if len(heads) == 1 and (call := heads.pop()) is not None and call[0] == group:
                    for rank in members:
                        self.done[rank] += 1
                    moved = True
        return self

    def head(self, rank):
        """The call to which a rank's device has come."""
        at = self.done[rank]
        if at >= self.scheduled[rank] or at >= self.device_stops.get(rank, 10**9):
            return None
        return self.program[rank][at]

    @property
    def nobody_waits(self):
        return all(self.done[rank] == self.scheduled[rank] for rank in self.ranks)

    def table(self, *, timed):
        """What the recorders of all ranks hold."""
        rows = []
        for rank in self.ranks:
            for at, (group, sequence) in enumerate(self.program[rank][: self.scheduled[rank]]):
                begun = timed and at == self.done[rank] and at < self.device_stops.get(rank, 10**9)
                state = "completed" if at < self.done[rank] else "started" if begun else "scheduled"
                rows.append(
                    {
                        "attempt": 0,
                        "rank": rank,
                        "group_name": group,
                        "sequence": sequence,
                        "name": KINDS[sequence % len(KINDS)],
                        "start_us": 1e6 + 100.0 * at + rank,
                        "dur_us": np.nan,
                        "calls": 1,
                        "bytes": 4096,
                        "state": state,
                        "ranks": listed(self.groups[group]),
                    }
                )
        return pd.DataFrame(rows, columns=list(COLLECTIVE.names))

    def verdict(self, *, timed=False, lost=()):
        """Of the job, when the dumps of some ranks are lost."""
        table = self.table(timed=timed)
        infos = [RankInfo(rank=rank, node=0, host="") for rank in self.ranks if rank not in lost]
        table = table[~table["rank"].isin(list(lost))]
        return diagnose(run_of("dumps", [Source("dumps", None)], ranks=infos, collectives=table))


@st.composite
def jobs(draw, *, kind):
    """A job of some shape in which one or two ranks stop."""
    groups = grid(draw(st.integers(1, 4)), draw(st.integers(2, 4)))
    ranks = groups["world"]
    stops = draw(st.dictionaries(st.sampled_from(ranks), st.integers(4, 14), min_size=1, max_size=2))
    depth = {rank: draw(st.integers(1, 8)) for rank in ranks}
    return Play(groups, depth, **{f"{kind}_stops": stops}).play(), set(stops)


def named(verdict):
    return {rank for finding in verdict.findings for rank in finding.ranks}


@settings(deadline=None, max_examples=30)
@given(jobs(kind="host"))
def test_a_process_that_stops_is_named_and_nobody_else(job):
    play, stopped = job
    if play.nobody_waits:
        return
    verdict = play.verdict()
    assert verdict.verdict == "hang"
    assert named(verdict)
    assert named(verdict) <= stopped
    assert verdict.findings[0].cause == causes.MISSING_COLLECTIVE


@settings(deadline=None, max_examples=30)
@given(jobs(kind="device"))
def test_a_device_that_stops_never_puts_the_blame_on_others(job):
    play, stopped = job
    if play.nobody_waits:
        return
    verdict = play.verdict()
    assert verdict.verdict in {"hang", "inconclusive"}
    assert named(verdict) <= stopped


@settings(deadline=None, max_examples=30)
@given(jobs(kind="device"))
def test_a_device_that_stops_is_named_where_starts_were_recorded(job):
    play, stopped = job
    if play.nobody_waits:
        return
    verdict = play.verdict(timed=True)
    assert named(verdict) <= stopped
    assert named(verdict) or len(stopped) > 1


@settings(deadline=None, max_examples=30)
@given(jobs(kind="host"), st.data())
def test_lost_dumps_never_put_the_blame_on_others(job, data):
    play, stopped = job
    if play.nobody_waits:
        return
    lost = data.draw(st.sets(st.sampled_from(play.ranks), min_size=1, max_size=2))
    verdict = play.verdict(lost=lost)
    assert verdict.verdict in {"hang", "inconclusive"}
    assert named(verdict) <= stopped
