"""What a running job does at this moment, from outside: steps from the ranks' rings, processor time from /proc."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starprof.collectors.procfile import read_once
from starprof.collectors.procstat import parse_stat
from starprof.control.actuators import orders
from starprof.control.actuators.job import JobHere, Member
from starprof.errors import SpoolError
from starprof.model.columns import INT_NULL
from starprof.model.tables.job import STEP
from starprof.spool.ringreader import RingReader

_STEP = struct.Struct(STEP.struct_format)
_RANK, _START, _DUR, _BLOCKED, _DATA, _SAMPLES = (
    STEP.names.index(name) for name in ("rank", "start_mono_ns", "dur_us", "blocked_us", "data_wait_us", "samples")
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen over some time.

    Attributes:
        seconds: how long.
        steps: of each rank that has made any.
        iteration_s: mean length of a step of each rank.
        own_s: the same without waiting for others.
        data_wait_s: mean wait for batches of each rank.
        samples: mean of a step of each rank; 0 where they are not known.
        cores: that its processes have used, of each rank with its helpers.
        helper_cores: the same of its helpers alone.
        bytes_per_s: sent and received together, of each rank that reports it.
    """

    seconds: float
    steps: dict[int, int]
    iteration_s: dict[int, float]
    own_s: dict[int, float]
    data_wait_s: dict[int, float]
    samples: dict[int, float]
    cores: dict[int, float]
    helper_cores: dict[int, float]
    bytes_per_s: dict[int, float]

    @property
    def mean_iteration_s(self) -> float | None:
        """Over ranks; None when none has made a step."""
        return sum(self.iteration_s.values()) / len(self.iteration_s) if self.iteration_s else None

    @property
    def all_cores(self) -> float:
        """Of the job."""
        return sum(self.cores.values())

    @property
    def all_bytes_per_s(self) -> float:
        """Of the job."""
        return sum(self.bytes_per_s.values())


class Watch:
    """Looks at a job from `begin` to `end`."""

    def __init__(self, job: JobHere) -> None:
        self._job = job
        self._rings: dict[Path, tuple[RingReader, int]] = {}
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self.close()
        self._members = self._job.members()
        self._began_s = time.monotonic()
        self._ticks = _ticks(self._members)
        self._traffic = reports(self._job, self._members)
        for path in sorted(self._job.spool.rings.glob("*.ring")):
            try:
                reader = RingReader(path)
            except SpoolError:
                continue
            self._rings[path] = reader, reader.written

    def steps(self) -> dict[int, int]:
        """Steps that each rank has made since."""
        return {rank: len(rows) for rank, rows in self._rows().items()}

    def end(self) -> Seen:
        """What was seen until now."""
        seconds = max(time.monotonic() - self._began_s, 1e-9)
        rows = self._rows()
        now = _ticks(self._members)
        cores: dict[int, float] = {}
        helpers: dict[int, float] = {}
        for member in self._members:
            if member in now and member in self._ticks:
                used = (now[member] - self._ticks[member]) / _TICKS_PER_S / seconds
                cores[member.rank] = cores.get(member.rank, 0.0) + used
                if member.helper:
                    helpers[member.rank] = helpers.get(member.rank, 0.0) + used
        return Seen(
            seconds,
            {rank: len(of) for rank, of in rows.items()},
            {rank: _mean_s([r[_DUR] for r in of]) for rank, of in rows.items()},
            {rank: _mean_s([r[_DUR] - max(r[_BLOCKED], 0) for r in of]) for rank, of in rows.items()},
            {rank: _mean_s([max(r[_DATA], 0) for r in of]) for rank, of in rows.items()},
            {rank: _mean([max(r[_SAMPLES], 0) for r in of if r[_SAMPLES] != INT_NULL]) for rank, of in rows.items()},
            cores,
            helpers,
            self._rates(),
        )

    def _rows(self) -> dict[int, list[tuple[int, ...]]]:
        """Whole steps since the beginning, by rank."""
        began_ns = round(self._began_s * 1e9)
        found: dict[int, list[tuple[int, ...]]] = {}
        for reader, first in self._rings.values():
            for payload in reader.read(first).steps:
                row = _STEP.unpack(payload)
                if row[_START] >= began_ns:
                    found.setdefault(row[_RANK], []).append(row)
        return found

    def _rates(self) -> dict[int, float]:
        now = reports(self._job, self._members)
        rates = {}
        for rank, (mono_ns, count) in now.items():
            then = self._traffic.get(rank)
            if then is not None and mono_ns > then[0]:
                rates[rank] = max(count - then[1], 0) / (mono_ns - then[0]) * 1e9
        return rates

    def close(self) -> None:
        """Let go of the rings."""
        for reader, _ in self._rings.values():
            reader.close()
        self._rings.clear()


def reports(job: JobHere, members: Sequence[Member]) -> dict[int, tuple[int, int]]:
    """Time of each rank's newest report, and the bytes that it tells."""
    found = {}
    for member in members:
        told = None if member.helper else report(job, member)
        if told is not None:
            found[member.rank] = int(told["mono_ns"]), int(told["sent_bytes"]) + int(told["received_bytes"])
    return found


def report(job: JobHere, member: Member) -> dict[str, Any] | None:
    """A rank's newest report; None where this very process has written none."""
    try:
        told = json.loads(orders.report_path(job.spool.root, member.pid).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(told, dict) or told.get("start") != member.start:
        return None
    return told


HEARD_S = 10.0


def heard(job: JobHere) -> bool:
    """Wait until every rank that takes orders has heard the newest ones, a few seconds at most; whether it has."""
    path = orders.path_in(job.spool.root)
    serial, ranks = _ordered(path)
    deadline_s = time.monotonic() + HEARD_S
    while True:
        told = [report(job, member) for member in job.members() if not member.helper and member.rank in ranks]
        if all(one is not None and int(one["serial"]) >= serial for one in told):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)


def _ordered(path: Path) -> tuple[int, set[int]]:
    try:
        found = orders.read_orders(path)
    except (ValueError, KeyError, TypeError):
        return 0, set()
    return found.serial, set(found.ranks)


def _ticks(members: Sequence[Member]) -> dict[Member, int]:
    found = {}
    for member in members:
        try:
            stat = parse_stat(read_once(f"/proc/{member.pid}/stat"))
        except (OSError, ValueError, IndexError):
            continue
        if stat.start_ticks == member.start:
            found[member] = stat.cpu_ticks
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _mean_s(values_us: Sequence[int]) -> float:
    return _mean(values_us) / 1e6
