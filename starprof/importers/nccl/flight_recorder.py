"""PyTorch's NCCL flight recorder: what every rank had called when the job stopped, one dump per rank.

Dumps come as pickles (as the watchdog writes them) or as JSON. `flight_entries` says what is taken from one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.nccl.flight_entries import MAX_NAME, Rows, count
from starprof.importers.nccl.pickles import read_pickle
from starprof.importers.parts import SeveralJobsError, by_overlap
from starprof.importers.source import Source
from starprof.model import ranklists
from starprof.model.rundata import RankInfo, RunData

NAME = "nccl-flight-recorder"

MAX_FILE = 256 << 20
MAX_JSON_CONTAINERS = 4_000_000
MAX_JSON_VALUES = 20_000_000

_PICKLE_KEYS = (b"pg_config", b"collective_seq_id", b"profiling_name", b"pg_status", b"nccl_version")
_JSON_KEYS = (b'"pg_config"', b'"collective_seq_id"', b'"pg_status"')
_ENDINGS = re.compile(r"\.(pickle|pkl|json|txt|bin|dump)$")
_RANK = re.compile(r"(\d{1,9})$")


def recognises(source: Source) -> bool:
    """A pickle or JSON object with the recorder's own keys."""
    head = source.head
    if head[:1] == b"\x80":
        return any(key in head for key in _PICKLE_KEYS)
    return head.lstrip()[:1] == b"{" and any(key in head for key in _JSON_KEYS)


def read(sources: Sequence[Source]) -> RunData:
    """Read the dumps of one job.

    Raises:
        SeveralJobsError: a rank comes twice.
        InputError: a dump can't be read or says nothing about its rank.
    """
    rows = Rows()
    infos: dict[int, RankInfo] = {}
    owner: dict[int, Source] = {}
    empty: list[int] = []
    for source in sources:
        dump = _load(source)
        rank = _rank(source, dump)
        if rank in owner:
            told = {s: frozenset({_rank(s, _load(s))}) for s in sources}
            raise SeveralJobsError(_twice(rank, owner[rank], source, sources), by_overlap(told))
        owner[rank] = source
        infos[rank] = RankInfo(rank=rank, node=0, host=_host(dump), backend="nccl")
        if not rows.add(rank, dump, source.name):
            empty.append(rank)
    ranks = _with_nodes([infos[rank] for rank in sorted(infos)])
    unavailable = [("steps", "flight-recorder dumps hold calls, no steps")]
    if not any(info.host for info in ranks):
        unavailable.append(("hosts", "flight-recorder dumps don't name the host"))
    run = run_of(NAME, sources, ranks=ranks, unavailable=unavailable, collectives=rows.frame())
    note = f"no entries in the dumps of ranks {ranklists.listed(empty)}" if empty else ""
    return replace(run, info={**run.info, "note": note})


def _load(source: Source) -> Mapping[str, Any]:
    with source.open() as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise InputError(f"{source.name} is larger than {MAX_FILE >> 20} MiB: no flight-recorder dump is")
    found = read_pickle(data, source.name) if data[:1] == b"\x80" else _json(data, source.name)
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), list):
        raise InputError(f"{source.name} is no flight-recorder dump: it holds no list of entries")
    if "entries" not in found and "pg_config" not in found:
        raise InputError(f"{source.name} is no flight-recorder dump: it holds neither entries nor pg_config")
    return found


def _json(data: bytes, name: str) -> Any:
    too_many = data.count(b"{") + data.count(b"[") > MAX_JSON_CONTAINERS
    if too_many or data.count(b",") > MAX_JSON_VALUES:
        raise InputError(f"{name} holds more than can be true of a dump")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"{name} is cut off or no JSON: {error}") from error


def _rank(source: Source, dump: Mapping[str, Any]) -> int:
    for key in ("rank", "global_rank"):
        told = count(dump.get(key))
        if told is not None:
            return told
    found = _RANK.search(_ENDINGS.sub("", source.base))
    if found is None:
        raise InputError(f"{source.name} does not say its rank: let file names end in the rank, as dump_12 does")
    return int(found.group(1))


def _host(dump: Mapping[str, Any]) -> str:
    told = (dump.get(key) for key in ("host", "host_name", "hostname"))
    return next((host[:MAX_NAME] for host in told if isinstance(host, str) and host), "")


def _with_nodes(infos: Sequence[RankInfo]) -> list[RankInfo]:
    hosts = {host: number for number, host in enumerate(dict.fromkeys(info.host for info in infos))}
    return [replace(info, node=hosts[info.host]) for info in infos]


def _twice(rank: int, first: Source, second: Source, sources: Sequence[Source]) -> str:
    if _folder(first.name) != _folder(second.name):
        folders = sorted({_folder(source.name) for source in sources})
        some = ", ".join(folders[:4]) + (", ..." if len(folders) > 4 else "")
        return f"dumps of {len(folders)} jobs, rank {rank} is in several of them: name one of {some}"
    return f"rank {rank} comes twice ({first.base} and {second.base}): name the dumps of one job only"


def _folder(name: str) -> str:
    cut = max(name.rfind("/"), name.rfind("!"))
    return name[:cut] if cut > 0 else "."
