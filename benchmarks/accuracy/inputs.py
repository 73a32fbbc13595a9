"""Short ways to make an input: files as somebody would have them, step series, ranks that wait for each other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from truth import Truth

from starprof.importers.base import JOB, WALL, run_of
from starprof.importers.load import load
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo, RunData

Floats = NDArray[np.float64]
Report = tuple[Callable[[], RunData], Truth]
"""A reported fault: what makes the input, and the right answer."""

HERE = [Source("generated", Path(__file__))]


def files(**contents: str) -> RunData:
    """Files of one folder, as `starprof analyze FOLDER` reads them; `__` in a name stands for a dot."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            (Path(folder) / name.replace("__", ".")).write_text(content)
        return load([folder])


def job_series(seconds: Floats, first_step: int = 0, data_s: Floats | None = None, **sizes: Floats) -> RunData:
    """One series of step times for the whole job, shape (S,), as a log has it."""
    columns = {"dur_us": seconds[None] * 1e6, **{name: values[None] for name, values in sizes.items()}}
    if data_s is not None:
        columns["data_wait_us"] = data_s[None] * 1e6
    steps = range(first_step, first_step + len(seconds))
    return run_of("generated", HERE, ranks=[RankInfo(0, 0, "")], steps=steps, columns=columns, timing=JOB)


def wall_times(run: RunData) -> RunData:
    """The same run where each rank's whole steps were timed and nothing else."""
    columns = {"dur_us": run.steps["dur_us"]}
    return run_of("generated", HERE, ranks=run.ranks, steps=run.steps.steps, columns=columns, timing=WALL)


def waiting_for_each_other(
    phases_us: Mapping[str, Floats], transfer_us: float = 2_000.0, hosts: Mapping[int, str] | None = None
) -> RunData:
    """Ranks that wait for the last one in every step.

    Args:
        phases_us: time per phase, shape (R, S) each.
        transfer_us: what the reduction itself takes.
        hosts: machine per rank; all on one when not told.
    """
    own = np.sum(list(phases_us.values()), axis=0)
    longest = own.max(axis=0) + transfer_us
    columns = {f"{name}_us": values for name, values in phases_us.items()}
    columns |= {"dur_us": np.broadcast_to(longest, own.shape).copy(), "blocked_us": longest - own}
    names = sorted(set(hosts.values())) if hosts else ["host"]
    ranks = [
        RankInfo(i, names.index(hosts[i] if hosts else "host"), hosts[i] if hosts else "host") for i in range(len(own))
    ]
    return run_of("generated", HERE, ranks=ranks, steps=range(own.shape[1]), columns=columns)


def noisy(shape: tuple[int, int], level: float, cv: float = 0.01, seed: int = 0) -> Floats:
    """Values that scatter around a level."""
    return level * (1.0 + cv * np.random.default_rng(seed).standard_normal(shape))


def with_columns(run: RunData, **columns: Floats) -> RunData:
    """The run with other step columns beside those that it has, shape (R, S) each."""
    return replace(run, steps=replace(run.steps, columns={**run.steps.columns, **columns}))


def with_samples(run: RunData, **frames: pd.DataFrame) -> RunData:
    """The run with some tables exchanged."""
    return replace(run, samples={**run.samples, **frames})
