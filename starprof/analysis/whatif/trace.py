"""The operations of a run as arrays: steps that share a schedule side by side.

All steps of a job run the same operations in the same order. One such schedule is N operations, and what was measured
of them is N x S matrices, so that everything after this is vectorised over steps. Steps that lack operations, or have
other ones, make schedules of their own; those that are only part of a step are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from starprof.analysis.arrays import Floats, Ints
from starprof.analysis.whatif.roles import Role, role_of
from starprof.model.rundata import RunData

MAX_SCHEDULES = 32
NONE = -1


@dataclass(frozen=True)
class Workers:
    """Who is in the trace, one entry per rank: its global number and its place.

    Attributes:
        rank: global rank, shape (R,).
        dp: data-parallel position, shape (R,).
        pp: pipeline stage, shape (R,).
    """

    rank: Ints
    dp: Ints
    pp: Ints

    @property
    def pipelines(self) -> int:
        """Data-parallel size."""
        return int(self.dp.max()) + 1

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return int(self.pp.max()) + 1


@dataclass(frozen=True)
class Schedule:
    """Steps that run the same operations.

    Attributes:
        steps: step numbers, shape (S,).
        worker: row in `Workers` of each operation, shape (N,).
        kind: index of its name in `OpTrace.names`, shape (N,).
        micro_batch, chunk, number: what the trace says of it, -1 where nothing; `number` counts the operations of
            a kind on a rank.
        start_us, dur_us: measured, shape (N, S).
    """

    steps: Ints
    worker: Ints
    kind: Ints
    micro_batch: Ints
    chunk: Ints
    number: Ints
    start_us: Floats
    dur_us: Floats


@dataclass(frozen=True)
class OpTrace:
    """A run's operations.

    Attributes:
        names: operation names.
        roles: their roles.
        workers: who ran them.
        schedules: most steps first.
        left_out: steps that are only parts of a step.
    """

    names: tuple[str, ...]
    roles: tuple[Role, ...]
    workers: Workers
    schedules: tuple[Schedule, ...]
    left_out: int


def op_trace(run: RunData) -> OpTrace | None:
    """The operations of a run as arrays; None when it has none, or no forward and backward passes."""
    frame = run.operations
    if frame is None or len(frame) == 0 or not run.ranks:
        return None
    kind, names = _factorised(frame["name"])
    roles = tuple(role_of(name) for name in names)
    if not {Role.FORWARD, Role.BACKWARD} <= set(roles):
        return None
    numbers = np.array([info.rank for info in run.ranks], np.int64)
    rank = frame["rank"].to_numpy(np.int64)
    worker = np.minimum(np.searchsorted(numbers, rank), len(numbers) - 1)
    known = (numbers[worker] == rank) & (frame["dur_us"].to_numpy(np.float64) >= 0)
    columns = {
        "step": _small(frame["step"].to_numpy()),
        "worker": _small(worker),
        "kind": _small(kind),
        "start": frame["start_us"].to_numpy(np.float64),
        "dur": frame["dur_us"].to_numpy(np.float64),
        **{c: _whole(frame[c]) for c in ("micro_batch", "chunk", "sequence")},
    }
    if not known.all():
        columns = {name: values[known] for name, values in columns.items()}
    if not known.any() or np.isnan(columns["start"]).any():
        return None
    schedules, left_out = _schedules(columns)
    workers = Workers(
        numbers,
        np.array([info.role.get("dp", row) for row, info in enumerate(run.ranks)], np.int64),
        np.array([info.role.get("pp", 0) for info in run.ranks], np.int64),
    )
    return OpTrace(names, roles, workers, schedules, left_out)


def _factorised(column: pd.Series[str]) -> tuple[Ints, tuple[str, ...]]:
    codes, names = pd.factorize(column)
    return codes.astype(np.int64), tuple(str(name) for name in names)


def _whole(column: pd.Series[float]) -> Ints:
    values = column.to_numpy()
    return _small(np.where(np.isnan(values), NONE, values) if values.dtype.kind == "f" else values)


def _small(values: NDArray[Any]) -> Ints:
    """Whole numbers in half of the memory, where they allow it."""
    fits = len(values) == 0 or (values.min() >= np.iinfo(np.int32).min and values.max() <= np.iinfo(np.int32).max)
    return values.astype(np.int32 if fits else np.int64)


def _schedules(c: dict[str, Ints]) -> tuple[tuple[Schedule, ...], int]:
    """Steps grouped by the operations that they have, most steps first, and how many are left out."""
    numbered = c["sequence"] >= 0
    c["number"] = c["sequence"] if numbered.all() else np.where(numbered, c["sequence"], _counted(c))
    order = _sorted_by([c[name] for name in ("step", "worker", "kind", "number", "chunk")])
    c = {name: values[order] for name, values in c.items() if name != "sequence"}
    steps, first, size = np.unique(c["step"].astype(np.int64), return_index=True, return_counts=True)
    keys = [c[name] for name in ("worker", "kind", "number", "chunk", "micro_batch")]
    signature = np.add.reduceat(_mixed(keys), first)
    groups = sorted(_alike(keys, first, size, signature), key=lambda rows: (-len(rows), int(rows[0])))
    pairs = [_pairs(keys, int(first[rows[0]]), int(size[rows[0]])) for rows in groups]
    kept = [rows for rows, seen in zip(groups, pairs, strict=True) if np.array_equal(seen, pairs[0])][:MAX_SCHEDULES]
    made = tuple(_schedule(c, steps[rows], first[rows], int(size[rows[0]])) for rows in kept)
    return made, len(steps) - sum(len(rows) for rows in kept)


def _sorted_by(keys: Sequence[Ints]) -> Ints:
    """Order of rows by several whole numbers, the first one first; one sort where they fit into one number."""
    key = np.zeros(len(keys[0]), np.int64)
    room = 2**62
    for values in keys:
        low, high = int(values.min()), int(values.max())
        room //= high - low + 1
        if room < 1:
            return np.lexsort(tuple(reversed(keys)))
        key = key * (high - low + 1) + (values.astype(np.int64) - low)
    return np.argsort(key, kind="stable")


def _counted(c: dict[str, Ints]) -> Ints:
    """Number of each operation among those of its kind on its rank in its step, by start."""
    order = np.lexsort((c["start"], c["kind"], c["worker"], c["step"]))
    keys = np.stack([c[name][order] for name in ("step", "worker", "kind")])
    begins = np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]
    place = np.arange(len(order))
    counted = np.empty(len(order), np.int64)
    counted[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return counted


def _mixed(keys: Sequence[Ints]) -> Ints:
    """A number per row of keys that differs for different keys, in all likelihood."""
    mixed = np.zeros(len(keys[0]), np.int64)
    with np.errstate(over="ignore"):
        for values in keys:
            mixed = (mixed ^ values) * np.int64(-7046029254386353131)
            mixed ^= mixed >> np.int64(29)
    return mixed


def _alike(keys: Sequence[Ints], first: Ints, size: Ints, signature: Ints) -> Iterator[Ints]:
    """Rows of steps whose operations are the same ones."""
    _, group = np.unique(np.stack([size, signature]), axis=1, return_inverse=True)
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        model = [values[first[rows[0]] :][: size[rows[0]]] for values in keys]
        same = [row for row in rows if _equal(model, [values[first[row] :][: size[row]] for values in keys])]
        yield np.array(same, np.int64)


def _equal(one: Sequence[Ints], other: Sequence[Ints]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _pairs(keys: Sequence[Ints], first: int, size: int) -> Ints:
    """Which kinds of operations each worker has: what a whole step has all of."""
    worker, kind = (values[first : first + size].astype(np.int64) for values in keys[:2])
    return np.unique(worker * (int(keys[1].max()) + 1) + kind)


def _schedule(c: dict[str, Ints], steps: Ints, first: Ints, size: int) -> Schedule:
    rows = first[:, None] + np.arange(size)
    model = rows[0]
    return Schedule(
        steps=steps,
        worker=c["worker"][model].astype(np.int64),
        kind=c["kind"][model].astype(np.int64),
        micro_batch=c["micro_batch"][model].astype(np.int64),
        chunk=c["chunk"][model].astype(np.int64),
        number=c["number"][model].astype(np.int64),
        start_us=np.ascontiguousarray(c["start"][rows].T, dtype=np.float64),
        dur_us=np.ascontiguousarray(c["dur"][rows].T, dtype=np.float64),
    )
