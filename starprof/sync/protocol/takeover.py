"""What a new coordinator makes of the hellos of all ranks: where the job stands, and what is to be said again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from starprof.sync.policies import Gradient, LocalSteps
from starprof.sync.protocol.messages import Close, Commit, Gathered, Hello


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands.

    Attributes:
        native: it is in native steps, or on the last rounds before them.
        version: rounds go on with this one.
        commit: the switch that its rounds began with, where any rank knows it.
        meetings: that are over.
        end: of the last of them.
        closes: the newest word on each round that not all hold, in order.
        local: steps of their own that ranks make on that version.
    """

    native: bool
    version: int
    commit: Commit | None
    meetings: int
    end: Gathered | None
    closes: tuple[Close, ...]
    local: LocalSteps


def standing(hellos: Sequence[Hello]) -> Standing:
    """From the hellos of all ranks that are not lost; what any of them knows to be closed is closed."""
    newest = _newest_closes(hellos)
    known = [h.gathered for h in hellos if h.gathered is not None]
    met = (c for c in newest.values() if c.meeting > 0)
    known += [Gathered(c.epoch, c.meeting, c.met_at, native=False, again=None) for c in met]
    end = max(known, key=lambda g: (g.meeting, g.again is not None), default=None)
    # A commit before the newest way back to native steps is over.
    back = [g.version for g in known if g.native] + [c.round for c in newest.values() if c.native]
    since = max(back, default=-1)
    commits = [h.commit for h in hellos if h.commit is not None and h.commit.version > since]
    commit = max(commits, key=lambda c: c.version, default=None)
    native = commit is None and (bool(back) or all(h.native for h in hellos))
    version = max([h.held for h in hellos] + [number + 1 for number in newest] + ([commit.version] if commit else []))
    local = _local_at(version, hellos, newest, commit, end)
    meetings = max(h.meetings for h in hellos)
    if end is None or end.meeting < meetings:
        end = Gathered(0, meetings, version, native=False) if meetings else None
    if end is not None and end.again is None:
        end = replace(end, again=())  # nobody who counts has heard more of it
    closes = dict(newest)
    if commit is not None:
        # Nobody who counts knows of these rounds: they change nothing.
        first = max(commit.version, min(h.held for h in hellos))
        for number in (n for n in range(first, version) if n not in newest):
            after = end is not None and number >= end.version
            last = (end.meeting, end.version) if end is not None and after else (0, 0)
            closes[number] = Close(0, number, 0, (), (), meeting=last[0], met_at=last[1], local=local)
    missing = tuple(closes[number] for number in sorted(closes) if any(number >= h.held for h in hellos))
    return Standing(native, version, commit, end.meeting if end is not None else 0, end, missing, local)


def _local_at(
    version: int,
    hellos: Sequence[Hello],
    newest: Mapping[int, Close],
    commit: Commit | None,
    end: Gathered | None,
) -> LocalSteps:
    """What ranks do on a version by themselves; of all that was said on it the newest word."""
    for known in (end, commit):
        if known is not None and known.version == version:
            return known.local
    if version - 1 in newest:
        return newest[version - 1].local
    return max(hellos, key=lambda h: h.held).local


def _newest_closes(hellos: Sequence[Hello]) -> dict[int, Close]:
    newest: dict[int, Close] = {}
    for close in (c for hello in hellos for c in hello.closes):
        if close.round not in newest or close.attempt > newest[close.round].attempt:
            newest[close.round] = close
    return newest


@dataclass(frozen=True, slots=True)
class HandedIn:
    """Gradients that no round uses yet: `waiting`, by rank, and `kept` of ranks that have gone on since."""

    waiting: dict[int, Gradient]
    kept: tuple[Gradient, ...]


def handed_in(hellos: Sequence[Hello], uses: Callable[[Gradient], bool]) -> HandedIn:
    """What ranks have handed in to the coordinator before; `uses` says whether a round is made of a gradient."""
    unused = {h.rank: [g for g in h.handed_in if not uses(g)] for h in hellos}
    waiting = {
        h.rank: unused[h.rank].pop()
        for h in hellos
        if h.waits and unused[h.rank] and unused[h.rank][-1].number == h.number - 1
    }
    return HandedIn(waiting, tuple(g for h in hellos if not h.done for g in unused[h.rank]))
