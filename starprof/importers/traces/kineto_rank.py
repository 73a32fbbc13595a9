"""One rank's profiler trace as numbers: its steps, its collectives, and how long it waited in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starprof.importers.source import Source
from starprof.importers.traces import intervals
from starprof.importers.traces.eventstream import Event, EventStream
from starprof.importers.traces.kineto_events import PHASES, Collected, Floats, correlation
from starprof.model import collectives as names

_ITEM_BYTES = {
    "double": 8, "long": 8, "int64": 8, "uint64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Calls:
    """Collectives of a rank in the order of their launch; arrays of shape (C,)."""

    start_us: Floats
    dur_us: Floats
    kind: list[str]
    group: list[str]
    members: list[str]
    bytes: Floats
    step: Floats


@dataclass(frozen=True)
class RankTrace:
    """What is kept of one trace.

    Attributes:
        source: the file.
        header: keys beside the events.
        steps: step numbers, rising, shape (S,).
        columns: per column of table `step` microseconds, shape (S,).
        calls: the collectives.
        on_gpu: collectives are GPU kernels.
        damage: what was wrong with the file, in words.
        whole: all but few of the events are there.
    """

    source: Source
    header: Mapping[str, Any]
    steps: NDArray[np.int64]
    columns: Mapping[str, Floats]
    calls: Calls
    on_gpu: bool
    damage: tuple[str, ...]
    whole: bool


def read_rank(source: Source) -> RankTrace:
    """Read one trace.

    Raises:
        InputError: it can't be read at all.
    """
    stream, found = EventStream(source), Collected()
    for events in stream.chunks():
        found.take(events)
    damage = list(stream.damage)
    if found.impossible:
        damage.append(f"{found.impossible} events with impossible times are left out")
    on_device, on_host = found.kept["device_call"], found.kept["host_call"]
    on_gpu = bool(on_device) or (bool(found.kernels) and not on_host)
    calls = _calls(found, on_device or on_host)
    steps, columns = _step_columns(found, calls, on_gpu)
    return RankTrace(source, stream.header, steps, columns, calls, on_gpu, tuple(damage), stream.whole)


def _calls(found: Collected, events: list[Event]) -> Calls:
    on_host = events is found.kept["host_call"]
    told = _launched_us(found, events)
    launched = np.where(np.isnan(told), np.array([e.ts for e in events], np.float64), told)
    order = np.argsort(launched, kind="stable")
    events, launched = [events[i] for i in order], launched[order]
    kinds = _kinds(found, events, told[order], on_host=on_host)
    args = [e.args for e in events]
    return Calls(
        start_us=np.array([e.ts for e in events], np.float64),
        dur_us=np.array([e.dur for e in events], np.float64),
        kind=kinds,
        group=["" if a is None or a.group is None else str(a.group)[:100] for a in args],
        members=["" if a is None or not isinstance(a.members, str) else a.members for a in args],
        bytes=np.array([_payload(e) for e in events], np.float64),
        step=_step_of(found, launched),
    )


def _launched_us(found: Collected, events: list[Event]) -> Floats:
    """When the host launched each call, NaN where the trace does not tell; calls on the host launch themselves."""
    if events and events is found.kept["host_call"]:
        return np.array([e.ts for e in events], np.float64)
    numbers, moments = found.launches()
    if not len(numbers) or not events:
        return np.full(len(events), np.nan)
    order = np.argsort(numbers, kind="stable")
    wanted = np.array([correlation(e) for e in events], np.int64)
    at = np.clip(np.searchsorted(numbers[order], wanted), 0, len(order) - 1)
    known = (numbers[order][at] == wanted) & (wanted >= 0)
    return np.where(known, moments[order][at], np.nan)


def _kinds(found: Collected, events: list[Event], launched: Floats, *, on_host: bool) -> list[str]:
    """Kind of each call: as it says itself, as the annotation around its launch says, as its kernel's name says.

    A call on the host tells by its name what it is. What the program called, and may call as something else (a
    reduce-scatter of gloo is an all-reduce), is over by then on one rank and not yet on another.
    """
    around = _annotation_around([] if on_host else found.kept["calling"], launched)
    kinds = []
    for event, annotation in zip(events, around, strict=True):
        told = event.args.collective if event.args is not None else None
        kind = names.kind(told) if isinstance(told, str) else names.UNKNOWN
        if kind == names.UNKNOWN and annotation is not None:
            kind = names.kind(annotation.name)
        kinds.append(names.kind(event.name) if kind == names.UNKNOWN else kind)
    called = {names.kind(e.name) for e in found.kept["calling"]} | set(kinds)
    if called - names.MUTUAL <= {names.UNKNOWN}:
        # Kernels of one name for everything: where nothing else was called, they are collectives.
        kinds = [names.COLLECTIVE if k == names.UNKNOWN else k for k in kinds]
    return kinds


def _annotation_around(annotations: list[Event], moments: Floats) -> list[Event | None]:
    ordered = sorted(annotations, key=lambda e: e.ts)
    at = np.searchsorted(np.array([e.ts for e in ordered]), moments, side="right") - 1
    return [
        ordered[i] if i >= 0 and moment <= ordered[i].ts + ordered[i].dur else None
        for i, moment in zip(at, moments, strict=True)
    ]


def _payload(event: Event) -> float:
    """Bytes of the larger side of a call, NaN when not told."""
    args = event.args
    if args is None or not isinstance(args.dtype, str):
        return float("nan")
    item = _ITEM_BYTES.get(args.dtype.lower())
    sizes = [n for n in (args.elements_in, args.elements_out) if isinstance(n, int) and 0 <= n < 2**50]
    return float(max(sizes) * item) if item is not None and sizes else float("nan")


def _step_of(found: Collected, moments: Floats) -> Floats:
    """Step in which each moment lies, NaN for none."""
    result = np.full(len(moments), np.nan)
    numbers = np.array(sorted(found.steps, key=lambda n: found.steps[n][0]), np.float64)
    if len(numbers):
        spans = np.array([found.steps[int(n)] for n in numbers])
        at = np.searchsorted(spans[:, 0], moments, side="right") - 1
        inside = (at >= 0) & (moments <= spans[at].sum(axis=1))
        result[inside] = numbers[at[inside]]
    return result


def _step_columns(found: Collected, calls: Calls, on_gpu: bool) -> tuple[NDArray[np.int64], dict[str, Floats]]:
    """Steps and their exclusive spans.

    Blocked is the time in which a collective ran and nothing of the rank's own: no other kernel on a GPU, no operator
    on a CPU. Only innermost operators count as work there: an outer one may be waiting in a collective it called.
    """
    numbers = np.array(sorted(found.steps), np.int64)
    if len(numbers) == 0:
        return numbers, {}
    spans = np.array([found.steps[int(n)] for n in numbers])
    starts, ends = spans[:, 0], spans.sum(axis=1)
    columns = {"dur_us": spans[:, 1]}
    taken = np.empty((0, 2))
    busy = np.empty((0, 2))
    if len(calls.start_us):
        busy = found.kernels.union() if on_gpu else _innermost(found)
        running = intervals.union(calls.start_us, calls.dur_us)
        taken = intervals.subtract(running, busy)
        columns["blocked_us"] = intervals.within(taken, starts, ends)
    # The host's spans say nothing about a GPU's time, except where the GPU has nothing to do.
    taken = intervals.merged(taken, busy) if on_gpu else taken
    for phase in PHASES[:1] if on_gpu else PHASES:
        if found.phases[phase]:
            time = found.phases[phase].union()
            columns[f"{phase}_us"] = intervals.within(intervals.subtract(time, taken), starts, ends)
            taken = intervals.merged(taken, time)
    return numbers, columns


def _innermost(found: Collected) -> Floats:
    starts, durations = found.operators.starts, found.operators.durations
    inner = intervals.leaves(starts, durations, found.threads())
    return intervals.union(starts[inner], durations[inner])
