"""GPU samples from `nvidia-smi --query-gpu=... --format=csv`, with or without header and units.

Columns are told by the header; without one only by what their values can't be confused with (UUID, PCI id, product,
a single column of watts, of percent, ...), the rest is left out. `starprof.importers.metrics.units` knows the units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from starprof.errors import InputError
from starprof.importers.logs.stamps import COUNTED, LOCAL_STAMPS, UTC_STAMPS, parse_stamp
from starprof.importers.metrics.readings import MAX_SERIES, Readings, Series, Target
from starprof.importers.metrics.units import number
from starprof.importers.source import Source
from starprof.model.rundata import RunData

NAME = "nvidia-smi"

PERIOD_NS = 1_000_000_000
"""Distance of samples without time stamps: the tools' own default."""

_TABLE = "gpu_sample"
_BITS = {
    "gpu_idle": 0x01,
    "applications_clocks_setting": 0x02,
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""nvml.h, nvmlClocksEventReason*"""


def _value(column: str, *, unit: str = "", part: str = "", rank: int = 0) -> tuple[Target, str]:
    return Target(_TABLE, column, part=part, rank=rank), unit


_COLUMNS: dict[str, tuple[Target, str]] = {
    "utilization.gpu": _value("util_pct"),
    "utilization.memory": _value("memory_util_pct"),
    "clocks.sm": _value("sm_clock_mhz"),
    "clocks.current.sm": _value("sm_clock_mhz"),
    "clocks.gr": _value("sm_clock_mhz", rank=1),
    "clocks.current.graphics": _value("sm_clock_mhz", rank=1),
    "clocks.mem": _value("memory_clock_mhz"),
    "clocks.current.memory": _value("memory_clock_mhz"),
    "temperature.gpu": _value("temperature_c"),
    "power.draw": _value("power_w"),
    "power.draw.average": _value("power_w", rank=1),
    "power.draw.instant": _value("power_w", rank=2),
    "enforced.power.limit": _value("power_limit_w"),
    "power.limit": _value("power_limit_w", rank=1),
    "memory.used": _value("memory_used_bytes", unit="MiB"),
    "memory.total": _value("memory_total_bytes", unit="MiB"),
    "pcie.link.gen.current": _value("pcie_gen"),
    "pcie.link.gen.gpucurrent": _value("pcie_gen", rank=1),
    "pcie.link.width.current": _value("pcie_width"),
    "ecc.errors.corrected.volatile.total": _value("ecc_corrected"),
    "ecc.errors.corrected.aggregate.total": _value("ecc_corrected", rank=1),
    "ecc.errors.uncorrected.volatile.total": _value("ecc_uncorrected"),
    "ecc.errors.uncorrected.aggregate.total": _value("ecc_uncorrected", rank=1),
    "remapped_rows.correctable": _value("remapped_rows", part="correctable"),
    "remapped_rows.uncorrectable": _value("remapped_rows", part="uncorrectable"),
    "remapped_rows.pending": _value("remap_pending"),
    **{f"{old}.active": _value("clock_event_reasons") for old in ("clocks_event_reasons", "clocks_throttle_reasons")},
    **{
        f"{old}.{name}": (Target(_TABLE, "clock_event_reasons", part=name, rank=1, bit=bit), "")
        for old in ("clocks_event_reasons", "clocks_throttle_reasons")
        for name, bit in _BITS.items()
    },
}
_FACTS = {
    "index": "nvml_index",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "name": "name",
    "gpu_name": "name",
    "pci.bus_id": "pci",
    "gpu_bus_id": "pci",
    "driver_version": "driver",
    "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.width.max": "pcie_width_max",
}
_HOST_COLUMNS = {"hostname", "host", "node"}
_HEADER = re.compile(r"^[a-z_][\w.]*(\s*\[[^\]]*\])?$")
_CELLS = re.compile(
    r"^(GPU-[0-9a-fA-F-]{8,}|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]|\d[\d.]* (%|MiB|W|MHz))$"
)


_Device = tuple[str, list[tuple[int, str, Series]]]
"""A GPU, and per value of a line its position, unit, and where it goes."""


@dataclass(slots=True)
class _Layout:
    """What each cell of a line is; positions by meaning.

    Attributes:
        known: GPUs by the cells that tell which one and what it is.
    """

    width: int
    values: list[tuple[int, Target, str]] = field(default_factory=list)
    facts: dict[str, int] = field(default_factory=dict)
    stamp: int | None = None
    host: int | None = None
    ignored: list[str] = field(default_factory=list)
    known: dict[tuple[str, ...], _Device] = field(default_factory=dict)

    @property
    def told(self) -> list[int]:
        """Positions of what says which GPU a line is about."""
        return [*self.facts.values(), *([] if self.host is None else [self.host])]

    @property
    def names_gpu(self) -> bool:
        return any(fact in self.facts for fact in ("nvml_index", "uuid", "pci"))


def recognises(source: Source) -> bool:
    """A header of `--query-gpu` names, or lines of cells that only nvidia-smi writes."""
    lines = [line for line in source.head[:8192].decode("utf-8", "replace").splitlines() if line.strip()][:3]
    if not lines:
        return False
    cells = _cells(lines[0])
    layout = _from_header(cells)
    if layout is not None:
        return bool(layout.values) and len(cells) > 1
    return len(cells) > 1 and sum(bool(_CELLS.match(c)) for c in cells) >= 2


def read(sources: Sequence[Source]) -> RunData:
    """Samples of all files, each of one host unless a column names it.

    Raises:
        InputError: a file holds no GPU sample, or its GPUs can't be told apart.
    """
    readings = Readings(sources[0].name)
    clocks: set[str] = set()
    missing: dict[str, str] = {}
    for source in sources:
        clocks.add(_read_one(source, host_of(source) if len(sources) > 1 else "", readings, missing))
    if len(clocks) > 1:
        raise InputError(f"{sources[0].name}: the files have different kinds of time stamps; analyze them one by one")
    return readings.run(NAME, sources, clocks.pop(), list(missing.items()))


def host_of(source: Source) -> str:
    """A file's name without suffixes: hosts that no column names are told apart by it."""
    return PurePosixPath(source.base).name.split(".")[0][:100]


def _read_one(source: Source, host: str, readings: Readings, missing: dict[str, str]) -> str:
    """Read a file; returns what its times are."""
    layout: _Layout | None = None
    turns: dict[str, int] = {}
    clock = COUNTED
    last_ns = 0
    for cells in _rows(source):
        header = _from_header(cells)
        if header is not None:
            layout = _usable(header, source, readings)
            continue
        if layout is None:
            layout = _usable(_from_values(cells, source, missing), source, readings)
        if len(cells) != layout.width:
            readings.damaged += 1
            continue
        device, values = _device(layout, cells, host, readings)
        if layout.stamp is None:
            time_ns = turns[device] = turns.get(device, -PERIOD_NS) + PERIOD_NS
            missing["sample times"] = "no time stamps: samples are taken to be 1 s apart"
        else:
            stamp = parse_stamp(cells[layout.stamp])
            if stamp is None:
                readings.damaged += 1
                continue
            time_ns, clock = stamp
            if not layout.names_gpu and time_ns <= last_ns:
                raise InputError(f"{source.name}: GPUs can't be told apart; add index or uuid to --query-gpu")
            last_ns = time_ns
        for position, unit, series in values:
            series.put(time_ns, number(cells[position], unit))
    if clock == LOCAL_STAMPS:
        missing["time zone"] = "the time stamps name no zone: they are read as if they were UTC"
    return clock if clock in (COUNTED, LOCAL_STAMPS) else UTC_STAMPS


def _usable(layout: _Layout, source: Source, readings: Readings) -> _Layout:
    if not layout.values:
        raise InputError(f"{source.name} has no column that starprof knows; see nvidia-smi --help-query-gpu")
    if not layout.names_gpu and layout.stamp is None:
        raise InputError(f"{source.name}: GPUs can't be told apart; add timestamp and index to --query-gpu")
    for name in layout.ignored:
        readings.note_ignored(name)
    return layout


def _device(layout: _Layout, cells: Sequence[str], host: str, readings: Readings) -> _Device:
    """The GPU of a line, and where each value of the line goes; what else the line says of it is noted."""
    key = tuple(cells[p] for p in layout.told)
    if key in layout.known:
        return layout.known[key]
    facts: dict[str, object] = {}
    for fact, position in layout.facts.items():
        text = cells[position]
        value = number(text) if fact in {"nvml_index", "pcie_gen_max", "pcie_width_max"} else text
        if isinstance(value, float):
            facts[fact] = int(value) if math.isfinite(value) and abs(value) < 2**31 else None
        else:
            facts[fact] = None if text.startswith("[") or text == "N/A" else text
    index = facts.get("nvml_index")
    device = str(index if index is not None else facts.get("uuid") or facts.get("pci") or "0")
    where = cells[layout.host][:100] if layout.host is not None else host
    readings.describe(where, _TABLE, device, **facts)
    values = [(position, unit, readings.series(where, device, target)) for position, target, unit in layout.values]
    if len(layout.known) >= MAX_SERIES:
        layout.known.clear()
    layout.known[key] = (f"{where}/{device}", values)
    return layout.known[key]


def _rows(source: Source) -> Iterator[list[str]]:
    for line in source.text_lines(max_line_bytes=1 << 16):
        if line.strip():
            yield _cells(line)


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.lstrip("\ufeff").split(",")]


def _from_header(cells: Sequence[str]) -> _Layout | None:
    """The layout that a header tells; None when the line is none."""
    if not cells[0][:1].islower() or not all(_HEADER.match(cell) for cell in cells):
        return None
    layout = _Layout(len(cells))
    for position, cell in enumerate(cells):
        name, _, unit = cell.partition("[")
        name = name.strip()
        if name == "timestamp":
            layout.stamp = position
        elif name in _HOST_COLUMNS:
            layout.host = position
        elif name in _FACTS:
            layout.facts[_FACTS[name]] = position
        elif name in _COLUMNS:
            target, usual = _COLUMNS[name]
            layout.values.append((position, target, unit.rstrip("] ") or usual))
        else:
            layout.ignored.append(name)
    known = layout.values or layout.facts or layout.stamp is not None
    return layout if known else None


def _from_values(cells: Sequence[str], source: Source, missing: dict[str, str]) -> _Layout:
    """The layout as far as the values of a line tell it: only what can't be anything else."""
    layout = _Layout(len(cells))
    units: dict[str, list[int]] = {}
    for position, cell in enumerate(cells):
        if parse_stamp(cell) is not None and layout.stamp is None:
            layout.stamp = position
        elif cell.startswith("GPU-"):
            layout.facts["uuid"] = position
        elif re.match(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]$", cell):
            layout.facts["pci"] = position
        elif re.match(r"(NVIDIA|Tesla|Quadro|GeForce|GRID|[AHBLVP]\d{1,3}\b)", cell):
            layout.facts["name"] = position
        elif cell.startswith("0x"):
            units.setdefault("0x", []).append(position)
        elif found := re.match(r"[\d.]+ (%|MiB|W|MHz)$", cell):
            units.setdefault(found[1], []).append(position)
    meanings = {
        "%": "utilization.gpu",
        "W": "power.draw",
        "MHz": "clocks.sm",
        "MiB": "memory.used",
        "0x": "clocks_event_reasons.active",
    }
    taken = []
    for unit, positions in units.items():
        if len(positions) == 1:
            target, usual = _COLUMNS[meanings[unit]]
            layout.values.append((positions[0], target, usual))
            taken.append(meanings[unit])
    if not layout.values:
        raise InputError(f"{source.name} has no header, and its columns can't be told without one: leave out noheader")
    missing["columns"] = f"{source.base} has no header: only {', '.join(taken)} could be told, from their units"
    return layout
