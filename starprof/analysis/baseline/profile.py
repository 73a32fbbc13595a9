"""What a step of a run consists of: the few numbers that are kept of it to compare another run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.analysis.own_time import PHASES, SPECIAL, OwnTime, own_time
from starprof.analysis.settings import DEFAULT, Settings
from starprof.model.rundata import STEPS_PER_RECORD, WORLD_SIZE, RunData

COMMUNICATION, WAITING = "communication", "waiting"
TRIMMED = 0.05
"""Share of the longest steps that is left out: single stalls are findings of their own."""
BLOCKS = 8
"""Means of so many stretches tell how sure the mean is, also where steps are alike for a while."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A run in short.

    Attributes:
        name: of the run.
        kind: what its times are: source format and timing; only the same can be compared.
        unit: 0 when times are microseconds, else what they are multiples of.
        ranks: rows of step records.
        world: ranks of the whole job.
        first_step: of those looked at.
        steps: how many were looked at.
        step_us: mean step time of the job, without its longest steps.
        error: standard error of it, as a share.
        parts: mean microseconds per step of what was measured: the phases of the median rank, what is done now and
            then, `communication` (what even the last rank to arrive is in collectives) and `waiting` (for the last).
        load: samples or tokens of a rank per step; NaN when not told.
        on_gpu: the phases are the GPUs' own times.
    """

    name: str
    kind: tuple[str, str]
    unit: float
    ranks: int
    world: int
    first_step: int
    steps: int
    step_us: float
    error: float
    parts: Mapping[str, float]
    load: float
    on_gpu: bool


def profile_of(run: RunData, settings: Settings = DEFAULT) -> Profile | None:
    """The run's profile; None when it has too few steps with times."""
    own = own_time(run, settings)
    step_us = _of_operations(run) if own is None else _job_steps(own)
    if len(step_us) < settings.min_steps:
        return None
    kept = step_us <= np.quantile(step_us, 1.0 - TRIMMED)
    mean = float(step_us[kept].mean())
    if not mean > 0:
        return None
    details = [info.detail for info in run.ranks]
    sizes = [int(d[WORLD_SIZE]) for d in details if d.get(WORLD_SIZE)]
    units = [float(d.get("scale") or 1.0) for d in details if d.get("unit") == "arbitrary"]
    per_record = max([int(d.get(STEPS_PER_RECORD) or 1) for d in details], default=1)
    return Profile(
        name=str(run.info.get("name") or run.info.get("file") or ""),
        kind=(str(run.info.get("source_format") or ""), str(run.info.get("timing") or "")),
        unit=units[0] if units else 0.0,
        ranks=len(run.ranks) if own is None else own.shape[0],
        world=max([len(run.ranks), *sizes]),
        first_step=0 if own is None else own.first_step,
        steps=len(step_us) * per_record,
        step_us=mean,
        error=_error(step_us[kept]) / mean,
        parts={} if own is None else _parts(run, own, kept),
        load=np.nan if own is None else _load(run, own),
        on_gpu=own is not None and own.on_gpu,
    )


def _job_steps(own: OwnTime) -> Floats:
    """Step time of the job: the last rank's own time and the transfer, shape (S,)."""
    return own.job_us


def _of_operations(run: RunData) -> Floats:
    """From the first start to the last end of each step, where the source tells operations only."""
    frame = run.operations
    if frame is None or not len(frame):
        return np.zeros(0)
    ends = (frame["start_us"] + frame["dur_us"]).groupby(frame["step"]).max()
    lasting: Floats = (ends - frame.groupby("step")["start_us"].min()).to_numpy(np.float64)
    return lasting[np.isfinite(lasting)]


def _parts(run: RunData, own: OwnTime, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> dict[str, float]:
    """Mean of each part over the kept steps; what was never measured is left out."""
    parts: dict[str, float] = {}
    for name in (*PHASES, *SPECIAL):
        if name != "unaccounted" and not _measured(run, own, f"{name}_us"):
            continue
        values = own.phases[name] if name in own.phases else own.special[name]
        middle = np.nanmedian(values, axis=0) if name in own.phases else np.nanmax(values, axis=0)
        parts[name] = float(middle[kept].mean())
    if _measured(run, own, "blocked_us"):
        parts[COMMUNICATION] = float(own.transfer[kept].mean())
        late = np.nanmax(own.work, axis=0) - np.nanmedian(own.work, axis=0)
        parts[WAITING] = float(late[kept].mean())
    return parts


def _measured(run: RunData, own: OwnTime, column: str) -> bool:
    values = run.steps.columns.get(column)
    return values is not None and bool(np.isfinite(values[own.rows]).any())


def _load(run: RunData, own: OwnTime) -> float:
    for column in ("tokens", "samples"):
        values = run.steps.columns.get(column)
        if values is not None and np.isfinite(values[own.rows]).any():
            return float(np.nanmean(values[own.rows]))
    return float("nan")


def _error(values: Floats) -> float:
    """Standard error of the mean, from the means of a few stretches where there are enough steps."""
    if len(values) < 2 * BLOCKS:
        return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float(values[0])
    means = np.array([block.mean() for block in np.array_split(values, BLOCKS)])
    return float(means.std(ddof=1) / np.sqrt(BLOCKS))
