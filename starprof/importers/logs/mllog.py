"""MLPerf training logs: `:::MLLOG {json}` lines, which tell one series of step times for the whole job.

The times are taken from what tells them most directly: step times among the tracked statistics, else a throughput with
the batch size, else the time stamps of lines that carry a step number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import JOB, run_of
from starprof.importers.logs.job_log import JobSeries, events_frame, job_rank, noted
from starprof.importers.parts import SeveralJobsError, each_its_own
from starprof.importers.source import Source
from starprof.model import events
from starprof.model.rundata import RunData

NAME = "mllog"

_MARK = ":::MLLOG"
_STEP_TIMES = {
    "train_step_time": 1e6,
    "step_time": 1e6,
    "iteration_time": 1e6,
    "train_step_time_ms": 1e3,
    "step_time_ms": 1e3,
}
"""Microseconds in one unit of each statistic."""
_THROUGHPUTS = ("throughput", "train_throughput", "samples_per_second", "train_samples_per_second")
_NO_TRAINING = re.compile(r"valid|eval|warm|init")
MAX_RECORDS = 5_000_000


def recognises(source: Source) -> bool:
    """A line of the head carries the mark and a JSON object."""
    return re.search(rb":::MLLOG\s*\{", source.head) is not None


def read(sources: Sequence[Source]) -> RunData:
    """One run's log; what has no step times beside it (logs of other ranks) is left out.

    Raises:
        SeveralJobsError: the logs are of several runs.
        InputError: no step times.
    """
    logs = [(source, _read_log(source)) for source in sources]
    told = [(source, log, series) for source, log in logs if (series := _series(log)) is not None]
    if not told:
        raise InputError(
            f"{sources[0].name} tells no step times: neither train_step_time or throughput among its tracked_stats "
            "nor lines with step numbers"
        )
    if len(told) > 1:
        raise SeveralJobsError(
            f"{len(told)} logs with step times ({', '.join(s.base for s, _, _ in told[:3])}, ...) are several runs: "
            "name one of them",
            each_its_own([source for source, _, _ in told]),
        )
    source, log, series = told[0]
    run = run_of(
        NAME,
        [source],
        ranks=(job_rank(per_record=series.per_record, detail=log.facts),),
        steps=series.steps,
        columns={"dur_us": series.durations_us[None, :]},
        timing=JOB,
        unavailable=(("time per rank", "the log holds one series for the whole job"),),
        events=events_frame(log.evaluations(series.steps), events.EVALUATION),
    )
    begun = f"; the latest of {log.starts} runs in the log" if log.starts > 1 else ""
    return noted(run, f"step times {series.origin}{begun}")


@dataclass
class _Log:
    """What was read, in order: (time in ms, step or NaN, value) of each kind of record of the latest attempt."""

    batch: float = math.nan
    facts: dict[str, object] = field(default_factory=dict)
    times: list[tuple[float, float]] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    stamps: list[tuple[float, float]] = field(default_factory=list)
    evals: list[tuple[float, float]] = field(default_factory=list)
    eval_after: list[int] = field(default_factory=list)
    began: float = math.nan
    starts: int = 0

    def restart(self, now: float) -> None:
        """A new run began in the same file: what came before was given up."""
        self.starts += 1
        if self.starts > 1 and (self.times or self.rates or self.stamps):
            for records in (self.times, self.rates, self.stamps, self.evals, self.eval_after):
                records.clear()
        self.began = now

    def evaluations(self, steps: NDArray[np.int64]) -> list[tuple[int, float]]:
        """(step, microseconds) of each evaluation: the step before it."""
        return [
            (int(steps[min(max(after, 1), len(steps)) - 1]), 1e3 * (stop - start))
            for (start, stop), after in zip(self.evals, self.eval_after, strict=True)
            if stop > start
        ]


def _read_log(source: Source) -> _Log:
    log = _Log()
    eval_start = math.nan
    for line in source.text_lines():
        _, mark, text = line.partition(_MARK)
        record = _json(text) if mark else None
        if record is None:
            continue
        key, now = record.get("key"), _number(record.get("time_ms"))
        if key == "run_start":
            log.restart(now)
        elif key == "eval_start":
            eval_start = now
        elif key == "eval_stop" and now > eval_start:
            log.evals.append((eval_start, now))
            log.eval_after.append(max(len(log.times), len(log.rates), len(log.stamps)))
            eval_start = math.nan
        elif key == "global_batch_size":
            log.batch = _number(record.get("value"))
        elif key in ("submission_benchmark", "submission_org", "submission_platform"):
            log.facts[str(key).removeprefix("submission_")] = str(record.get("value"))[:200]
        else:
            _statistics(log, record, now)
        if len(log.times) + len(log.rates) + len(log.stamps) > MAX_RECORDS:
            raise InputError(f"{source.name} holds more than {MAX_RECORDS} records")
    return log


def _json(text: str) -> Mapping[str, object] | None:
    """A line's object; None for a line that is cut off or no object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _statistics(log: _Log, record: Mapping[str, object], now: float) -> None:
    value, metadata = record.get("value"), record.get("metadata")
    about = metadata if isinstance(metadata, dict) else {}
    values = value if isinstance(value, dict) else {str(record.get("key")): value}
    step = next((s for s in (_number(about.get(k)) for k in ("step", "step_num", "samples_count")) if s == s), math.nan)
    if step != step:
        step = _number(values.get("step"))
    time = next((_number(values[name]) * unit for name, unit in _STEP_TIMES.items() if name in values), math.nan)
    rate = next((_number(values[name]) for name in _THROUGHPUTS if name in values), math.nan)
    if time > 0:
        log.times.append((step, time))
    elif rate > 0:
        log.rates.append((step, rate))
    elif step == step and now == now and value is not None and not any(_NO_TRAINING.search(n) for n in values):
        log.stamps.append((step, now))


def _number(value: object) -> float:
    """A finite number, else NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _series(log: _Log) -> JobSeries | None:
    """Step times from the most direct source that the log has."""
    makers: tuple[Callable[[_Log], JobSeries | None], ...] = (_from_times, _from_rates, _from_stamps)
    return next((series for make in makers if (series := make(log)) is not None), None)


def _from_times(log: _Log) -> JobSeries | None:
    if not log.times:
        return None
    steps, times = np.array(log.times, np.float64).T
    return JobSeries(_numbered(steps, log.batch), times, "as logged for each step")


def _from_rates(log: _Log) -> JobSeries | None:
    if not log.rates or not log.batch > 0:
        return None
    steps, rates = np.array(log.rates, np.float64).T
    return JobSeries(
        _numbered(steps, log.batch),
        1e6 * log.batch / rates,
        origin="batch size by throughput: means over several steps",
    )


def _from_stamps(log: _Log) -> JobSeries | None:
    """Time between lines with rising step numbers, by the steps between them; evaluations in between taken out."""
    frame = pd.DataFrame(log.stamps, columns=["step", "now"]).drop_duplicates("step", keep="first")
    rising = frame[frame["step"] > frame["step"].cummax().shift(fill_value=-np.inf)]
    if len(rising) < 3:
        return None
    steps, now = rising["step"].to_numpy(np.float64), rising["now"].to_numpy(np.float64)
    numbers = _numbered(steps, log.batch)
    begins, ends = now[:-1], now[1:]
    paused = np.zeros(len(begins))
    for start, stop in log.evals:
        paused += np.clip(np.minimum(ends, stop) - np.maximum(begins, start), 0.0, None)
    each = np.maximum(np.diff(numbers), 1)
    spent = (ends - begins - paused) / each
    usable = spent > 0
    if not usable.any():
        return None
    return JobSeries(numbers[1:][usable], 1e3 * spent[usable], "from the time stamps of the lines")


def _numbered(steps: NDArray[np.float64], batch: float) -> NDArray[np.int64]:
    """Step numbers from 0: as logged, or samples by batch size; counted when neither makes sense."""
    counted = np.arange(len(steps), dtype=np.int64)
    if np.isnan(steps).any() or np.abs(steps).max(initial=0.0) > 2**53 or (np.diff(steps) <= 0).any():
        return counted
    by_batch = steps / batch if batch > 1 else steps
    whole = np.abs(by_batch - np.rint(by_batch)).max(initial=0.0) < 1e-6
    in_samples = whole and batch > 1 and (len(steps) < 2 or np.diff(steps).min() >= batch)
    numbers = np.rint(by_batch if in_samples else steps).astype(np.int64)
    if (np.diff(numbers) <= 0).any():
        return counted
    return numbers - 1 if in_samples else numbers
