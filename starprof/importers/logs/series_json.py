"""Step times of several runs in one JSON file: `{"baseline": {"step": [...], "value": [...]}, "tuned": {...}}`.

What the values are is told by names only: a series is taken for step times when its file or its list says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import JOB, run_of
from starprof.importers.logs.job_log import JobSeries, job_rank, noted
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.importers.workers.worker_table import UNITS_US, unit_of
from starprof.model.rundata import RunData

NAME = "step-series"

MAX_BYTES = 64 << 20
MAX_RUNS = 1000
MIN_RECORDS = 4

_HEAD = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*(?:"[^"\\]{1,200}"\s*:\s*\{\s*)?"(?:step|iteration)s?"\s*:\s*\[')
_STEPS = ("step", "steps", "iteration", "iterations")
_TIME = re.compile(r"(step|iter(ation)?|batch)[_ -]?(time|dur)|\btime\b|seconds|(^|_)(s|ms|us)$", re.IGNORECASE)


def recognises(source: Source) -> bool:
    """A JSON object with lists of steps, alone or one per run, in a file or with lists that are called times."""
    head = source.head
    return _HEAD.match(head) is not None and bool(
        _TIME.search(source.base.rpartition(".")[0])
        or re.search(rb'"[a-z_]*(?:step|iter)[a-z_]*time[a-z_]*"\s*:', head)
    )


def read(sources: Sequence[Source]) -> RunData:
    """One run's series; a run in a file of several is named `FILE!RUN`.

    Raises:
        SeveralJobsError: there are several files, or several runs in one.
        InputError: no series of steps and times.
    """
    if len(sources) > 1:
        raise SeveralJobsError(f"{len(sources)} files of series are several runs: name one", each_its_own(sources))
    source = sources[0]
    content = _content(source)
    runs = {key: value for key, value in content.items() if isinstance(value, dict)}
    if runs and "!" in source.name and (key := source.name.rpartition("!")[2]) in runs:
        return _run(source, runs[key])
    if not runs:
        return _run(source, content)
    if len(runs) == 1:
        return _run(source, next(iter(runs.values())))
    if len(runs) > MAX_RUNS:
        raise InputError(f"{source.name} holds more than {MAX_RUNS} runs")
    parts = [[replace(source, name=f"{source.name}!{key}")] for key in runs]
    raise SeveralJobsError(f"{source.name} holds series of {len(runs)} runs ({', '.join(list(runs)[:3])}, ...)", parts)


def _content(source: Source) -> Mapping[str, object]:
    with replace(source, max_bytes=MAX_BYTES).open() as stream:
        data = stream.read()
    try:
        content = json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source.name} can't be read: it is cut off, nested too deeply, or no JSON") from error
    if not isinstance(content, dict):
        raise InputError(f"{source.name} is no object of series")
    return content


def _run(source: Source, lists: Mapping[str, object]) -> RunData:
    steps = next((_numbers(lists[name]) for name in _STEPS if isinstance(lists.get(name), list)), np.zeros(0))
    others = {name: _numbers(v) for name, v in lists.items() if name not in _STEPS and isinstance(v, list)}
    fitting = {name: values for name, values in others.items() if len(values) == len(steps)}
    named = [name for name in fitting if _TIME.search(name)] or list(fitting)[:1]
    if not named:
        raise InputError(f"{source.name} holds no list of times beside its steps")
    name, values = named[0], fitting[named[0]]
    unit = unit_of(name) or unit_of(source.base.rpartition(".")[0]) or "s"
    told = np.isfinite(values) & np.isfinite(steps) & (values >= 0) & (np.abs(steps) < 2**53)
    told &= steps > np.concatenate([[-np.inf], np.maximum.accumulate(np.where(told, steps, -np.inf))[:-1]])
    if told.sum() < MIN_RECORDS:
        raise InputError(f"{source.name} has fewer than {MIN_RECORDS} steps with a time")
    with np.errstate(over="ignore"):  # what is beyond any time is refused with the run
        times_us = values[told] * UNITS_US[unit]
    series = JobSeries(np.rint(steps[told]).astype(np.int64), times_us, f"{name!r} in {unit}")
    run = run_of(
        NAME,
        [source],
        ranks=(job_rank(series.per_record, {}),),
        steps=series.steps,
        columns={"dur_us": series.durations_us[None, :]},
        timing=JOB,
        unavailable=(("time per rank", "the file holds one series for the whole job"),),
    )
    return noted(run, f"step times {series.origin}")


def _numbers(values: object) -> NDArray[np.float64]:
    return np.array([_number(value) for value in values] if isinstance(values, list) else [], np.float64)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("nan")
