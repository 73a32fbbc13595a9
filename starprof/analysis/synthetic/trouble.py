"""Faults that show in any sampled counter, and counters that are odd without any fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.synthetic.faults import window
from starprof.model.columns import Kind
from starprof.model.schema import BY_NAME

if TYPE_CHECKING:
    import pandas as pd

    from starprof.analysis.arrays import Bools, Floats
    from starprof.analysis.synthetic.run import SyntheticRun

GPU_ID_0 = 40
"""Id of rank 0's GPU in the dictionary; rank r has GPU_ID_0 + r."""


@dataclass(frozen=True)
class Trouble:
    """Ranks that lose time, and what their devices' counters show meanwhile; without `adds` a mere oddity.

    Attributes:
        ranks: whose time and counters change.
        adds: per phase (or `transfer`) the time added per step, microseconds.
        shows: per `table.column` the value that a gauge has meanwhile.
        grows: per `table.column` what a counter grows by per second meanwhile.
        stops: `table.column` of counters that stand still meanwhile. `nic_sample#2.tx_bytes` means interface 2 only.
        start: first step of it.
        end: first step no longer hit; None = to the end.
        share: random share of the steps that lose time.
        rotating: one random rank per step loses the time instead of all.
    """

    on: tuple[int, ...]
    adds: Mapping[str, float] = field(default_factory=dict)
    shows: Mapping[str, float] = field(default_factory=dict)
    grows: Mapping[str, float] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    start: int = 0
    end: int | None = None
    share: float = 1.0
    rotating: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whom it hits."""
        return self.on

    def excess_us(self, phases: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, Floats]:
        """See `Fault`."""
        ranks, steps = phases["forward"].shape
        weight: Floats = window(steps, self.start, self.end) * np.asarray(rng.normal(1.0, 0.05, steps))
        weight *= rng.random(steps) < self.share
        hit = np.zeros((ranks, steps))
        if self.rotating:
            hit[np.asarray(self.on)[rng.integers(len(self.on), size=steps)], np.arange(steps)] = 1.0
        else:
            hit[list(self.on)] = 1.0
        return {name: us * weight * (1.0 if name == "transfer" else hit) for name, us in self.adds.items()}

    def show(self, run: SyntheticRun, frames: Mapping[str, pd.DataFrame], edges_ns: Floats) -> None:
        """Write what the counters show into a run's frames."""
        first = edges_ns[self.start]
        last = edges_ns[run.steps if self.end is None else self.end]
        for name in self.stops:
            frame, column, of_device = _place(run, frames, name, self.on)
            for rows in frame[of_device].groupby([c for c in ("node", "nic", "gpu") if c in frame]).groups.values():
                times, values = frame.loc[rows, "mono_ns"], frame.loc[rows, column].astype(np.float64)
                held = np.interp([first, last], times, values)
                moved = np.where(times <= first, values, np.where(times <= last, held[0], values - held[1] + held[0]))
                frame.loc[rows, column] = moved
        for name, value in (*self.shows.items(), *self.grows.items()):
            frame, column, of_device = _place(run, frames, name, self.on)
            times = frame["mono_ns"].to_numpy(np.float64)
            if _kind(name) is Kind.COUNTER:
                until = np.clip(times - first, 0.0, last - first) / 1e9
                grown = np.where(of_device, np.rint(value * until), 0.0)
                frame[column] = frame[column].astype(np.float64) + grown
            else:
                frame.loc[(times >= first) & (times <= last) & of_device, column] = value


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
    here = frame["node"].isin({int(run.node_of[rank]) for rank in ranks}).to_numpy()
    if table == "gpu_sample":
        here = here & frame["gpu"].isin([GPU_ID_0 + rank for rank in ranks]).to_numpy()
    elif table in ("process_sample", "tcp_sample"):
        here = here & frame["rank"].isin(ranks).to_numpy()
    elif table == "cpu_sample":
        here = here & frame["cpu"].isin([rank % run.cores for rank in ranks]).to_numpy()
    elif table == "nic_sample":
        here = here & (frame["nic"] == int(device or 1)).to_numpy()
    return frame, column, np.asarray(here)
