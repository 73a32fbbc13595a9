"""Single values of metrics, laid out as the sampled tables: what all importers of metrics end in.

A reading is a number at a time, of a column of a sampled table, of a device of a host. Values stay as the source has
them but for the unit; counters stay cumulative. Several sources of one column are ranked; parts of one are added up.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import run_of
from starprof.importers.logs.stamps import UTC_STAMPS
from starprof.model.columns import Kind, Type, row
from starprof.model.events import XID
from starprof.model.schema import BY_NAME
from starprof.model.tables.job import EVENT, NODE

if TYPE_CHECKING:
    from starprof.importers.source import Source
    from starprof.model.rundata import RunData

MAX_VALUES = 40_000_000
MAX_SERIES = 200_000
DICTIONARIES = {"gpu_sample": "gpu", "nic_sample": "nic", "disk_sample": "disk"}
"""Sampled tables whose devices have a table of their own; there the key is a number of ours."""

XID_COLUMN = "xid"
"""No column of a table: the last XID that a GPU had; its changes are events."""

_KEYS = {"gpu_sample": "gpu", "nic_sample": "nic", "disk_sample": "disk", "cpu_sample": "cpu"}
_MOST = 2.0**62
_DCGM_BLANKS = ((0x7FFFFFF0, 0x7FFFFFFF), (2.0**47, 2.0**47 + 16))
"""Of 32-bit integers and of floats (dcgm_structs.h); those of 64 bits are beyond `_MOST`."""
MAX_TEXT = 200

Values = NDArray[np.float64]
Times = NDArray[np.int64]


class Target(NamedTuple):
    """Where a metric goes.

    Attributes:
        factor: what a value is multiplied by to be in the column's unit.
        part: of several metrics that add up to the column, which one this is.
        rank: of several metrics that tell the same, the lowest that is there counts.
        bit: not the value but this bit of the column: set where the value is not 0.
        grows: with `bit`: set where the value has grown since the sample before.
    """

    table: str
    column: str
    factor: float = 1.0
    part: str = ""
    rank: int = 0
    bit: int = 0
    grows: bool = False


class Series:
    """The readings of one column of one device from one metric."""

    __slots__ = ("_room", "times", "values")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.times = array("q")
        self.values = array("d")

    def put(self, time_ns: int, value: float) -> None:
        """Add one value; NaN says that the device was there and did not tell.

        Raises:
            InputError: there are more than can be held.
        """
        self._room.take_value()
        self.times.append(time_ns)
        self.values.append(value)


@dataclass(slots=True)
class Room:
    """How much more can be held of an input."""

    name: str
    values: int = MAX_VALUES
    series: int = MAX_SERIES

    def take_value(self) -> None:
        """Count a value; raises InputError when there is no room for it."""
        self.values -= 1
        if self.values < 0:
            raise InputError(f"{self.name} holds more than {MAX_VALUES} values: name fewer files")

    def take_series(self) -> None:
        """Count a series; raises InputError when there is no room for it."""
        self.series -= 1
        if self.series < 0:
            raise InputError(f"{self.name} holds more than {MAX_SERIES} series: name fewer files")


class Readings:
    """Collects readings; `run` lays them out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._series: dict[tuple[str, str, str], dict[Target, Series]] = defaultdict(dict)
        self._facts: dict[tuple[str, str, str], dict[str, object]] = defaultdict(dict)
        self._hosts: dict[str, str] = {}
        self._room = Room(name)
        self.ignored: set[str] = set()
        self.damaged = 0

    def series(self, host: str, device: str, target: Target) -> Series:
        """Where values of a metric of a device go; the same one each time.

        Raises:
            InputError: there are more series than can be held.
        """
        of_device = self._series[host, target.table, device]
        series = of_device.get(target)
        if series is None:
            self._room.take_series()
            series = of_device[target] = Series(self._room)
        return series

    def describe(self, host: str, table: str, device: str, **facts: object) -> None:
        """Note what a dictionary table says of a device; None and empty values say nothing."""
        known = self._facts[host, table, device]
        for name, value in facts.items():
            if value is not None and value != "":
                known[name] = value[:MAX_TEXT] if isinstance(value, str) else value

    def name_host(self, host: str, name: str) -> None:
        """Say the name of a host that was known by another one so far."""
        if len(self._hosts) < MAX_SERIES:
            self._hosts[host] = name

    def note_ignored(self, metric: str) -> None:
        """Count a metric that no table has a place for."""
        if len(self.ignored) < MAX_SERIES:
            self.ignored.add(metric)

    @property
    def uses_violations(self) -> bool:
        """Whether clock event reasons come from counters of time."""
        return any(target.grows for of_device in self._series.values() for target in of_device)

    def run(
        self,
        source_format: str,
        sources: Sequence[Source],
        clock: str,
        unavailable: Sequence[tuple[str, str]] = (),
    ) -> RunData:
        """All readings as a run without steps.

        Args:
            source_format: NAME of the importer.
            sources: what was read.
            clock: UTC_STAMPS, LOCAL_STAMPS or COUNTED.
            unavailable: (what, why) of what the source can't tell.

        Raises:
            InputError: nothing was read.
        """
        if not self._series:
            raise InputError(f"{self._name} holds no metric that starprof knows")
        nodes = {
            name: number
            for number, name in enumerate(sorted({self._host(h) for h, _, _ in self._series}, key=_by_number))
        }
        columns, numbers, xids = self._columns(nodes)
        samples = {table: pd.DataFrame(_concatenated(parts)) for table, parts in columns.items()}
        if "cpu_sample" in samples:
            samples["cpu_sample"] = _with_totals(samples["cpu_sample"])
        samples |= self._dictionaries(nodes, numbers)
        run = run_of(
            source_format,
            sources,
            unavailable=[("steps", "metrics hold no step times"), *unavailable],
            samples=samples,
            events=_events(xids),
            nodes=_nodes(nodes, samples, clock),
        )
        return _with_note(run, self._note())

    def _host(self, host: str) -> str:
        return self._hosts.get(host, host)

    def _columns(
        self, nodes: Mapping[str, int]
    ) -> tuple[dict[str, list[_Cells]], dict[tuple[int, str, str], int], list[tuple[int, int, int, str]]]:
        """Columns of every device by table, number by (node, table, device), and changes of XIDs."""
        found: dict[str, list[_Cells]] = defaultdict(list)
        numbers: dict[tuple[int, str, str], int] = {}
        taken: dict[tuple[int, str], set[int]] = defaultdict(set)
        xids: list[tuple[int, int, int, str]] = []
        for host, table, device in sorted(self._series, key=lambda k: (k[0], k[1], _by_number(k[2]))):
            node = nodes[self._host(host)]
            number = numbers.get((node, table, device))
            if number is None:
                wanted = self._wanted(host, table, device)
                used = taken[node, table]
                number = wanted if wanted is not None and wanted not in used else max(used, default=-1) + 1
                used.add(number)
                numbers[node, table, device] = number
            times, columns = _joined(self._series[host, table, device])
            xid = columns.pop(XID_COLUMN, None)
            if xid is not None:
                xids += [(node, int(t), int(x), device) for t, x in _changes(times, xid)]
            if columns:
                found[table].append(_cells(table, node, number, times, columns))
        return found, numbers, xids

    def _wanted(self, host: str, table: str, device: str) -> int | None:
        index = self._facts.get((host, table, device), {}).get("nvml_index", device)
        text = str(index)
        return int(text) if len(text) < 10 and text.removeprefix("-").isdecimal() else None

    def _dictionaries(
        self, nodes: Mapping[str, int], numbers: Mapping[tuple[int, str, str], int]
    ) -> dict[str, pd.DataFrame]:
        rows: dict[str, list[list[object]]] = defaultdict(list)
        done: set[tuple[int, str, str]] = set()
        for (host, table, device), facts in self._facts.items():
            dictionary = DICTIONARIES.get(table)
            where = (nodes.get(self._host(host), -1), table, device)
            if dictionary is None or where not in numbers or where in done:
                continue
            done.add(where)
            key = {"node": where[0], dictionary: numbers[where]}
            rows[dictionary].append(row(BY_NAME[dictionary], **key, **facts))
        return {name: pd.DataFrame(cells, columns=list(BY_NAME[name].names)) for name, cells in rows.items()}

    def _note(self) -> str:
        words = []
        if self.ignored:
            some = ", ".join(sorted(self.ignored)[:3]) + (", ..." if len(self.ignored) > 3 else "")
            words.append(f"{len(self.ignored)} unknown metrics ignored ({some})")
        if self.damaged:
            words.append(f"{self.damaged} lines could not be read")
        return "; ".join(words)


def cleaned(values: Values, *, dcgm: bool) -> Values:
    """Values with infinities and sizes beyond an integer column as NaN; so are DCGM's codes for "no value"."""
    clean = np.where(np.abs(values) < _MOST, values, np.nan)
    for low, high in _DCGM_BLANKS if dcgm else ():
        clean = np.where((clean >= low) & (clean <= high), np.nan, clean)
    return clean


def _joined(of_device: Mapping[Target, Series]) -> tuple[Times, dict[str, Values]]:
    """All series of a device on one axis of times: later values of the same moment win."""
    times = np.unique(np.concatenate([np.frombuffer(s.times, np.int64) for s in of_device.values()]))
    best: dict[str, int] = {}
    for target in of_device:
        best[target.column] = min(best.get(target.column, target.rank), target.rank)
    columns: dict[str, Values] = {}
    for target, series in of_device.items():
        if target.rank != best[target.column]:
            continue
        values = np.full(len(times), np.nan)
        values[np.searchsorted(times, np.frombuffer(series.times, np.int64))] = np.frombuffer(series.values, np.float64)
        values = cleaned(values, dcgm=target.table == "gpu_sample")
        values = _as_bit(values, target) if target.bit else values * target.factor
        there = columns.get(target.column)
        columns[target.column] = values if there is None else there + values
    return times, columns


def _as_bit(values: Values, target: Target) -> Values:
    """The bit where the value is not 0, or has grown; NaN where that is not known."""
    change = np.diff(values, prepend=np.nan) if target.grows else values
    return np.where(np.isnan(change), np.nan, np.where(change > 0, float(target.bit), 0.0))


_Cells = dict[str, NDArray[np.int64] | NDArray[np.float64]]


def _cells(table: str, node: int, number: int, times: Times, columns: Mapping[str, Values]) -> _Cells:
    """All columns of a table for one device."""
    key = _KEYS.get(table)
    cells: _Cells = {}
    for column in BY_NAME[table].columns:
        if column.name == "mono_ns":
            cells[column.name] = times
        elif column.name in ("node", key):
            cells[column.name] = np.full(len(times), node if column.name == "node" else number, np.int64)
        elif column.name not in columns:
            cells[column.name] = np.full(len(times), np.nan)
        else:
            values = columns[column.name]
            cells[column.name] = np.rint(values) if column.type is Type.INT else values
    return cells


def _concatenated(parts: Sequence[_Cells]) -> _Cells:
    """Rows of all devices."""
    return {name: np.concatenate([cells[name] for cells in parts]) for name in parts[0]}


def _with_totals(cpus: pd.DataFrame) -> pd.DataFrame:
    """The rows of all CPUs, and those of whole nodes: NULL where a CPU is missing."""
    counters = [c.name for c in BY_NAME["cpu_sample"].columns if c.kind is Kind.COUNTER]
    grouped = cpus.groupby(["node", "mono_ns"])[counters]
    there = grouped.count()
    complete = there == there.groupby("node").transform("max")
    totals = grouped.sum().where(complete & (there > 0)).reset_index().assign(cpu=-1, freq_khz=np.nan)
    return pd.concat([cpus, totals[cpus.columns]], ignore_index=True)


def _changes(times: Times, xid: Values) -> list[tuple[np.int64, np.float64]]:
    """When the last XID changed to another one, or was there from the start."""
    seen = ~np.isnan(xid)
    times, xid = times[seen], xid[seen]
    changed = (np.diff(xid, prepend=0.0) != 0) & (xid > 0)
    return list(zip(times[changed][:100], xid[changed][:100], strict=True))


def _events(xids: Sequence[tuple[int, int, int, str]]) -> pd.DataFrame | None:
    if not xids:
        return None
    rows = [
        row(EVENT, node=node, mono_ns=time, kind=XID, value=xid, detail=f"GPU {device}")
        for node, time, xid, device in xids
    ]
    return pd.DataFrame(rows, columns=list(EVENT.names))


def _nodes(nodes: Mapping[str, int], samples: Mapping[str, pd.DataFrame], clock: str) -> pd.DataFrame:
    """One row a host: its first sample ties the file's clock to the wall clock, where the zone is known."""
    first: dict[int, int] = {}
    cpus: dict[int, int] = {}
    for name, frame in samples.items():
        if "mono_ns" not in frame:
            continue
        for node, time in frame.groupby("node")["mono_ns"].min().items():
            first[int(str(node))] = min(first.get(int(str(node)), int(time)), int(time))
        if name == "cpu_sample":
            cpus = {int(str(n)): int(c) for n, c in frame[frame["cpu"] >= 0].groupby("node")["cpu"].nunique().items()}
    rows = [
        row(
            NODE,
            node=number,
            host=host,
            cpus=cpus.get(number),
            mono_ns=first.get(number),
            unix_ns=first.get(number) if clock == UTC_STAMPS else None,
            detail=json.dumps({"time_stamps": clock}),
        )
        for host, number in nodes.items()
    ]
    return pd.DataFrame(rows, columns=list(NODE.names))


def _with_note(run: RunData, note: str) -> RunData:
    return replace(run, info={**run.info, "note": note})


def _by_number(text: str) -> tuple[object, ...]:
    """Order in which n2 comes before n10."""
    return tuple(
        (0, int(part[:18]), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    )
