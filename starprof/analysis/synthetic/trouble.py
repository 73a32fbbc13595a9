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
        start: first step of it.
        end: first step no longer hit; None = to the end.
        share: random share of the steps that lose time.
        rotating: one random rank per step loses the time instead of all.
    """

    on: tuple[int, ...]
    adds: Mapping[str, float] = field(default_factory=dict)
    shows: Mapping[str, float] = field(default_factory=dict)
    grows: Mapping[str, float] = field(default_factory=dict)
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
        first, last = self.start, run.steps if self.end is None else self.end
        for name, value in (*self.shows.items(), *self.grows.items()):
            table, _, column = name.partition(".")
            frame = frames[table]
            of_device = _devices(run, table, frame, self.on)
            times = frame["mono_ns"].to_numpy(np.float64)
            on = (times >= edges_ns[first]) & (times <= edges_ns[last])
            if next(c.kind for c in BY_NAME[table].columns if c.name == column) is Kind.COUNTER:
                until = np.clip(times - edges_ns[first], 0.0, edges_ns[last] - edges_ns[first]) / 1e9
                grown = np.where(of_device, np.rint(value * until), 0.0)
                frame[column] = frame[column].astype(np.float64) + grown
            else:
                frame.loc[on & of_device, column] = value


def _devices(run: SyntheticRun, table: str, frame: pd.DataFrame, ranks: tuple[int, ...]) -> Bools:
    """Rows of the devices (process, CPU, GPU, else the whole node) that belong to some ranks."""
    nodes = {int(run.node_of[rank]) for rank in ranks}
    here = frame["node"].isin(nodes).to_numpy()
    if table == "gpu_sample":
        return np.asarray(here & frame["gpu"].isin([GPU_ID_0 + rank for rank in ranks]))
    if table in ("process_sample", "tcp_sample"):
        return np.asarray(here & frame["rank"].isin(ranks))
    if table == "cpu_sample":
        return np.asarray(here & frame["cpu"].isin([rank % run.cores for rank in ranks]))
    if table == "nic_sample":
        return here
    return np.asarray(here)
