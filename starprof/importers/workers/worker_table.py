"""Own times of workers, from whatever told them, as a run: samples on a common grid, and what the times are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import OWN, WALL, run_of
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo, RunData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_INDEX, CLOCK_INDEX = "step", "clock"
UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "min": 6e7, "h": 3.6e9}
MAX_WORKERS = 100_000
MAX_CELLS = 50_000_000
MAX_NUMBER = 2**31
MAX_US = 1e15
MAX_RATIO = 1e9
MAX_STEP = 2.0**53
MAX_SECONDS = 9e9
CONFLICTS = 0.01
SAME = 1e-6
SAME_TIMES = 0.5

EQUAL_SHARE = 0.02
EQUAL_LEVELS = 0.02
COMMON_SHARE = 0.9
MAX_OWN_NOISE = 0.05
MIN_STEPS = 3

_NUMBER = re.compile(r"^\D*?(\d{1,9})\D*$")
_UNIT_WORDS = (
    ("ns", r"ns|nsec|nanos|nanoseconds?"),
    ("us", r"us|usec|micros|microseconds?"),
    ("ms", r"ms|msec|millis|milliseconds?"),
    ("min", r"min|mins|minutes?"),
    ("s", r"s|sec|secs|seconds?"),
)


@dataclass(frozen=True)
class Records:
    """One row per worker and sample.

    Attributes:
        names: the workers as the source names them.
        worker: index into `names`, shape (N,).
        at: step number or seconds, shape (N,); NaN is left out.
        at_kind: STEP_INDEX or CLOCK_INDEX; None when the source tells no order: each worker's values in turn.
        values: times in the source's unit, shape (N,).
        unit: key of `UNITS_US`, None when not told.
        value_name: what the source calls the times.
        at_name: what it calls steps or time.
        notes: what was guessed, in words.
        hosts: host of each worker, where told.
        nodes: table `node`, where the source tells something of them.
        whole_steps: the times are whole steps, not a part of them such as the computing.
        no_waiting: by their name nobody waits for others in them, so that equal ones are no sign of waiting.
        spans: columns of table `step` that stand beside the times, microseconds, shape (N,) each; with `blocked_us`
            among them, waiting is told apart.
    """

    names: tuple[str, ...]
    worker: Ints
    at: Floats
    at_kind: str | None
    values: Floats
    unit: str | None
    value_name: str
    at_name: str = ""
    notes: tuple[str, ...] = ()
    hosts: dict[str, str] = field(default_factory=dict)
    nodes: pd.DataFrame | None = None
    whole_steps: bool = True
    no_waiting: bool = False
    spans: dict[str, Floats] = field(default_factory=dict)


def unit_of(name: str) -> str | None:
    """Unit in a name: "step_time_ms", "compute (s)", "dur[us]"; None when there is none."""
    words = [w for w in re.split(r"[^a-zA-Z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()) if w]
    for unit, pattern in _UNIT_WORDS:
        if any(re.fullmatch(pattern, word) for word in words[1:] or ()):
            return unit
    return None


def worker_run(source_format: str, sources: Sequence[Source], records: Records) -> RunData:
    """The run of some records.

    Raises:
        InputError: no usable value, values that contradict each other, or too many workers and samples.
    """
    where = sources[0].name
    records = _usable(where, records)
    at, steps = _grid(records)
    values = _matrix(where, records, at, len(steps))
    seconds = _first_times(records, at, len(steps))
    scale = UNITS_US[records.unit] if records.unit else _scale(values)
    numbers, labelled = _numbers(records.names)
    order = np.argsort(numbers, kind="stable")
    apart = "blocked_us" in records.spans
    timing = None if apart else OWN if records.no_waiting else timing_of(values)
    spans = {name: _of(records, spent, at, len(steps)) for name, spent in records.spans.items()} if apart else {}
    detail: dict[str, object] = {"unit": records.unit or "arbitrary", "scale": scale, "values": records.value_name}
    if records.at_kind == CLOCK_INDEX:
        detail["clock"] = records.at_name
    if not records.whole_steps:
        detail["whole_steps"] = False
    hosts = list(dict.fromkeys(records.hosts.get(name, "") for name in records.names))
    ranks = [
        RankInfo(
            rank=int(numbers[i]),
            node=hosts.index(records.hosts.get(records.names[i], "")),
            host=records.hosts.get(records.names[i], ""),
            detail={**detail, **({"label": records.names[i]} if labelled else {})},
        )
        for i in order
    ]
    starts = None
    if records.at_kind == CLOCK_INDEX:
        starts = np.where(np.isnan(seconds), 0, np.rint(np.nan_to_num(seconds) * 1e9).astype(np.int64))
        starts = np.where(~np.isnan(seconds) & (starts <= 0), 1, starts)[order]
    run = run_of(
        source_format,
        sources,
        ranks=ranks,
        steps=steps,
        columns={"dur_us": _whole(values * scale)[order], **{n: _whole(spent)[order] for n, spent in spans.items()}},
        start_ns=starts,
        timing=timing,
        unavailable=_unavailable(records, timing),
        nodes=records.nodes,
    )
    note = "; ".join((*records.notes, _timing_words(timing, records)))
    return RunData(**{**vars(run), "info": {**run.info, "note": note}})


def timing_of(values: Floats) -> str:
    """OWN, or WALL when all workers show the same time in every step, as synchronous steps do.

    Workers that wait for each other in every step can't have different step times: neither different levels nor
    independent noise. So they are synchronous when their times are equal step by step, or have equal levels and nearly
    all of their movement in common.

    Args:
        values: shape (R, S), NaN = not told.
    """
    both = (~np.isnan(values)).sum(axis=0) >= 2
    if both.sum() < MIN_STEPS:
        return OWN
    logs = np.log(values[:, both])
    logs = logs[~np.isnan(logs).all(axis=1)]
    apart = np.nanmax(logs, axis=0) - np.nanmin(logs, axis=0)
    if float(np.median(apart)) <= EQUAL_SHARE:
        return WALL
    levels = np.nanmedian(logs, axis=1)
    common = np.nanmedian(logs, axis=0)
    own = float(np.nanstd(logs - common))
    moved = float(np.nanstd(common))
    shared = moved**2 / max(moved**2 + own**2, 1e-18)
    return WALL if np.ptp(levels) <= EQUAL_LEVELS and shared >= COMMON_SHARE and own <= MAX_OWN_NOISE else OWN


def _timing_words(timing: str | None, records: Records) -> str:
    if timing is None:
        return "waiting has a column of its own, the rest is each worker's own time"
    if timing == WALL:
        return "the workers' times are equal step by step: whole steps of workers that wait for each other"
    if records.no_waiting:
        return f"by its name {records.value_name!r} holds no waiting for others"
    return "the workers' times differ, so they do not wait for each other in every step: taken as each one's own time"


def _unavailable(records: Records, timing: str | None) -> list[tuple[str, str]]:
    missing = [] if records.unit else [("unit of the times", f"{records.value_name!r} names none")]
    if timing == WALL:
        return [*missing, ("waiting", "whole steps only: own time and waiting are not told apart")]
    return [*missing, ("causes", "the file holds times only")]


def _usable(where: str, records: Records) -> Records:
    """Rows with a time above zero and, where there is an order, a place in it."""
    if np.nanmin(records.values, initial=0.0) < 0:
        raise InputError(f"{where}: {records.value_name} has negative times")
    kept = np.isfinite(records.values) & (records.values > 0)
    kept &= np.isfinite(records.at) if records.at_kind else True
    if not kept.any():
        raise InputError(f"{where} holds no times above zero in {records.value_name}")
    factor = UNITS_US[records.unit] if records.unit else 1.0
    if float(records.values[kept].max()) * factor > MAX_US:
        raise InputError(f"{where}: {records.value_name} has times of more than 30 years: is that column a time?")
    if records.values[kept].max() > MAX_RATIO * records.values[kept].min():
        raise InputError(
            f"{where}: the times in {records.value_name} differ by more than {MAX_RATIO:g} times: one unit?"
        )
    _check_places(where, records, kept)
    used, index = np.unique(records.worker[kept], return_inverse=True)
    if len(used) > MAX_WORKERS:
        raise InputError(f"{where}: {len(used)} different workers are more than can be true")
    return Records(
        **{
            **vars(records),
            "names": tuple(records.names[i] for i in used),
            "worker": index.astype(np.int64),
            "at": records.at[kept],
            "values": records.values[kept],
            "spans": {name: values[kept] for name, values in records.spans.items()},
        }
    )


def _check_places(where: str, records: Records, kept: NDArray[np.bool_]) -> None:
    """Steps and moments must be such as can be counted with."""
    if records.at_kind is None:
        return
    low, high = float(records.at[kept].min()), float(records.at[kept].max())
    if records.at_kind == STEP_INDEX and max(-low, high) > MAX_STEP:
        raise InputError(f"{where}: {records.at_name} has numbers that are no steps")
    if records.at_kind == CLOCK_INDEX and (low < 0 or high > MAX_SECONDS):
        raise InputError(f"{where}: {records.at_name} holds no times: it reaches from {low:g} to {high:g} s")


def _grid(records: Records) -> tuple[Ints, Ints]:
    """Column of every row, and the number of each column."""
    if records.at_kind is None:
        order = np.argsort(records.worker, kind="stable")
        mine = np.empty(len(order), np.int64)
        first = np.r_[0, np.flatnonzero(np.diff(records.worker[order])) + 1]
        length = np.diff(np.r_[first, len(order)])
        mine[order] = np.arange(len(order)) - np.repeat(first, length)
        return mine, np.arange(int(mine.max()) + 1)
    if records.at_kind == STEP_INDEX:
        steps, column = np.unique(np.rint(records.at).astype(np.int64), return_inverse=True)
        return column, steps
    return _clock_grid(records)


def _clock_grid(records: Records) -> tuple[Ints, Ints]:
    """Samples by time: the times themselves when the workers share them, else bins as wide as samples are apart."""
    times, column, count = np.unique(records.at, return_inverse=True, return_counts=True)
    workers = len(records.names)
    if workers > 1 and float(np.median(count)) >= SAME_TIMES * workers and _apart_enough(times):
        return column, np.arange(len(times))
    order = np.lexsort((records.at, records.worker))
    apart = np.diff(records.at[order])
    apart = apart[(np.diff(records.worker[order]) == 0) & (apart > 0)]
    width = float(np.median(apart)) if len(apart) else 1.0
    span = float(times[-1] - times[0])
    if span / width > MAX_CELLS / max(1, workers):
        width = span * workers / MAX_CELLS
    bins = np.rint((records.at - times[0]) / width).astype(np.int64)
    used, column = np.unique(bins, return_inverse=True)
    return column, np.arange(len(used))


def _apart_enough(times: Floats) -> bool:
    """No sample lies so near to its neighbour that the two are one, taken a little apart."""
    if len(times) < 2:
        return True
    apart = np.diff(times)
    return bool(apart.min() >= 0.5 * np.median(apart))


def _matrix(where: str, records: Records, column: Ints, samples: int) -> Floats:
    """Mean value of every cell, shape (R, S); NaN where the source has none."""
    workers = len(records.names)
    if workers * samples > MAX_CELLS:
        raise InputError(f"{where}: {workers} workers and {samples} samples are too many to compare")
    values = _of(records, records.values, column, samples)
    if records.at_kind == STEP_INDEX:
        _refuse_conflicts(where, records, values[records.worker, column])
    return values


def _of(records: Records, values: Floats, column: Ints, samples: int) -> Floats:
    """Mean of some values by worker and column, shape (R, S)."""
    cells = len(records.names) * samples
    cell = records.worker * samples + column
    count = np.bincount(cell, minlength=cells)
    total = np.bincount(cell, values, cells)
    mean: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(-1, samples)
    return mean


def _first_times(records: Records, column: Ints, samples: int) -> Floats:
    """Earliest time of every cell, shape (R, S); NaN where the source has none."""
    seconds = np.full(len(records.names) * samples, np.inf)
    if records.at_kind == CLOCK_INDEX:
        np.minimum.at(seconds, records.worker * samples + column, records.at)
    seconds[~np.isfinite(seconds)] = np.nan
    return seconds.reshape(-1, samples)


def _refuse_conflicts(where: str, records: Records, mean: Floats) -> None:
    """One worker has one time per step; several that differ are several runs, or parts of a step."""
    differing = np.abs(records.values - mean) > SAME * mean
    if differing.mean() > CONFLICTS:
        first = int(np.flatnonzero(differing)[0])
        raise InputError(
            f"{where}: worker {records.names[records.worker[first]]} has several times for {records.at_name} "
            f"{records.at[first]:g}: keep the rows of one run, and one time per step"
        )


def _whole(us: Floats) -> Floats:
    """Whole microseconds, as run files keep them: a kept run must give the same verdict."""
    rounded: Floats = np.rint(us)
    return rounded


def _scale(values: Floats) -> float:
    """Power of ten that brings times of an unknown unit to whole numbers of six figures, as run files keep them."""
    typical = float(np.nanmedian(values))
    return float(10.0 ** np.clip(5 - np.floor(np.log10(typical)), -6, 15))


def _numbers(names: Sequence[str]) -> tuple[Ints, bool]:
    """Numbers of the workers from their names, and whether they had to be made up."""
    found = [_NUMBER.match(name) for name in names]
    if all(found):
        numbers = [int(match[1]) for match in found if match]
        if len(set(numbers)) == len(numbers) and max(numbers) < MAX_NUMBER:
            return np.array(numbers, np.int64), False
    order = sorted(range(len(names)), key=lambda i: names[i])
    numbers = [0] * len(names)
    for number, i in enumerate(order):
        numbers[i] = number
    return np.array(numbers, np.int64), True
