"""Runs as the regression takes them: log times, membership of nodes, and what must be alike to be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class RunOn:
    """One run.

    Attributes:
        name: of the run.
        seconds: of a step, or of the run where all did the same work.
        nodes: that it ran on.
        group: runs are compared with those of the same group only (job, model, number of ranks).
    """

    name: str
    seconds: float
    nodes: frozenset[str]
    group: str = ""


@dataclass(frozen=True)
class Design:
    """The runs as arrays; nodes that always ran together are one unit.

    Attributes:
        log_s: natural logarithm of the times, shape (n,).
        strata: group of each run, shape (n,), from 0 on.
        units: the nodes of each unit.
        member: whether a unit took part, shape (n, m).
        constant: units that no comparable run was without, or that only one unit's runs tell: nothing to compare.
    """

    log_s: Floats
    strata: Ints
    units: tuple[tuple[str, ...], ...]
    member: Floats
    constant: tuple[tuple[str, ...], ...]


def design_of(runs: Sequence[RunOn]) -> Design:
    """Arrays of the runs; groups of a single run are left out, as they have nothing to be compared with."""
    keys = [(run.group, len(run.nodes)) for run in runs]
    often = {key for key, count in Counter(keys).items() if count > 1}
    kept = [run for run, key in zip(runs, keys, strict=True) if key in often]
    order = {key: i for i, key in enumerate(sorted(often))}
    strata = np.array([order[(run.group, len(run.nodes))] for run in kept], np.int64)
    names = sorted({node for run in kept for node in run.nodes})
    index = {name: i for i, name in enumerate(names)}
    member = np.zeros((len(kept), len(names)))
    for i, run in enumerate(kept):
        member[i, [index[node] for node in run.nodes]] = 1.0
    units: dict[bytes, list[int]] = {}
    constant: list[tuple[str, ...]] = []
    for column, name in enumerate(names):
        if _varies(member[:, column], strata):
            units.setdefault(member[:, column].tobytes(), []).append(column)
        else:
            constant.append((name,))
    columns = [found[0] for found in units.values()]
    return Design(
        log_s=np.log(np.array([run.seconds for run in kept])),
        strata=strata,
        units=tuple(tuple(names[c] for c in found) for found in units.values()),
        member=member[:, columns],
        constant=tuple(constant),
    )


def _varies(column: Floats, strata: Ints) -> bool:
    """Some group has runs with and without it."""
    size = np.bincount(strata)
    with_it = np.bincount(strata, column)
    return bool(((with_it > 0) & (with_it < size)).any())


def dummies(strata: Ints) -> Floats:
    """A column per group, shape (n, g)."""
    columns: Floats = (strata[:, None] == np.unique(strata)[None, :]).astype(np.float64)
    return columns
