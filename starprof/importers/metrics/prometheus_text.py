"""Prometheus' text exposition format (and OpenMetrics), one scrape after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from starprof.errors import InputError
from starprof.importers.logs.stamps import COUNTED, LOCAL_STAMPS, UTC_STAMPS, parse_stamp, since_1970_ns
from starprof.importers.metrics.names import PREFIXES, note_fact, place
from starprof.importers.metrics.readings import MAX_SERIES, Readings, Series
from starprof.importers.source import Source

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": " "}
_LINE = re.compile(
    rb"(?m)^(?:(?:# (?:HELP|TYPE) )?(?:" + "|".join(PREFIXES).encode() + rb")\w*|# (?:HELP|TYPE) node_\w+)[ {]"
)
"""A metric that is known, or any of the node exporter: the known ones may come after hundreds of others."""
_DIGITS = re.compile(r"\d{4}-?\d{2}-?\d{2}[T_ -]?\d{2}[:_-]?\d{2}[:_-]?\d{2}|\d{10}(?:\d{3})?(?:\.\d+)?")
_MAX_LABELS = 200
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Known:
    """A series that was seen: where its values go, or what it says."""

    name: str
    labels: dict[str, str]
    values: tuple[Series, ...]


class Scrapes:
    """Reads files of scrapes into `readings`.

    Attributes:
        clocks: what the times of the files are.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self.clocks: set[str] = set()
        self._scrape = 0

    def read(self, source: Source) -> None:
        """Read a file of one host's scrapes, one after the other.

        Raises:
            InputError: it can't be read.
        """
        _File(source, self._readings, self).read()

    def next_number(self) -> int:
        """Number of the scrape that begins."""
        self._scrape += 1
        return self._scrape - 1


class _File:
    def __init__(self, source: Source, readings: Readings, scrapes: Scrapes) -> None:
        self._source = source
        self._readings = readings
        self._scrapes = scrapes
        stem = PurePosixPath(source.base).name
        found = _DIGITS.search(stem)
        self._name_time = _time_of_name(found[0]) if found else None
        rest = stem.replace(found[0], "") if found and self._name_time else stem
        self._host = rest.split(".")[0].strip("-_ ")[:100]
        self._known: dict[str, _Known | None] = {}
        self._seen: set[str] = set()
        self._buffer: list[tuple[tuple[Series, ...], float]] = []
        self._clock_s: float | None = None
        self._stamped_ns: int | None = None
        self._scrape_of_file = 0

    def read(self) -> None:
        for line in self._source.text_lines():
            if line and line[0] != "#":
                self._line(line)
            elif line.startswith("# EOF"):
                self._end_scrape()
        self._end_scrape()

    def _line(self, line: str) -> None:
        end = line.rfind("}", 0, line.find(" # {") if " # {" in line else len(line)) + 1
        key = line[:end] if end else line.partition(" ")[0]
        fields = line[len(key) :].split()
        value = _float(fields[0]) if fields else None
        if value is None:
            self._readings.damaged += 1
            return
        if key in self._seen and not (len(fields) > 1 and fields[1] != "#"):
            self._end_scrape()
        if len(self._seen) < MAX_SERIES:
            self._seen.add(key)
        series = self._series(key)
        if series is None:
            return
        if series.name == "node_time_seconds":
            self._clock_s = value
        elif note_fact(series.name, series.labels, self._host, value, self._readings):
            return
        elif not series.values:
            self._readings.note_ignored(series.name)
        elif len(fields) > 1 and (time_ns := _stamp(fields[1])) is not None:
            self._scrapes.clocks.add(UTC_STAMPS)
            _put(series.values, time_ns, value)
            self._stamped_ns = time_ns
        else:
            self._buffer.append((series.values, value))

    def _series(self, key: str) -> _Known | None:
        if key in self._known:
            return self._known[key]
        if len(self._known) >= MAX_SERIES:
            raise InputError(f"{self._source.name} holds more than {MAX_SERIES} series: name fewer files")
        name, _, inner = key.partition("{")
        labels = parse_labels(inner.rpartition("}")[0]) if inner else {}
        found = None
        if labels is None or _NAME.fullmatch(name) is None:
            self._readings.damaged += 1
        else:
            where = place(name, labels, self._host, self._readings)
            of_device = [self._readings.series(where.host, where.device, t) for t in where.targets] if where else []
            found = _Known(name, labels, tuple(of_device))
        self._known[key] = found
        return found

    def _end_scrape(self) -> None:
        """Give the values that have no time of their own the time of their scrape."""
        if self._buffer:
            time_ns = since_1970_ns(self._clock_s) if self._clock_s is not None else self._stamped_ns
            clock = UTC_STAMPS
            if time_ns is None and self._name_time is not None and self._scrape_of_file == 0:
                time_ns, clock = self._name_time
            if time_ns is None:
                time_ns, clock = self._scrapes.next_number() * _SECOND_NS, COUNTED
            self._scrapes.clocks.add(clock)
            for where, value in self._buffer:
                _put(where, time_ns, value)
        self._scrape_of_file += bool(self._seen)
        self._buffer.clear()
        self._seen.clear()
        self._clock_s = self._stamped_ns = None


def _put(where: tuple[Series, ...], time_ns: int, value: float) -> None:
    for series in where:
        series.put(time_ns, value)


def recognises(source: Source) -> bool:
    """Lines of metrics, or of their help, whose names are known."""
    return source.head[:1] not in (b"{", b"[") and _LINE.search(source.head) is not None


def parse_labels(text: str) -> dict[str, str] | None:
    """Labels of `a="b",c="d"`; None when it is something else."""
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _LABEL.match(text, position)
        if found is None or len(labels) >= _MAX_LABELS:
            return None
        labels[found[1]] = re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], found[2])
        position = found.end()
    return labels


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _stamp(text: str) -> int | None:
    """A sample's own time: milliseconds in the text format, seconds in OpenMetrics."""
    number = _float(text)
    if number is None:
        return None
    return since_1970_ns(number / 1000.0) if number > 1e11 else since_1970_ns(number)


def _time_of_name(digits: str) -> tuple[int, str] | None:
    plain = re.sub(r"[T_ :-]", "", digits)
    stamp = parse_stamp(f"{plain[:8]} {plain[8:]}") if len(plain) == 14 else parse_stamp(digits)
    return (stamp[0], LOCAL_STAMPS) if stamp is not None and len(plain) == 14 else stamp
