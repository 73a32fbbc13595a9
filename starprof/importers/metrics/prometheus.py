"""GPU and host samples from Prometheus: text of one or many scrapes, and range queries as JSON or CSV.

Text scrapes carry no time: it is taken from the samples' own stamps, else from `node_time_seconds`, else from the
file's name; without any of them scrapes are only in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from starprof.errors import InputError
from starprof.importers.logs.stamps import COUNTED
from starprof.importers.metrics import prometheus_export, prometheus_text
from starprof.importers.metrics.readings import Readings
from starprof.importers.source import Source
from starprof.model.rundata import RunData

NAME = "prometheus"

_UNTIMED = "the scrapes have no time stamps: they are taken to be 1 s apart, in order"
_VIOLATIONS = "violation counters: a clock event reason stands where its counter grew since the sample before"


def recognises(source: Source) -> bool:
    """Text exposition, a range query's answer, or a CSV export, with names of metrics that are known."""
    return (
        prometheus_text.recognises(source)
        or prometheus_export.recognises_json(source)
        or prometheus_export.recognises_csv(source)
    )


def read(sources: Sequence[Source]) -> RunData:
    """All series of all files.

    Raises:
        InputError: a file can't be understood, or holds no metric that is known.
    """
    readings = Readings(sources[0].name)
    scrapes = prometheus_text.Scrapes(readings)
    clocks: set[str] = set()
    for source in sources:
        if prometheus_export.recognises_json(source):
            clocks.add(prometheus_export.read_json(source, readings))
        elif prometheus_export.recognises_csv(source):
            clocks.add(prometheus_export.read_csv(source, readings))
        else:
            scrapes.read(source)
    clocks |= scrapes.clocks
    if len(clocks) > 1:
        raise InputError(f"{sources[0].name}: the files have different kinds of time stamps; analyze them one by one")
    clock = clocks.pop() if clocks else COUNTED
    missing = [("sample times", _UNTIMED)] if clock == COUNTED else []
    if readings.uses_violations:
        missing.append(("clock event reasons", _VIOLATIONS))
    return readings.run(NAME, sources, clock, missing)
