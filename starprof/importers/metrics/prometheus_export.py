"""What Prometheus and Grafana export of a range of time: the HTTP API's JSON, and CSV, long or one column a series."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from starprof.errors import InputError
from starprof.importers.logs.stamps import UTC_STAMPS, parse_stamp, since_1970_ns
from starprof.importers.metrics.names import PREFIXES, note_fact, place
from starprof.importers.metrics.prometheus_text import parse_labels
from starprof.importers.metrics.readings import MAX_SERIES, Readings
from starprof.importers.metrics.units import number
from starprof.importers.source import Source

MAX_JSON_BYTES = 1 << 29
_KNOWN = re.compile("|".join(PREFIXES))
_TIMES = {"time", "timestamp", "date", "datetime", "ts", "_time"}
_NAMES = {"__name__", "metric", "name", "metric_name", "_field"}
_VALUES = {"value", "_value", "val"}


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct):
    result: list[_Series]
    resultType: str = ""  # noqa: N815 - the API's name


class _Answer(msgspec.Struct):
    data: _Data
    status: str = ""


def recognises_json(source: Source) -> bool:
    """An answer of the query API."""
    head = source.head[:4096].lstrip()
    return head[:1] == b"{" and b'"resultType"' in head and b'"result"' in head


def recognises_csv(source: Source) -> bool:
    """A table whose header, or whose first line, names metrics that are known."""
    lines = source.head[:65536].decode("utf-8", "replace").splitlines()[:2]
    if len(lines) < 2 or "," not in lines[0] or lines[0].startswith(("#", "{")):
        return False
    header = _columns(lines[0])
    if not header or not _TIMES & {name.lower() for name in header}:
        return False
    lowered = {name.lower() for name in header}
    long = bool(_NAMES & lowered and _VALUES & lowered)
    return _KNOWN.search(lines[1] if long else lines[0]) is not None


def read_json(source: Source, readings: Readings) -> str:
    """Read an answer of the query API; returns what its times are.

    Raises:
        InputError: it is none, too large, or says that the query failed.
    """
    with source.open() as stream:
        text = stream.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise InputError(f"{source.name} is larger than {MAX_JSON_BYTES >> 20} MiB: export a shorter range")
    try:
        answer = msgspec.json.decode(text, type=_Answer)
        if answer.status not in {"", "success"}:
            raise InputError(f"{source.name}: the query failed ({answer.status[:40]})")
        for series in answer.data.result:
            _read_series(series, source, readings)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{source.name} is no answer of Prometheus' query API: {error}") from error
    return UTC_STAMPS


def _read_series(series: _Series, source: Source, readings: Readings) -> None:
    raw = bytes(series.values) or b"[" + bytes(series.value) + b"]"
    pairs = msgspec.json.decode(raw, type=list[tuple[float, str]]) if raw != b"[]" else []
    sink = _Sink(series.metric.get("__name__", "a series without a name"), series.metric, source, readings)
    for seconds, text in pairs:
        time_ns = since_1970_ns(seconds)
        if time_ns is None:
            raise InputError(f"{source.name}: {seconds:g} is no time")
        sink.put(time_ns, number(text))


def read_csv(source: Source, readings: Readings) -> str:
    """Read a table of series; returns what its times are.

    Raises:
        InputError: it can't be understood.
    """
    rows = _rows(source)
    header = next(rows, [])
    time_at = _position(header, _TIMES)
    if time_at is None:
        raise InputError(f"{source.name} has no column of times")
    name_at, value_at = _position(header, _NAMES), _position(header, _VALUES)
    if name_at is not None and value_at is not None:
        put = _long(header, time_at, name_at, value_at, source, readings)
    else:
        put = _wide(header, source, readings)
    clock = ""
    for cells in rows:
        stamp = parse_stamp(cells[time_at]) if len(cells) == len(header) else None
        if stamp is None or clock not in {"", stamp[1]}:
            readings.damaged += 1
            continue
        time_ns, clock = stamp
        put(time_ns, cells)
    if not clock:
        raise InputError(f"{source.name} holds no line with a time that can be read")
    return clock


_Put = Callable[[int, list[str]], None]


def _long(header: list[str], time_at: int, name_at: int, value_at: int, source: Source, readings: Readings) -> _Put:
    """Takes lines of one value each; the other columns are labels."""
    sinks: dict[tuple[str, ...], _Sink] = {}

    def put(time_ns: int, cells: list[str]) -> None:
        told = [(k, v) for i, (k, v) in enumerate(zip(header, cells, strict=True)) if i not in (time_at, value_at)]
        key = tuple(v for _, v in told)
        if key not in sinks:
            if len(sinks) >= MAX_SERIES:
                raise InputError(f"{source.name} holds more than {MAX_SERIES} series: export fewer")
            sinks[key] = _Sink(cells[name_at], dict(told), source, readings)
        sinks[key].put(time_ns, number(cells[value_at]))

    return put


def _wide(header: list[str], source: Source, readings: Readings) -> _Put:
    """Takes lines of one value a series; the header names the series."""
    named = [_series_of(name) for name in header]
    sinks = [(i, _Sink(*found, source, readings)) for i, found in enumerate(named) if found is not None]

    def put(time_ns: int, cells: list[str]) -> None:
        for position, sink in sinks:
            sink.put(time_ns, number(cells[position]))

    return put


class _Sink:
    """Takes the values of one series."""

    def __init__(self, name: str, labels: dict[str, str], source: Source, readings: Readings) -> None:
        self._name, self._labels, self._readings = name, labels, readings
        self._host = source.base.split(".")[0][:100]
        self._fact = note_fact(name, labels, self._host, float("nan"), readings)
        where = None if self._fact else place(name, labels, self._host, readings)
        self._series = [readings.series(where.host, where.device, t) for t in where.targets] if where else []
        if where is None and not self._fact:
            readings.note_ignored(name[:200])

    def put(self, time_ns: int, value: float) -> None:
        """Add a value."""
        if self._fact:
            note_fact(self._name, self._labels, self._host, value, self._readings)
        for series in self._series:
            series.put(time_ns, value)


def _position(header: Sequence[str], names: set[str]) -> int | None:
    return next((i for i, name in enumerate(header) if name.lower() in names), None)


def _series_of(header: str) -> tuple[str, dict[str, str]] | None:
    """Name and labels that a column's header writes as a selector."""
    name, _, inner = header.partition("{")
    labels = parse_labels(inner.rpartition("}")[0]) if inner else {}
    return (name.strip(), labels) if labels is not None and _KNOWN.match(name.strip()) else None


def _columns(line: str) -> list[str]:
    return next(_csv([line]), [])


def _rows(source: Source) -> Iterator[list[str]]:
    yield from _csv(line for line in source.text_lines() if line.strip())


def _csv(lines: Iterable[str]) -> Iterator[list[str]]:
    try:
        for cells in csv.reader(lines):
            yield [cell.strip().lstrip("\ufeff") for cell in cells]
    except csv.Error as error:
        raise InputError(f"this is no table of comma-separated values: {error}") from error
