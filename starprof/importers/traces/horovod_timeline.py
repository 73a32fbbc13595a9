"""Horovod timelines: when each rank was ready for each tensor, as rank 0 saw it.

A timeline is a Chrome trace in which every tensor is a "process". A negotiation begins (`NEGOTIATE_...`) when the first
rank is ready, carries one mark per rank, named by its number, when that rank is ready, and ends when all are. All
times are of rank 0's clock, so that readiness can be compared over ranks: a rank's call lasts from its mark to the
negotiation's end, which is its wait for the last one.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.model import collectives as kinds
from starprof.model.ranklists import listed
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.trace import COLLECTIVE

NAME = "horovod-timeline"

CHUNK_BYTES = 4 << 20
MAX_EVENT_BYTES = 16 << 20
MAX_EVENTS = 50_000_000
_NEGOTIATES = "NEGOTIATE_"
_RANK = re.compile(r"\d{1,7}")
_BETWEEN = re.compile(rb"(?<=\})\s*(?:,\s*)?(?=\{)")
_BEGIN, _READY, _END = 0, 1, 2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Event(msgspec.Struct, gc=False):
    """What is used of an event; times in microseconds."""

    ph: str = ""
    name: str = ""
    ts: float = math.nan
    pid: Any = None


_decode_event = msgspec.json.Decoder(Event).decode
_decode_events = msgspec.json.Decoder(list[Event]).decode


def recognises(source: Source) -> bool:
    """A list of Chrome trace events with Horovod's negotiations or cycles."""
    head = source.head.lstrip()
    return head.startswith(b"[") and (b"NEGOTIATE_" in head or b'"CYCLE_START"' in head)


def read(sources: Sequence[Source]) -> RunData:
    """Read the timeline that rank 0 has written.

    Raises:
        SeveralJobsError: there are several timelines.
        InputError: no negotiation in it, or nothing that can be read.
    """
    if len(sources) > 1:
        raise SeveralJobsError(
            f"{len(sources)} Horovod timelines ({sources[0].base}, {sources[1].base}, ...): name the one that rank 0 "
            "has written, it holds all ranks",
            each_its_own(sources),
        )
    marks = _Marks()
    for event in _events(sources[0]):
        marks.add(event)
    if not marks.begun or not marks.ranks:
        raise InputError(f"{sources[0].name} holds no negotiation of a tensor: nothing tells when ranks were ready")
    table = marks.table()
    ranks = sorted(marks.ranks)
    world = max(ranks, default=0) + 1
    return run_of(
        NAME,
        sources,
        ranks=[RankInfo(rank=r, node=-1, host="", framework="horovod", detail={"world_size": world}) for r in ranks],
        unavailable=_limits(marks, table, world),
        collectives=_collectives(marks, table, world),
    )


def _events(source: Source) -> Iterator[Event]:
    """Events of a list; the last one may be cut.

    Horovod starts a new line only where a tensor comes up for the first time: all later events are one line.
    """
    count, rest = 0, b""
    with source.open() as stream:
        while piece := stream.read(CHUNK_BYTES):
            rest += piece
            end = _last_end(rest)
            for event in _decoded(rest[:end]):
                count += 1
                yield event
            rest = rest[end:]
            if count > MAX_EVENTS:
                raise InputError(f"{source.name} holds more than {MAX_EVENTS} events")
            if len(rest) > MAX_EVENT_BYTES:
                raise InputError(f"{source.name} is no timeline: an event of more than {MAX_EVENT_BYTES} bytes")
    yield from _decoded(rest)


def _last_end(text: bytes) -> int:
    """Where the last event that another one follows ends; 0 when there is none."""
    for reach in (1 << 16, len(text)):
        found = max((m.start() for m in _BETWEEN.finditer(text, max(0, len(text) - reach))), default=0)
        if found:
            return found
    return 0


def _decoded(text: bytes) -> list[Event]:
    """Events between commas; those that can't be read are left out."""
    bare = text.strip().removeprefix(b"[").removesuffix(b"]").strip(b", \r\n\t")
    try:
        return _decode_events(b"[" + bare + b"]")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return [event for one in _BETWEEN.split(bare) for event in _decoded_one(one)]


def _decoded_one(text: bytes) -> list[Event]:
    try:
        return [_decode_event(text.strip().removeprefix(b"[").removesuffix(b"]"))]
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return []


@dataclass
class _Marks:
    """Begins, ready ranks and ends of all negotiations, in the order of the file.

    Attributes:
        begun: negotiations that began.
        ranks: all ranks that any mark names.
        kinds: kind of call of each tensor.
    """

    begun: int = 0
    ranks: set[int] = field(default_factory=set)
    kinds: dict[int, str] = field(default_factory=dict)
    _tensors: dict[object, int] = field(default_factory=dict)
    _rows: array[float] = field(default_factory=lambda: array("d"))

    def add(self, event: Event) -> None:
        """Keep an event if it is part of a negotiation."""
        if not math.isfinite(event.ts) or not isinstance(event.pid, (int, str)):
            return
        if event.ph == "B" and event.name.startswith(_NEGOTIATES):
            self.begun += 1
            tensor = self._tensors.setdefault(event.pid, len(self._tensors))
            self.kinds[tensor] = kinds.kind(event.name.removeprefix(_NEGOTIATES))
            self._rows.extend((tensor, event.ts, _BEGIN, -1))
        elif event.ph in ("X", "i", "I") and _RANK.fullmatch(event.name):
            tensor = self._tensors.setdefault(event.pid, len(self._tensors))
            self.ranks.add(int(event.name))
            self._rows.extend((tensor, event.ts, _READY, int(event.name)))
        elif event.ph == "E" and event.pid in self._tensors:
            self._rows.extend((self._tensors[event.pid], event.ts, _END, -1))

    def table(self) -> pd.DataFrame:
        """One row per rank and negotiation that ended: tensor, rank, step (n-th time of the tensor), ready, end."""
        tensor, at, what, rank = np.array(self._rows, np.float64).reshape(-1, 4).T
        order = np.lexsort((what, at, tensor))
        tensor, at, what, rank = (column[order] for column in (tensor, at, what, rank))
        begins = what == _BEGIN
        number = np.cumsum(begins) - 1
        tensor_of = tensor[begins]
        # What comes before a tensor's first begin belongs to a negotiation that the file does not hold.
        known = (number >= 0) & (tensor == tensor_of[np.maximum(number, 0)])
        end = np.full(len(tensor_of), np.inf)
        ends = known & (what == _END)
        np.minimum.at(end, number[ends], at[ends])
        first = np.r_[True, np.diff(tensor_of) != 0]
        step = np.arange(len(tensor_of)) - np.maximum.accumulate(np.where(first, np.arange(len(tensor_of)), 0))
        ready = np.flatnonzero(known & (what == _READY))
        mine = number[ready]
        frame = pd.DataFrame(
            {
                "negotiation": mine,
                "tensor": tensor_of[mine].astype(np.int64),
                "rank": rank[ready].astype(np.int64),
                "step": step[mine],
                "ready": at[ready],
                "end": end[mine],
            }
        )
        return frame[frame["ready"] <= frame["end"]].drop_duplicates(["negotiation", "rank"], keep="first")


def _collectives(marks: _Marks, table: pd.DataFrame, world: int) -> pd.DataFrame:
    """Rows of table `collective`: negotiations in the order in which they ended."""
    ended = table[np.isfinite(table["end"])]
    by_end = ended.drop_duplicates("negotiation").sort_values(["end", "negotiation"], kind="stable")["negotiation"]
    place = pd.Series(np.arange(len(by_end)), index=by_end)
    frame = pd.DataFrame(
        {
            "attempt": 0,
            "rank": ended["rank"],
            "group_name": "world",
            "sequence": ended["negotiation"].map(place).astype("int64"),
            "name": ended["tensor"].map(marks.kinds),
            "step": ended["step"],
            "start_us": ended["ready"],
            "dur_us": ended["end"] - ended["ready"],
            "calls": 1,
            "state": "completed",
            "ranks": listed(range(world)),
        }
    )
    return frame.reindex(columns=list(COLLECTIVE.names)).sort_values(["rank", "sequence"], kind="stable")


def _limits(marks: _Marks, table: pd.DataFrame, world: int) -> list[tuple[str, str]]:
    """What the timeline can't tell, in words."""
    limits = [("time of the ranks between tensors", "a timeline tells when ranks were ready, not what they did before")]
    told = table.groupby("negotiation")["rank"].count()
    silent = marks.begun - len(told)
    if silent > 0:
        limits.append(
            (
                f"readiness in {silent} of {marks.begun} negotiations",
                "tensors that Horovod remembers are not negotiated again; HOROVOD_CACHE_CAPACITY=0 shows them all",
            )
        )
    unended = table[~np.isfinite(table["end"])]
    if len(unended):
        limits.append((f"{unended['negotiation'].nunique()} negotiations", "they do not end within the timeline"))
    partial = int((told < world).sum())
    if partial:
        limits.append((f"ranks in {partial} negotiations", f"fewer than {world} ranks were ready, or are written down"))
    return limits
