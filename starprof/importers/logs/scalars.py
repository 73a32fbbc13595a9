"""Scalars exported from TensorBoard as CSV (wall time, step, value): step times of the job from the records' stamps.

A run exports a file per tag; the one with most records tells the times best, whatever its values mean. Files of one
folder are of one run when they cover the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starprof.errors import InputError
from starprof.importers.base import JOB, run_of
from starprof.importers.logs.job_log import JobSeries, job_rank, noted
from starprof.importers.parts import SeveralJobsError, by_folder
from starprof.importers.source import Source
from starprof.importers.workers import csv_rows
from starprof.model.rundata import RunData

NAME = "tensorboard-csv"

MIN_RECORDS = 4
MAX_STEP = 2**53

_COLUMNS = {"wall time", "step", "value"}
_RUN_IN_NAME = re.compile(r"(?:^|/)run_(?P<run>.*)-tag-[^/]*$")
_EVALUATED = re.compile(r"eval|valid|test|acc", re.IGNORECASE)


@dataclass(frozen=True)
class _Records:
    """One file: stamps in seconds and steps, both rising, shape (S,)."""

    source: Source
    wall_s: NDArray[np.float64]
    steps: NDArray[np.int64]

    @property
    def span(self) -> tuple[float, float]:
        return float(self.wall_s[0]), float(self.wall_s[-1])

    @property
    def telling(self) -> tuple[bool, int, bool]:
        """Larger is better: no evaluation, more records, stamps with fractions of a second."""
        fine = bool((self.wall_s != np.floor(self.wall_s)).any())
        return not _EVALUATED.search(self.source.base), len(self.steps), fine


def recognises(source: Source) -> bool:
    """The first line names the columns that TensorBoard exports."""
    return {name.lower() for name in csv_rows.header(source.head)} >= _COLUMNS


def read(sources: Sequence[Source]) -> RunData:
    """The scalars of one run.

    Raises:
        SeveralJobsError: they are of several runs.
        InputError: no file has enough records.
    """
    folders = by_folder(sources)
    if len(folders) > 1:
        raise SeveralJobsError(f"scalars of {len(folders)} folders are several runs: name one of them", folders)
    found = [records for source in sources if (records := _records(source)) is not None]
    if not found:
        raise InputError(f"{sources[0].name} has fewer than {MIN_RECORDS} records with a wall time and a rising step")
    runs = _runs(found)
    if len(runs) > 1:
        names = ", ".join(run[0].source.base for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
        parts = [[records.source for records in run] for run in runs]
        raise SeveralJobsError(f"scalars of {len(runs)} runs ({names}): name one of them", parts)
    best = max(found, key=lambda records: records.telling)
    each = np.diff(best.steps)
    lasting = np.diff(best.wall_s) / each
    with np.errstate(over="ignore"):  # what is beyond any time is refused with the run
        times_us = 1e6 * lasting
    series = JobSeries(best.steps[1:], times_us, f"from the stamps of {best.source.base}")
    run = run_of(
        NAME,
        [best.source],
        ranks=(job_rank(series.per_record, {}),),
        steps=series.steps,
        columns={"dur_us": series.durations_us[None, :]},
        timing=JOB,
        unavailable=(
            ("time per rank", "scalars are one series for the whole job"),
            ("evaluations", "what lies between two records counts as their steps, evaluations and saving included"),
        ),
    )
    return noted(run, f"step times {series.origin}")


def _records(source: Source) -> _Records | None:
    """Records whose stamp and step rise; None when too few do."""
    rows: list[tuple[float, float]] = []
    for row in csv_rows.rows(source):
        told = _named(row)
        wall, step = csv_rows.number(told.get("wall time")), csv_rows.number(told.get("step"))
        if wall == wall and 0 <= step <= MAX_STEP and (not rows or (wall > rows[-1][0] and step > rows[-1][1])):
            rows.append((wall, step))
    if len(rows) < MIN_RECORDS:
        return None
    wall_s, steps = np.array(rows, np.float64).T
    numbers = np.rint(steps).astype(np.int64)
    return _Records(source, wall_s, numbers) if (np.diff(numbers) > 0).all() else None


def _named(row: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in row.items()}


def _runs(found: Sequence[_Records]) -> list[list[_Records]]:
    """Files by the run in their names, else by the time that they cover."""
    named: dict[str, list[_Records]] = {}
    for records in found:
        told = _RUN_IN_NAME.search(records.source.base)
        named.setdefault(told["run"] if told else "", []).append(records)
    return [run for same in named.values() for run in _overlapping(same)]


def _overlapping(found: Sequence[_Records]) -> list[list[_Records]]:
    runs: list[list[_Records]] = []
    end = -np.inf
    for records in sorted(found, key=lambda r: r.span):
        if records.span[0] > end:
            runs.append([])
        runs[-1].append(records)
        end = max(end, records.span[1])
    return runs
