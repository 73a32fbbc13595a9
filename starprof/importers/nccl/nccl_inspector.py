"""NCCL Inspector: one JSON record per collective of each process, with its time on the device.

Up to version 4.2 each record tells its communicator and process; later ones tell them once per dump, in the record of
the dump's statistics that comes before the others.
Sequence numbers count each kind of call of a communicator for itself, so a communicator's calls of one kind make a
group of table `collective`. Records name the rank within the communicator only: the communicator that holds all
processes gives the global ranks.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model import ranklists
from starprof.model.collectives import UNKNOWN, kind
from starprof.model.rundata import RankInfo, RunData
from starprof.model.tables.trace import COLLECTIVE

NAME = "nccl-inspector"

MAX_WHOLE = 64 << 20
"""Files that are not one record a line are read whole."""
MAX_NAME = 100
MAX_DEVICES = 1 << 20
_KEYS = (b'"coll_perf"', b'"p2p_perf"', b'"inspector_output_format_version"')
ON_THE_DEVICE = "kernel"
"""How timing sources begin that tell when the device worked; the others tell when the host handed the call over."""

Process = tuple[str, int]


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    comm_name: str | None = None


class _Metadata(msgspec.Struct):
    hostname: str = ""
    pid: int = 0


class _Kernel(msgspec.Struct):
    kernel_start_ts: float | None = None


class _Times(msgspec.Struct):
    kernel_events: list[_Kernel] = []


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int | None = None
    coll_exec_time_us: float | None = None
    coll_timing_source: str | None = None
    event_trace_ts: _Times | None = None


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None


def recognises(source: Source) -> bool:
    """JSON with the inspector's own keys."""
    head = source.head
    return head.lstrip()[:1] in b"{[" and b'"header"' in head and any(key in head for key in _KEYS)


def read(sources: Sequence[Source]) -> RunData:
    """Read the records of one job.

    Raises:
        InputError: a file is damaged before its last line, or no record tells of a collective.
    """
    rows = _Rows()
    cut = 0
    for source in sources:
        header: _Header | None = None
        metadata: _Metadata | None = None
        for record in _records(source):
            if record is None:
                cut += 1
                continue
            header, metadata = record.header or header, record.metadata or metadata
            if header is None or metadata is None:
                raise InputError(f"{source.name}: the first record does not tell its communicator and process")
            rows.add(header, metadata, record.coll_perf, source)
    if not len(rows.columns["sequence"]):
        raise InputError(f"{sources[0].name}: no record of a collective (sends and receives tell nothing here)")
    ranks, note = rows.global_ranks()
    unavailable = [("steps", "NCCL Inspector records calls, no steps")]
    if not np.isfinite(rows.columns["dur_us"]).any():
        unavailable.append(("times", "no record holds a time of the device (coll_timing_source)"))
    run = run_of(NAME, sources, ranks=rows.infos(ranks), unavailable=unavailable, collectives=rows.frame(ranks))
    notes = [note] if note else []
    if cut:
        notes.append(f"the last record of {cut} file{'s' if cut > 1 else ''} is cut off")
    return replace(run, info={**run.info, "note": "; ".join(notes)})


def _records(source: Source) -> Iterator[_Record | None]:
    """Records of a file; None for a last one that is cut off."""
    if source.head.lstrip()[:1] == b"[":
        yield from _whole(source)
        return
    decoder = msgspec.json.Decoder(_Record)
    lines = enumerate(source.text_lines(), 1)
    bad: tuple[int, str] | None = None
    for number, line in lines:
        text = line.strip()
        if not text:
            continue
        if bad is not None:
            if bad[0] == 1:
                yield from _whole(source)
                return
            raise InputError(f"{source.name}, line {bad[0]}: no record of NCCL Inspector ({bad[1]})")
        try:
            record = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            bad = (number, str(error))
            continue
        yield record
    if bad is None:
        return
    if bad[0] > 1:
        yield None
    else:
        yield from _whole(source)


def _whole(source: Source) -> Iterator[_Record]:
    """Records that stretch over lines, or stand in an array."""
    with source.open() as stream:
        data = stream.read(MAX_WHOLE + 1)
    if len(data) > MAX_WHOLE:
        raise InputError(f"{source.name} is larger than {MAX_WHOLE >> 20} MiB and not one record a line")
    text = data.decode("utf-8", errors="replace").strip()
    decoder, at = json.JSONDecoder(), 0
    try:
        while at < len(text):
            found, at = decoder.raw_decode(text, at)
            for one in found if isinstance(found, list) else [found]:
                yield msgspec.convert(one, _Record)
            while at < len(text) and text[at].isspace():
                at += 1
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(f"{source.name}: no record of NCCL Inspector ({error})") from error


@dataclass
class _Rows:
    """Columns of all records; processes, communicators and kinds by number."""

    processes: dict[Process, int] = field(default_factory=dict)
    places: dict[str, dict[int, int]] = field(default_factory=dict)
    """Per communicator the rank in it of each process."""
    sizes: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    """(communicator, kind of call)."""
    labels: dict[str, str] = field(default_factory=dict)
    columns: dict[str, array[Any]] = field(
        default_factory=lambda: {
            **{name: array("q") for name in ("process", "group", "sequence", "bytes")},
            **{name: array("d") for name in ("start_us", "dur_us")},
        }
    )

    def add(self, header: _Header, metadata: _Metadata, call: _Collective | None, source: Source) -> None:
        """Add one record.

        Raises:
            InputError: it contradicts itself or another one.
        """
        process = self.processes.setdefault((metadata.hostname[:MAX_NAME], metadata.pid), len(self.processes))
        if not 0 <= header.rank < header.n_ranks <= MAX_DEVICES:
            raise InputError(f"{source.name}: rank {header.rank} of {header.n_ranks} in a communicator")
        comm = header.id[:MAX_NAME]
        place = self.places.setdefault(comm, {})
        if place.setdefault(process, header.rank) != header.rank:
            raise InputError(f"{source.name}: one process has two ranks in communicator {comm}")
        self.sizes[comm] = header.n_ranks
        if call is None:
            return
        told = header.comm_name
        self.labels[comm] = f"{told[:MAX_NAME]} ({comm})" if told and told != "unknown" else comm
        what = kind(call.coll)
        name = call.coll[:MAX_NAME] if what == UNKNOWN else what
        group = self.groups.setdefault((comm, name), len(self.groups))
        size = call.coll_msg_size_bytes
        values = (
            process,
            group,
            call.coll_sn if 0 <= call.coll_sn < 1 << 62 else -1,
            size if size is not None and 0 <= size < 1 << 62 else -1,
            _start(call),
            _duration(call),
        )
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def global_ranks(self) -> tuple[list[int], str]:
        """Global rank of each process, and what to know about it."""
        count = len(self.processes)
        world = max(self.places, key=lambda comm: (len(self.places[comm]), self.sizes[comm]))
        place = self.places[world]
        if len(place) == count and len(set(place.values())) == count and self.sizes[world] == max(self.sizes.values()):
            return [place[process] for process in range(count)], ""
        order = sorted(self.processes, key=lambda key: key)
        number = {self.processes[key]: rank for rank, key in enumerate(order)}
        return (
            [number[process] for process in range(count)],
            "no communicator holds all processes: ranks are numbered by host and process, not as the job does",
        )

    def infos(self, ranks: Sequence[int]) -> list[RankInfo]:
        """The ranks."""
        hosts = {host: n for n, host in enumerate(sorted({host for host, _ in self.processes}))}
        found = [
            RankInfo(rank=ranks[number], node=hosts[host], host=host, pid=pid, backend="nccl")
            for (host, pid), number in self.processes.items()
        ]
        return sorted(found, key=lambda info: info.rank)

    def frame(self, ranks: Sequence[int]) -> pd.DataFrame:
        """Table `collective`, each call of a rank once."""
        data = {name: np.frombuffer(column, column.typecode) for name, column in self.columns.items()}
        names = np.array([f"{self.labels[comm]} {what}" for comm, what in self.groups], object)
        kinds = np.array([what for _, what in self.groups], object)
        members = np.array([self._members(comm, ranks) for comm, _ in self.groups], object)
        frame = pd.DataFrame(
            {
                "attempt": 0,
                "rank": np.asarray(ranks, np.int64)[data["process"]],
                "group_name": names[data["group"]],
                "sequence": _told(data["sequence"]),
                "name": kinds[data["group"]],
                "start_us": data["start_us"],
                "dur_us": data["dur_us"],
                "calls": 1,
                "bytes": _told(data["bytes"]),
                "ranks": members[data["group"]],
            }
        )
        known = frame["sequence"].notna()
        again = frame.duplicated(["rank", "group_name", "sequence"]) & known
        return frame[~again].reindex(columns=list(COLLECTIVE.names)).reset_index(drop=True)

    def _members(self, comm: str, ranks: Sequence[int]) -> str | None:
        place: Mapping[int, int] = self.places[comm]
        return ranklists.listed(ranks[process] for process in place) if len(place) == self.sizes[comm] else None


def _told(values: np.ndarray[Any, np.dtype[np.int64]]) -> pd.Series[Any]:
    """Whole numbers; NULL for -1."""
    return pd.Series(values).astype("Int64").mask(values < 0)


def _start(call: _Collective) -> float:
    """When the device began with it, in verbose records."""
    events = call.event_trace_ts.kernel_events if call.event_trace_ts is not None else []
    return min((e.kernel_start_ts for e in events if e.kernel_start_ts is not None), default=float("nan"))


def _duration(call: _Collective) -> float:
    source = call.coll_timing_source
    if call.coll_exec_time_us is None or not 0 <= call.coll_exec_time_us < 1e15:
        return float("nan")
    return call.coll_exec_time_us if source is None or source.startswith(ON_THE_DEVICE) else float("nan")
