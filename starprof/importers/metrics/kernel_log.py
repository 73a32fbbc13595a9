"""XIDs from kernel logs: what `dmesg` and `journalctl -k` print, and files of syslog.

A line tells the GPU by its PCI address and often the process. Syslog's lines tell the host; dmesg's do not. Times are
kept where they have a date with the year; seconds since the boot are no wall clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.logs.lines import log_lines
from starprof.importers.logs.stamps import COUNTED, LOCAL_STAMPS, UTC_STAMPS, parse_stamp
from starprof.importers.source import Source
from starprof.model.columns import row
from starprof.model.events import XID
from starprof.model.rundata import RunData
from starprof.model.tables.job import EVENT, NODE
from starprof.model.xids import XidLine, detail_of, line_of

NAME = "kernel-log"

LEAST_LINES = 2
MAX_XIDS = 2_000
MAX_NAME = 100
_XID = "NVRM: Xid"
_KERNEL = re.compile(rb"(?m)^(?:<\d+>)?\[\s*\d+\.\d{6}\] |\bkernel(?:\[\d+\])?: ")
_HOST = re.compile(r"^(?:\S+\s+\d+ \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (\S+) kernel")
_DATED = re.compile(r"^\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)")


@dataclass(frozen=True, slots=True)
class _Found:
    host: str
    time_ns: int | None
    clock: str
    line: XidLine


def recognises(source: Source) -> bool:
    """A text that looks like a kernel's log, or that has a line of NVIDIA's driver with an XID."""
    head = source.head
    if b"\0" in head or not head.strip():
        return False
    return len(_KERNEL.findall(head[:8192])) >= LEAST_LINES or _XID.encode() in head


def read(sources: Sequence[Source]) -> RunData:
    """XIDs of all files; a run without steps and samples.

    Raises:
        InputError: a file can't be read, or has more XIDs than can be true.
    """
    found = [one for source in sources for one in _xids(source)]
    if len(found) > MAX_XIDS:
        raise InputError(f"{sources[0].name}: more than {MAX_XIDS} XIDs: name the part of the log that matters")
    hosts = {host: node for node, host in enumerate(sorted({one.host for one in found}))}
    kinds = {one.clock for one in found}
    clock = kinds.pop() if len(kinds) == 1 else COUNTED
    events = [
        row(
            EVENT,
            node=hosts[one.host],
            mono_ns=one.time_ns if clock != COUNTED else None,
            kind=XID,
            value=one.line.number,
            detail=detail_of(one.line),
        )
        for one in found
    ]
    nodes = [row(NODE, node=n, host=host, detail=json.dumps({"time_stamps": clock})) for host, n in hosts.items()]
    unavailable = [("steps", "a kernel log holds no step times")]
    if not found:
        unavailable.append(("XIDs", "the kernel log holds none"))
    return run_of(
        NAME,
        sources,
        unavailable=unavailable,
        events=pd.DataFrame(events, columns=list(EVENT.names)),
        nodes=pd.DataFrame(nodes, columns=list(NODE.names)),
    )


def _xids(source: Source) -> Iterator[_Found]:
    for line in log_lines(source):
        if _XID not in line:
            continue
        told = line_of(line)
        if told is None:
            continue
        host = _HOST.match(line)
        stamp = _stamp(line)
        yield _Found(
            host[1][:MAX_NAME] if host is not None else "",
            stamp[0] if stamp is not None else None,
            stamp[1] if stamp is not None else COUNTED,
            told,
        )


def _stamp(line: str) -> tuple[int, str] | None:
    found = _DATED.match(line)
    told = parse_stamp(found[1].replace(",", ".")) if found is not None else None
    return told if told is not None and told[1] in (UTC_STAMPS, LOCAL_STAMPS) else None
