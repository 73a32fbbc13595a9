"""What the importers of logs share: one series for the whole job, its events, and its single row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.model.columns import row
from starprof.model.rundata import STEPS_PER_RECORD, RankInfo, RunData
from starprof.model.tables.job import EVENT


@dataclass(frozen=True)
class JobSeries:
    """Step times of a job.

    Attributes:
        steps: number of each record's (last) step, rising, shape (S,).
        durations_us: microseconds per step, shape (S,).
        origin: where the times come from, in words.
        columns: further columns of table `step`, shape (S,) each.
    """

    steps: NDArray[np.int64]
    durations_us: NDArray[np.float64]
    origin: str
    columns: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def per_record(self) -> int:
        """Steps that most records stand for: the usual distance of their numbers."""
        return usual_distance(self.steps)


def usual_distance(steps: NDArray[np.int64]) -> int:
    """The most frequent distance between step numbers, 1 when there is no other."""
    if len(steps) < 2:
        return 1
    distances, counts = np.unique(np.diff(steps), return_counts=True)
    return max(1, int(distances[np.argmax(counts)]))


def job_rank(per_record: int, detail: Mapping[str, object], world_size: int | None = None) -> RankInfo:
    """The one row of a job-level series, which is no rank of its own.

    Args:
        per_record: steps that one record is the mean of.
        detail: facts of the log to keep.
        world_size: ranks of the job, None when not told.
    """
    kept = dict(detail)
    if per_record > 1:
        kept[STEPS_PER_RECORD] = per_record
    if world_size is not None:
        kept["world_size"] = world_size
    return RankInfo(rank=0, node=0, host="", detail=kept)


def noted(run: RunData, note: str) -> RunData:
    """The run with a line that is shown beside its verdict."""
    return replace(run, info={**run.info, "note": note})


def events_frame(found: Iterable[tuple[int, float | None]], kind: str) -> pd.DataFrame:
    """Rows of table `event` for one kind: (step, value)."""
    rows = [row(EVENT, attempt=0, step=step, kind=kind, value=value) for step, value in found]
    return pd.DataFrame(rows, columns=list(EVENT.names))
