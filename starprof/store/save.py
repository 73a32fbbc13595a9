"""Writes a `RunData` to a run file: the inverse of `load_run`, for synthetic runs and importers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from starprof.errors import RunFileError
from starprof.model.columns import row
from starprof.model.rundata import RankInfo, RunData, Steps
from starprof.model.schema import BY_NAME
from starprof.model.stepsource import StepSource
from starprof.model.tables.job import ATTEMPT, CLOCK, RANK, RUN, STEP
from starprof.store.runfile import RunFile, arrow_rows, arrow_type
from starprof.store.starts import are_reckoned
from starprof.store.steps import block_edges

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_ONCE = 100_000


def save_run(run: RunData, path: Path) -> None:
    """Write a run to a new file.

    Raises:
        RunFileError: the file exists, or can't be written.
    """
    reckoned = are_reckoned(run.steps.start_mono_ns, run.steps.columns.get("dur_us"))
    parts = (_part(run.steps, start, stop) for start, stop in block_edges(run.steps.steps))
    _save(run, parts, reckoned, path)


def save_steps(source: StepSource, path: Path) -> None:
    """Write a run whose step records need not fit into memory to a new file.

    Raises:
        RunFileError: the file exists, or can't be written.
    """
    reckoned = source.starts(np.zeros(1, np.int64)) is None if len(source.numbers) else False
    parts = (source.raw(start, stop).steps for start, stop in block_edges(source.numbers))
    _save(source.shell, parts, reckoned, path)


def _save(run: RunData, parts: Iterator[Steps], reckoned: bool, path: Path) -> None:
    """Write everything but the run's own step records, and in their place some, part by part."""
    if path.exists():
        raise RunFileError(f"{path} exists: choose another name, or remove it first")
    frames = {"event": run.events, "gap": run.gaps, "unavailable": run.unavailable, "node": run.nodes, **run.samples}
    rare = {
        "operation": run.operations,
        "collective": run.collectives,
        "link_test": run.link_tests,
        "sync_update": run.sync_updates,
        "sync_switch": run.sync_switches,
        "sync_step": run.sync_steps,
        "sync_noise": run.sync_noise,
        "calibration": run.calibrations,
        "advisor_action": run.advisor_actions,
    }
    frames |= {name: frame for name, frame in rare.items() if frame is not None}
    first_node = [i for i, r in enumerate(run.ranks) if r.node == min(info.node for info in run.ranks)]
    started: list[int] = []
    with RunFile.open(path) as file, file.transaction():
        file.append(RUN.name, arrow_rows(RUN.name, [[_plain(run.info.get(name)) for name in RUN.names]]))
        file.append(RANK.name, arrow_rows(RANK.name, [_rank_row(run, rank) for rank in run.ranks]))
        clocks = [
            row(CLOCK, node=node, offset_ns=offset, error_ns=error)
            for node, (offset, error) in run.clock_offset_ns.items()
        ]
        file.append(CLOCK.name, arrow_rows(CLOCK.name, clocks))
        for part in parts:
            own = part.start_mono_ns[first_node]
            started += [int(own[own != 0].min())] if own.any() else []
            for rows in _step_rows(run, part, reckoned):
                file.append(STEP.name, rows)
        begun = min(started, default=None)
        attempt = row(ATTEMPT, attempt=run.attempt, started_mono_ns=begun, world_size=len(run.ranks))
        file.append(ATTEMPT.name, arrow_rows(ATTEMPT.name, [attempt]))
        for name, frame in frames.items():
            if name in BY_NAME and len(frame):
                file.append(name, _frame_rows(name, frame))


def _part(steps: Steps, start: int, stop: int) -> Steps:
    columns = {name: values[:, start:stop] for name, values in steps.columns.items()}
    return Steps(steps.steps[start:stop], columns, steps.start_mono_ns[:, start:stop])


def _rank_row(run: RunData, rank: RankInfo) -> list[object]:
    return row(
        RANK,
        attempt=run.attempt,
        rank=rank.rank,
        node=rank.node,
        local_rank=rank.local_rank,
        world_size=len(run.ranks),
        pid=rank.pid,
        device=rank.device,
        gpu_uuid=rank.gpu_uuid,
        numa_node=rank.numa_node,
        cpus=rank.cpus,
        role_dp=rank.role.get("dp"),
        role_tp=rank.role.get("tp"),
        role_pp=rank.role.get("pp"),
        framework=rank.framework,
        backend=rank.backend,
        torch_version=rank.torch_version,
        detail=json.dumps(dict(rank.detail)) if rank.detail else None,
    )


def _step_rows(run: RunData, steps: Steps, reckoned: bool) -> Iterator[pa.Table]:
    """Step records of one block of steps, rank by rank (see `starprof.store.steps`), in batches."""
    rank_at, step_at = np.nonzero(steps.start_mono_ns)
    for begin in range(0, len(rank_at), _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        yield _rows_at(run, steps, (rank_at[part], step_at[part]), reckoned)


def _rows_at(
    run: RunData, steps: Steps, where: tuple[NDArray[np.int64], NDArray[np.int64]], reckoned: bool
) -> pa.Table:
    """Step records at some places of the matrices."""
    ranks = np.array([r.rank for r in run.ranks], dtype=np.int64)
    columns = {"attempt": np.full(len(where[0]), run.attempt), "rank": ranks[where[0]], "step": steps.steps[where[1]]}
    if not reckoned:
        columns["start_mono_ns"] = steps.start_mono_ns[where]
    for name, matrix in steps.columns.items():
        values = matrix[where]
        missing = np.isnan(values)
        columns[name] = pa.array(np.rint(np.where(missing, 0, values)).astype(np.int64), mask=missing)
    return pa.table(columns)


def _frame_rows(table: str, frame: pd.DataFrame) -> pa.Table:
    """Rows of a frame with the table's types; NaN becomes NULL."""
    columns = {
        c.name: pa.Array.from_pandas(frame[c.name], type=arrow_type(c.type.value))
        for c in BY_NAME[table].columns
        if c.name in frame
    }
    return pa.table(columns)


def _plain(value: object) -> object:
    """A numpy scalar as the Python number that it stands for."""
    return value.item() if isinstance(value, np.generic) else value
