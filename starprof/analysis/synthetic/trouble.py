"""Faults that show in any sampled counter, and counters that are odd without any fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic.faults import window
from starprof.analysis.synthetic.gauges import Gauge, blended, response
from starprof.model.columns import Kind
from starprof.model.schema import BY_NAME

if TYPE_CHECKING:
    import pandas as pd

    from starprof.analysis.arrays import Bools, Floats, Ints
    from starprof.analysis.synthetic.run import SyntheticRun
    from starprof.analysis.synthetic.sampling import Sampling

GPU_ID_0 = 40
"""Id of rank 0's GPU in the dictionary; rank r has GPU_ID_0 + r."""

OF_RANK = {
    "process_sample": ("rank", 0),
    "tcp_sample": ("rank", 0),
    "cgroup_sample": ("cgroup", 1),
    "gpu_sample": ("gpu", GPU_ID_0),
}
"""Tables whose rows belong to a rank, the key that tells which, and what that is for rank 0."""

Spells = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Trouble:
    """Ranks that lose time, and what their devices' counters show meanwhile; without `adds` a mere oddity.

    Attributes:
        on: whose time and counters change.
        adds: per phase (or `transfer`) the time added per step, microseconds.
        shows: per `table.column` the value that a gauge has meanwhile, or how it gets there.
        grows: per `table.column` what a counter grows by per second meanwhile.
        stops: `table.column` of counters that stand still meanwhile. `nic_sample#2.tx_bytes` means interface 2 only.
        start: first step of it.
        end: first step no longer hit; None = to the end.
        share: random share of the steps that lose time.
        rotating: one random rank per step loses the time instead of all.
        counts: per `table.column` what a counter of lost time grows by per microsecond that the rank loses.
        records: per column of the step records the mean of what is counted in each hit step.
        spells: stretches [first, end) of those steps in which it is on; empty = all of them.
        bursts: how unevenly counters grow, as the deviation of a step's growth over its mean.
    """

    on: tuple[int, ...]
    adds: Mapping[str, float] = field(default_factory=dict)
    shows: Mapping[str, float | Gauge] = field(default_factory=dict)
    grows: Mapping[str, float] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    start: int = 0
    end: int | None = None
    share: float = 1.0
    rotating: bool = False
    counts: Mapping[str, float] = field(default_factory=dict)
    records: Mapping[str, float] = field(default_factory=dict)
    spells: Spells = ()
    bursts: float = 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whom it hits."""
        return self.on

    def active(self, steps: int) -> Bools:
        """Steps in which it is on, shape (S,)."""
        inside = window(steps, self.start, self.end)
        if not self.spells:
            return inside
        on: Bools = inside & np.any([window(steps, *spell) for spell in self.spells], axis=0)
        return on

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        ranks, steps = phases["forward"].shape
        weight: Floats = self.active(steps) * np.asarray(rng.normal(1.0, 0.05, steps))
        weight *= rng.random(steps) < self.share
        hit = np.zeros((ranks, steps))
        if self.rotating:
            hit[np.asarray(self.on)[rng.integers(len(self.on), size=steps)], np.arange(steps)] = 1.0
        else:
            hit[list(self.on)] = 1.0
        return {name: us * weight * (1.0 if name == "transfer" else hit) for name, us in self.adds.items()}

    def note(self, columns: Mapping[str, Floats], part: Mapping[str, Floats], rng: np.random.Generator) -> None:
        """Write what the step records count into their columns, shape (R, S) each."""
        lost = _lost_us(part)
        for name, mean in self.records.items():
            counted = np.maximum(1.0, rng.poisson(mean, lost.shape))
            columns[name][lost > 0] = counted[lost > 0]

    def show(
        self,
        run: SyntheticRun,
        frames: Mapping[str, pd.DataFrame],
        sampling: Sampling,
        part: Mapping[str, Floats],
        rng: np.random.Generator,
    ) -> None:
        """Write what the counters show into a run's frames."""
        active, edges_ns = self.active(run.steps), sampling.edges_ns
        for name in self.stops:
            frame, column, of_device = _place(run, frames, name, self.on)
            for rows in frame[of_device].groupby([c for c in ("node", "nic", "gpu") if c in frame]).groups.values():
                frame.loc[rows, column] = _held(frame.loc[rows], column, active, edges_ns)
        for name, per_us in self.counts.items():
            self._count(run, frames, sampling, name, per_us * _lost_us(part))
        for name, value in (*self.shows.items(), *self.grows.items()):
            frame, column, of_device = _place(run, frames, name, self.on)
            times = frame["mono_ns"].to_numpy(np.float64)
            usual = frame[column].to_numpy(np.float64)
            if not isinstance(value, Gauge) and _kind(name) is Kind.COUNTER:
                per_step = value * active * np.diff(edges_ns) / 1e9 * _uneven(rng, run.steps, self.bursts)
                grown = np.rint(np.interp(times, edges_ns, np.r_[0.0, np.cumsum(per_step)]))
                frame[column] = usual + np.where(of_device, grown, 0.0)
            else:
                gauge = value if isinstance(value, Gauge) else Gauge(value)
                level = response(times, edges_ns, active, gauge.lag_s)
                frame[column] = np.where(of_device, blended(usual, level, gauge, rng), usual)

    def _count(
        self, run: SyntheticRun, frames: Mapping[str, pd.DataFrame], sampling: Sampling, name: str, lost_us: Floats
    ) -> None:
        """Add to the counters of ranks, or of their nodes, what was lost until each sample."""
        table, _, column = name.partition(".")
        frame = frames[table]
        times, values = frame["mono_ns"].to_numpy(np.float64), frame[column].to_numpy(np.float64).copy()
        for ranks, rows in _counting(run, frames, name, self.on):
            grown = np.r_[0.0, np.cumsum(lost_us[list(ranks)].sum(axis=0))]
            values[rows] += np.rint(np.interp(times[rows], sampling.edges_ns, grown))
        frame[column] = values


def _counting(
    run: SyntheticRun, frames: Mapping[str, pd.DataFrame], name: str, ranks: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """(ranks, rows that count what these lose): each rank's own process or device, its CPU, else its node."""
    table = name.partition(".")[0]
    if table in OF_RANK:
        key, first = OF_RANK[table]
        rows_of = frames[table].groupby(key).indices
        yield from (((rank,), np.asarray(rows_of[rank + first], dtype=np.int64)) for rank in ranks)
        return
    by_node: dict[int, tuple[int, ...]] = {}
    for rank in ranks:
        node = int(run.node_of[rank])
        by_node[node] = (*by_node.get(node, ()), rank)
    for group in [(rank,) for rank in ranks] if table == "cpu_sample" else by_node.values():
        yield group, np.flatnonzero(_place(run, frames, name, group)[2])


def _lost_us(part: Mapping[str, Floats]) -> Floats:
    """Time that ranks lost per step, all phases, shape (R, S)."""
    lost: Floats = np.sum([values for name, values in part.items() if name != "transfer"], axis=0)
    return lost


def _uneven(rng: np.random.Generator, steps: int, bursts: float) -> Floats:
    """Factors with mean 1 and the given deviation, shape (S,)."""
    if bursts == 0.0:
        return np.ones(steps)
    shape = bursts**-2
    factors: Floats = rng.gamma(shape, 1.0 / shape, steps)
    return factors


def _held(rows: pd.DataFrame, column: str, active: Bools, edges_ns: Floats) -> Floats:
    """A counter that stands still in the active steps."""
    times, values = rows["mono_ns"].to_numpy(np.float64), rows[column].to_numpy(np.float64)
    at_edges = np.interp(edges_ns, times, values)
    kept = np.r_[0.0, np.cumsum(np.where(active, 0.0, np.diff(at_edges)))]
    inside = np.clip(np.searchsorted(edges_ns, times, side="right") - 1, 0, len(active) - 1)
    since = np.where(active[inside], 0.0, values - at_edges[inside])
    return np.asarray(at_edges[0] + kept[inside] + since)


def _kind(name: str) -> Kind:
    table, _, column = name.partition(".")
    return next(c.kind for c in BY_NAME[table.partition("#")[0]].columns if c.name == column)


def _place(
    run: SyntheticRun, frames: Mapping[str, pd.DataFrame], name: str, ranks: tuple[int, ...]
) -> tuple[pd.DataFrame, str, Bools]:
    """(frame, column, rows) that a name means: those of some ranks' process, socket, CPU, GPU, else of their nodes."""
    where, _, column = name.partition(".")
    table, _, device = where.partition("#")
    frame = frames[table]
    here = _in(frame["node"], {int(run.node_of[rank]) for rank in ranks})
    if table == "gpu_sample":
        here &= _in(frame["gpu"], {GPU_ID_0 + rank for rank in ranks})
    elif table in ("process_sample", "tcp_sample"):
        here &= _in(frame["rank"], set(ranks))
    elif table == "cpu_sample":
        here &= _in(frame["cpu"], {rank % run.cores for rank in ranks})
    elif table == "cgroup_sample":
        here &= _in(frame["cgroup"], {1 + rank for rank in ranks})
    elif table == "nic_sample":
        here &= _in(frame["nic"], {int(device or 1)})
    return frame, column, here


def _in(values: pd.Series[int], wanted: set[int]) -> Bools:
    return np.asarray(np.isin(values.to_numpy(np.int64), list(wanted)))
