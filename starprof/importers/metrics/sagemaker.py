"""System metrics of SageMaker's profiler: a JSON object a line, one value of one device at one time.

It tells rates, where the tables hold what grows: use of a CPU and bytes a second are added up over the time since the
sample before, so that their growth is what was told. What a CPU was used for is not told: it stands as user time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from starprof.errors import InputError
from starprof.importers.logs.stamps import UTC_STAMPS, since_1970_ns
from starprof.importers.metrics.readings import Readings, Series, Target
from starprof.importers.source import Source
from starprof.model.rundata import RunData

NAME = "sagemaker-system"

MAX_TEXT = 100
_LONGEST_NS = 3_600_000_000_000
"""Samples further apart than this are not joined."""

_MARKS = (b'"Dimension"', b'"NodeId"', b'"Timestamp"', b'"Value"')
_INDEX = re.compile(r"(\d{1,4})$")
_US_PER_S, _PCT = 1e6, 100.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a dimension goes: the target, and what its value is multiplied by for each second, if it is a rate."""

    target: Target
    per_second: float = 0.0


_PLACES: dict[tuple[str, str], tuple[_Place, ...]] = {
    ("gpu", "GPUUtilization"): (_Place(Target("gpu_sample", "util_pct")),),
    ("gpu", "GPUMemoryUtilization"): (_Place(Target("gpu_sample", "memory_util_pct")),),
    ("cpu", "CPUUtilization"): (_Place(Target("cpu_sample", "user_us"), _US_PER_S / _PCT),),
    ("network", "ReceiveBytesPerSecond"): (_Place(Target("nic_sample", "rx_bytes"), 1.0),),
    ("network", "TransmitBytesPerSecond"): (_Place(Target("nic_sample", "tx_bytes"), 1.0),),
}


class _Line(msgspec.Struct):
    Type: str
    Name: str
    Dimension: str
    Value: float
    NodeId: str
    Timestamp: float


@dataclass(slots=True)
class _Sink:
    """One series, and how far its rate is added up."""

    place: _Place
    series: Series
    last_ns: int = 0
    sum: float = 0.0

    def put(self, time_ns: int, value: float) -> None:
        """Take a value; times that go back, and long holes, add nothing."""
        if not self.place.per_second:
            self.series.put(time_ns, value)
            return
        since_ns = time_ns - self.last_ns if self.last_ns else 0
        if 0 < since_ns <= _LONGEST_NS and 0.0 <= value < 1e15:
            self.sum += value * self.place.per_second * since_ns / 1e9
        if since_ns >= 0:
            self.last_ns = time_ns
            self.series.put(time_ns, self.sum)


def recognises(source: Source) -> bool:
    """Lines of JSON with the names that such files have."""
    first = source.head.lstrip().partition(b"\n")[0]
    return first.startswith(b"{") and all(mark in first for mark in _MARKS)


def read(sources: Sequence[Source]) -> RunData:
    """All files of a job, any number per node.

    Raises:
        InputError: no line holds a metric that is known.
    """
    readings = Readings(sources[0].name)
    sinks: dict[tuple[str, str, str, str], list[_Sink]] = {}
    decode = msgspec.json.Decoder(_Line).decode
    for source in sources:
        for text in source.text_lines(max_line_bytes=1 << 16):
            if not text.strip():
                continue
            try:
                line = decode(text.encode("utf-8", "replace"))
            except (msgspec.DecodeError, RecursionError):
                readings.damaged += 1
                continue
            time_ns = since_1970_ns(line.Timestamp)
            if time_ns is None:
                readings.damaged += 1
                continue
            for sink in _sinks(line, sinks, readings):
                sink.put(time_ns, line.Value)
    missing = [("system and user time", "CPU use is told as one number: it stands as user time")]
    try:
        return readings.run(NAME, sources, UTC_STAMPS, missing)
    except InputError as error:
        raise InputError(f"{sources[0].name} holds no system metric that starprof knows") from error


def _sinks(line: _Line, sinks: dict[tuple[str, str, str, str], list[_Sink]], readings: Readings) -> list[_Sink]:
    """Where the values of a line go."""
    key = (line.NodeId[:MAX_TEXT], line.Type[:MAX_TEXT], line.Name[:MAX_TEXT], line.Dimension[:MAX_TEXT])
    if key in sinks:
        return sinks[key]
    node, kind, name, dimension = key
    places = _PLACES.get((kind.lower(), dimension), ())
    if not places:
        readings.note_ignored(f"{kind} {dimension}")
        return []
    index = _INDEX.search(name)
    device = index[1] if index and kind.lower() != "network" else name
    sinks[key] = [_Sink(place, readings.series(node, device, place.target)) for place in places]
    if kind.lower() == "gpu":
        readings.describe(node, "gpu_sample", device, nvml_index=int(index[1]) if index else None)
    elif kind.lower() == "network":
        readings.describe(node, "nic_sample", device, name=name, type="ethernet")
    return sinks[key]
