"""GPU samples from the tables that `nvidia-smi dmon` and `dcgmi dmon` print.

Both repeat a header that names the columns in short; `nvidia-smi dmon` has a line of units below it, and dates and
times with `-o DT`. `dcgmi dmon` has neither: its units are DCGM's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starprof.errors import InputError
from starprof.importers.logs.stamps import COUNTED, LOCAL_STAMPS, parse_stamp
from starprof.importers.metrics.nvidia_smi import PERIOD_NS, host_of
from starprof.importers.metrics.readings import XID_COLUMN, Readings, Target
from starprof.importers.metrics.units import number
from starprof.importers.source import Source
from starprof.model.rundata import RunData

NAME = "dmon"

_DAY_NS = 86_400_000_000_000
_POWER_BIT, _THERMAL_BIT = 0x04, 0x20


def _gpu(column: str, *, factor: float = 1.0, part: str = "", rank: int = 0) -> Target:
    return Target("gpu_sample", column, factor=factor, part=part, rank=rank)


def _reason(bit: int, *, grows: bool) -> Target:
    return Target("gpu_sample", "clock_event_reasons", part=str(bit), rank=1, bit=bit, grows=grows)


_SMI: dict[str, Target] = {
    "pwr": _gpu("power_w"),
    "gtemp": _gpu("temperature_c"),
    "temp": _gpu("temperature_c", rank=1),
    "sm": _gpu("util_pct"),
    "mem": _gpu("memory_util_pct"),
    "mclk": _gpu("memory_clock_mhz"),
    "pclk": _gpu("sm_clock_mhz"),
    "fb": _gpu("memory_used_bytes", factor=2.0**20),
    "sbecc": _gpu("ecc_corrected"),
    "dbecc": _gpu("ecc_uncorrected"),
    "rxpci": _gpu("pcie_rx_bytes_per_s", factor=1e6),
    "txpci": _gpu("pcie_tx_bytes_per_s", factor=1e6),
    "pviol": _reason(_POWER_BIT, grows=False),
    "tviol": _reason(_THERMAL_BIT, grows=False),
}
_DCGM: dict[str, Target] = {
    "GPUTL": _gpu("util_pct"),
    "GRACT": _gpu("util_pct", factor=100.0, rank=1),
    "MCUTL": _gpu("memory_util_pct"),
    "SMCLK": _gpu("sm_clock_mhz"),
    "MMCLK": _gpu("memory_clock_mhz"),
    "TMPTR": _gpu("temperature_c"),
    "POWER": _gpu("power_w"),
    "PMLMT": _gpu("power_limit_w"),
    "DVCCTR": _gpu("clock_event_reasons"),
    "PVIOL": _reason(_POWER_BIT, grows=True),
    "TVIOL": _reason(_THERMAL_BIT, grows=True),
    "FBUSD": _gpu("memory_used_bytes", factor=2.0**20),
    "FBTTL": _gpu("memory_total_bytes", factor=2.0**20),
    "PCILG": _gpu("pcie_gen"),
    "PCILW": _gpu("pcie_width"),
    "PCIRX": _gpu("pcie_rx_bytes_per_s"),
    "PCITX": _gpu("pcie_tx_bytes_per_s"),
    "ESVTL": _gpu("ecc_corrected"),
    "EDVTL": _gpu("ecc_uncorrected"),
    "XIDER": _gpu(XID_COLUMN),
}
_SMI_HEADER = re.compile(r"#\s*(Date\s+)?(Time\s+)?gpu\b", re.IGNORECASE)
_DCGM_HEADER = re.compile(r"#\s*Entity\s+[A-Z0-9]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Columns of the last header."""

    dcgm: bool
    names: tuple[str, ...]

    @property
    def before(self) -> int:
        """Cells of a line before its values."""
        return 2 if self.dcgm else self.names.index("gpu") + 1


def recognises(source: Source) -> bool:
    """A header line of either tool near the start."""
    lines = source.head[:8192].decode("utf-8", "replace").splitlines()[:20]
    return any(_SMI_HEADER.match(line.strip()) or _DCGM_HEADER.match(line.strip()) for line in lines)


def read(sources: Sequence[Source]) -> RunData:
    """Samples of all files, each of one host.

    Raises:
        InputError: a file holds no GPU sample.
    """
    readings = Readings(sources[0].name)
    clocks: set[str] = set()
    missing: dict[str, str] = {}
    for source in sources:
        reader = _Reader(source, host_of(source) if len(sources) > 1 else "", readings)
        reader.read()
        clocks.add(reader.clock)
        missing.update(reader.missing())
    if len(clocks) > 1:
        raise InputError(f"{sources[0].name}: the files have different kinds of time stamps; analyze them one by one")
    return readings.run(NAME, sources, clocks.pop(), list(missing.items()))


class _Reader:
    """Reads one file."""

    def __init__(self, source: Source, host: str, readings: Readings) -> None:
        self.clock = COUNTED
        self._source = source
        self._host = host
        self._readings = readings
        self._turns: dict[str, int] = {}
        self._days = 0
        self._last_time = ""
        self._dcgm = False

    def read(self) -> None:
        layout: _Layout | None = None
        for line in self._source.text_lines(max_line_bytes=1 << 16):
            cells = line.replace(",", " ").split()
            header = _header(line, cells)
            if header is not None:
                layout = header
                self._dcgm |= layout.dcgm
                known = _DCGM if layout.dcgm else _SMI
                for name in layout.names[layout.before if not layout.dcgm else 0 :]:
                    if name not in known:
                        self._readings.note_ignored(name)
            elif cells and layout is not None and not line.lstrip().startswith("#"):
                self._row(layout, cells)

    def missing(self) -> dict[str, str]:
        """What the file can't tell."""
        if self.clock == LOCAL_STAMPS:
            return {"time zone": "the time stamps name no zone: they are read as if they were UTC"}
        return {"sample times": "no dates: samples without a time of day are taken to be 1 s apart"}

    def _row(self, layout: _Layout, cells: list[str]) -> None:
        before = layout.before
        names = layout.names if layout.dcgm else layout.names[before:]
        gpu = cells[before - 1] if len(cells) == before + len(names) else ""
        if layout.dcgm and cells[0] != "GPU":
            if cells[0].startswith("GPU-"):
                self._readings.note_ignored("rows of MIG instances")
            return
        if not gpu.isdecimal():
            self._readings.damaged += 1
            return
        gpu = str(int(gpu[:9]))
        time_ns = self._time(layout, cells, gpu)
        if time_ns is None:
            self._readings.damaged += 1
            return
        self._readings.describe(self._host, "gpu_sample", gpu, nvml_index=int(gpu))
        known = _DCGM if layout.dcgm else _SMI
        for name, cell in zip(names, cells[before:], strict=True):
            target = known.get(name)
            if target is not None:
                self._readings.series(self._host, gpu, target).put(time_ns, number(cell))

    def _time(self, layout: _Layout, cells: Sequence[str], gpu: str) -> int | None:
        """Nanoseconds: since 1970 with a date, since the first midnight with a time of day, else counted."""
        stamped = dict(zip(layout.names[: layout.before - 1], cells, strict=False)) if not layout.dcgm else {}
        if "date" in stamped and "time" in stamped:
            stamp = parse_stamp(f"{stamped['date']} {stamped['time']}")
            if stamp is None:
                return None
            self.clock = LOCAL_STAMPS
            return stamp[0]
        if "time" in stamped:
            stamp = parse_stamp(f"20000101 {stamped['time']}")
            if stamp is None:
                return None
            # Later lines are later: a smaller time of day is the next day's.
            self._days += stamped["time"] < self._last_time
            self._last_time = stamped["time"]
            return stamp[0] % _DAY_NS + self._days * _DAY_NS
        turn = self._turns[gpu] = self._turns.get(gpu, -1) + 1
        return turn * PERIOD_NS


def _header(line: str, cells: Sequence[str]) -> _Layout | None:
    line = line.strip()
    if _DCGM_HEADER.match(line):
        names = cells[2:] if cells[0] == "#" else cells[1:]
        return _Layout(dcgm=True, names=tuple(names))
    if _SMI_HEADER.match(line):
        names = [name.lstrip("#").lower() for name in cells if name != "#"]
        return _Layout(dcgm=False, names=tuple(names)) if "gpu" in names else None
    return None
