"""What a job stands still in: the last calls of every rank, and what can be concluded from them.

A rank with a pending call waits for the members of the group that never joined this call; they in turn may wait in
calls of other groups. A completed call of a strict kind proves that every member took part, which shows two more
things: a rank that never joined such a call was dumped earlier than the others (nothing can be said of it), and a rank
that joined it although an earlier call of the group is still pending in its record no longer sees its own device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from starprof.analysis.hangs.waitgraph import Bottom, WaitGraph
from starprof.model import ranklists

STRICT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""Nobody can complete one before everybody has joined it. (An all-to-all may have nothing for some member.)"""
LOOSE = frozenset({"broadcast", "reduce", "gather", "scatter", "all_to_all"})

_ENDS = re.compile(r"(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
NAN = float("nan")


@dataclass(frozen=True)
class Call:
    """One pending call, and how the members of its group stand to it.

    Attributes:
        sequence: number in the group; None for a send or receive.
        name: kind of call, "" when no member tells.
        waiting: members in which it is pending.
        missing: members that never joined it, or whose device never came to it (`held`).
        unknown: members of which the records don't tell.
        held: the missing ones have scheduled it, but their device never started it, as others' did.
        since_us: when the first member joined it, NaN when not told.
        step: step it belongs to, None when not told.
    """

    group: str
    sequence: int | None
    name: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    held: bool = False
    since_us: float = NAN
    step: int | None = None


@dataclass(frozen=True)
class Waits:
    """A stand-still.

    Attributes:
        calls: pending calls, at most one per group, and sends and receives; the earliest first.
        missing: ranks that others wait for, and that wait for nobody; those that are `blind` among them.
        blind: ranks that don't see their own device's work any more.
        suspects: ranks that others wait for, and of which the records don't tell.
        stale: ranks whose record is older than the others'.
        circles: sets of ranks that wait for one another and nobody else.
        opaque: groups in which ranks wait for partners that the record does not tell.
        waiting: all ranks that wait in a call.
        last: per group and rank the last call it joined.
    """

    calls: tuple[Call, ...]
    missing: tuple[int, ...]
    blind: tuple[int, ...]
    suspects: tuple[int, ...]
    stale: tuple[int, ...]
    circles: tuple[tuple[int, ...], ...]
    opaque: tuple[str, ...]
    waiting: tuple[int, ...]
    last: Mapping[tuple[str, int], int]


def waits(collectives: pd.DataFrame) -> Waits:
    """Find what a job waits for.

    Args:
        collectives: table `collective`; rows without a state say nothing here.
    """
    rows = collectives[collectives["state"].notna() & collectives["group_name"].notna()]
    numbered = rows[rows["sequence"].notna()]
    kinds, places = _kinds(numbered), _places(numbered)
    stale = _stale(places, kinds)
    places = places[~places["rank"].isin(stale)]
    rows = rows[~rows["rank"].isin(stale)]
    blind = _blind(places, kinds)
    graph = WaitGraph()
    members = _members(rows)
    calls = [
        call
        for group, frame in places.groupby("group", sort=False)
        if (call := _add_group(graph, str(group), frame, members, blind)) is not None
    ]
    calls += _add_sent(graph, rows[rows["sequence"].isna() & rows["state"].ne("completed")], blind)
    told = {rank for call in calls for rank in call.missing}
    known = set(rows["rank"].tolist())
    bottom = graph.bottom() if calls else Bottom()
    return Waits(
        calls=tuple(sorted(_described(calls, kinds), key=_earliest)),
        missing=tuple(sorted((set(bottom.ranks) & told & known) | (blind if calls else set()))),
        blind=tuple(sorted(blind)),
        suspects=tuple(r for r in bottom.ranks if r not in told or r not in known),
        stale=tuple(sorted(stale)),
        circles=bottom.circles,
        opaque=bottom.opaque,
        waiting=tuple(sorted({rank for call in calls for rank in call.waiting})),
        last={(g, r): j for g, r, j in zip(places["group"], places["rank"], places["joined"], strict=True)},
    )


def _earliest(call: Call) -> tuple[bool, bool, float, str]:
    """Calls with missing members first, then by time."""
    told = call.since_us == call.since_us
    return not call.missing, not told, call.since_us if told else 0.0, call.group


def _places(numbered: pd.DataFrame) -> pd.DataFrame:
    """Per group and rank the last call it joined and the last it has done; of the next one, if it started, and when."""
    frame = pd.DataFrame(
        {
            "group": numbered["group_name"].astype(object),
            "rank": numbered["rank"].astype(np.int64),
            "sequence": numbered["sequence"].astype(np.int64),
            "pending": numbered["state"].ne("completed"),
            "started": numbered["state"].eq("started"),
            "start_us": numbered["start_us"].astype(float),
        }
    )
    keys = ["group", "rank"]
    result = frame.groupby(keys, sort=False)["sequence"].max().rename("joined").to_frame()
    completed = frame[~frame["pending"]].groupby(keys)["sequence"].max().reindex(result.index)
    before_first = frame[frame["pending"]].groupby(keys)["sequence"].min().reindex(result.index) - 1
    result["done"] = completed.fillna(before_first).astype(np.int64)
    result = result.reset_index()
    front = frame[frame["pending"]].assign(done=frame["sequence"] - 1)
    front = front.drop_duplicates(["group", "rank", "done"])[["group", "rank", "done", "started", "start_us"]]
    result = result.merge(front, on=["group", "rank", "done"], how="left")
    result["started"] = result["started"].eq(True)
    return result


def _members(rows: pd.DataFrame) -> Mapping[str, tuple[int, ...]]:
    told = rows[rows["ranks"].notna()].drop_duplicates("group_name")
    result = {}
    for group, text in zip(told["group_name"], told["ranks"], strict=True):
        found = ranklists.from_listed(str(text))
        if found:  # else its members are the ranks that were seen in it
            result[str(group)] = found
    return result


def _kinds(numbered: pd.DataFrame) -> pd.DataFrame:
    """Kind and step of each call that any member names."""
    named = numbered[numbered["name"].notna()].drop_duplicates(["group_name", "sequence"])
    return pd.DataFrame(
        {
            "group": named["group_name"].astype(object),
            "sequence": named["sequence"].astype(np.int64),
            "kind": named["name"].astype(object),
            "step": named["step"],
        }
    )


def _stale(places: pd.DataFrame, kinds: pd.DataFrame) -> set[int]:
    """Ranks that never joined a call which others have completed, unless it may be one that needs no such rank."""
    done = places.groupby("group")["done"].transform("max")
    behind = places[places["joined"] < done]
    following = behind.assign(sequence=behind["joined"] + 1).merge(kinds, on=["group", "sequence"], how="left")
    return set(following.loc[~following["kind"].isin(LOOSE), "rank"].tolist())


def _blind(places: pd.DataFrame, kinds: pd.DataFrame) -> set[int]:
    """Ranks that joined a strict call which others have completed, but have an earlier one pending."""
    strict = kinds[kinds["kind"].isin(STRICT)]
    done = places.groupby("group")["done"].max().rename("most").reset_index()
    reached = strict.merge(done, on="group")
    proved = reached[reached["sequence"] <= reached["most"]].groupby("group")["sequence"].max()
    last = places["group"].map(proved)
    late = (places["done"] + 2 <= last) & (places["joined"] >= last)
    return set(places.loc[late, "rank"].tolist())


def _add_group(
    graph: WaitGraph, group: str, frame: pd.DataFrame, members: Mapping[str, tuple[int, ...]], blind: set[int]
) -> Call | None:
    """The call that a group waits in, if it does; adds its edges."""
    ranks, joined, done, starts = (frame[n].to_numpy() for n in ("rank", "joined", "done", "start_us"))
    pending = (joined > done) & ~np.isin(ranks, list(blind))
    if not pending.any():
        return None
    front = int(done[pending].max())
    missing = joined <= front
    waiting = pending & ~missing
    unknown = tuple(sorted(set(members.get(group, ())) - set(ranks.tolist())))
    held = _held(frame["started"].to_numpy(), waiting & (done == front))
    if missing.any() or unknown:
        held = np.zeros(len(ranks), bool)
    graph.stuck(zip(ranks[held].tolist(), starts[held].tolist(), strict=True))
    waiting &= ~held
    absent = ranks[missing | held].tolist()
    who = list(zip(ranks[waiting].tolist(), starts[waiting].tolist(), strict=True))
    if len(members.get(group, ())) != 1:  # alone in its group, a rank waits for nobody
        graph.add(group, who, absent or unknown or ranks[waiting].tolist())
    lagging = pending & missing
    if lagging.any():
        # They may be victims of whoever else has not finished that earlier call.
        behind = ranks[(done < front) & (joined > done)].tolist()
        if len(behind) > 1:
            graph.add(f"{group}, earlier call", [(int(r), NAN) for r in ranks[lagging]], behind)
    times = starts[waiting & (done == front)]
    return Call(
        group=group,
        sequence=front + 1,
        name="",
        waiting=tuple(sorted(ranks[waiting].tolist())),
        missing=tuple(sorted(absent)),
        unknown=unknown,
        held=bool(held.any()),
        since_us=float(np.nanmin(times)) if np.isfinite(times).any() else NAN,
    )


def _held(
    started: np.ndarray[tuple[int], np.dtype[np.bool_]], at_front: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Members whose device did not come to a call that others' devices have started."""
    return at_front & ~started & bool((at_front & started).any())


def _add_sent(graph: WaitGraph, pending: pd.DataFrame, blind: set[int]) -> list[Call]:
    """Pending sends and receives: each waits for the other end."""
    pending = pending[~pending["rank"].isin(blind)].drop_duplicates(["group_name", "rank", "name"])
    ends = pending["name"].astype("string").str.extract(_ENDS).astype("Int64")
    told = ends[0].notna() & ends[1].notna()
    calls = []
    for rank, group, name, start, mine, other in zip(
        pending["rank"][told].tolist(),
        pending["group_name"][told],
        pending["name"][told],
        pending["start_us"][told].astype(float),
        ends[0][told].tolist(),
        ends[1][told].tolist(),
        strict=True,
    ):
        peer = other if mine == rank else mine
        graph.add(f"{group}, {name} of rank {rank}", [(rank, start)], [peer])
        calls.append(Call(str(group), None, str(name), (rank,), missing=(peer,), since_us=start))
    keys = set(zip(pending["group_name"][told], pending["rank"][told], strict=True))
    for group, rank in zip(pending["group_name"][~told], pending["rank"][~told].tolist(), strict=True):
        if (group, rank) not in keys:  # the whole of sends that are listed one by one as well
            graph.add(f"{group}, partner not told", [(rank, NAN)], [])
            calls.append(Call(str(group), None, "send or receive", (rank,)))
    return calls


def _described(calls: list[Call], kinds: pd.DataFrame) -> list[Call]:
    """With name and step of each numbered call."""
    numbered = [(c.group, c.sequence) for c in calls if c.sequence is not None]
    wanted = pd.DataFrame(numbered, columns=["group", "sequence"])
    found = kinds.merge(wanted.astype({"sequence": np.int64}), on=["group", "sequence"])
    told = {
        (g, s): (str(k), None if pd.isna(step) else int(step))
        for g, s, k, step in zip(found["group"], found["sequence"], found["kind"], found["step"], strict=True)
    }
    result = []
    for call in calls:
        name, step = told.get((call.group, call.sequence), (call.name, None))
        result.append(replace(call, name=name, step=step))
    return result
