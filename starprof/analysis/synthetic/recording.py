"""What recording does to counters: moments that jitter, samples that fail, holes, restarted counters, NULLs between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.model.columns import Kind
from starprof.model.schema import BY_NAME

if TYPE_CHECKING:
    import pandas as pd

    from starprof.analysis.arrays import Floats

SLOW_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "process_sample": (
        "voluntary_switches",
        "involuntary_switches",
        "minor_faults",
        "major_faults",
        "threads",
        "rss_bytes",
        "last_cpu",
        "allowed_cpus",
        "read_bytes",
        "blkio_delay_us",
    ),
    "node_sample": ("swap_in_pages", "swap_out_pages", "major_faults"),
}
"""Columns that agents read once a second only; NULL in the rows between."""

KEYS = ("node", "pid", "rank", "cpu", "cgroup", "nic", "socket", "disk", "gpu")
RESETTING = ("nic_sample", "gpu_sample", "tcp_sample", "disk_sample")
SECOND_NS = 1e9


@dataclass(frozen=True, slots=True)
class Recording:
    """How well a run was recorded.

    Attributes:
        jitter: deviation of a sample's moment from its tick, as a share of the period.
        lost: share of the samples that failed.
        holes: per node the time without any sample, as (node, first, last) in shares of the run.
        resets: (table, node, moment as a share of the run) at which all counters of a node's table restart from 0.
        absent: tables that no collector wrote.
    """

    jitter: float = 0.05
    lost: float = 0.01
    holes: tuple[tuple[int, float, float], ...] = ()
    resets: tuple[tuple[str, int, float], ...] = ()
    absent: tuple[str, ...] = ()

    def applied(self, frames: Mapping[str, pd.DataFrame], rate_hz: float, seed: int) -> dict[str, pd.DataFrame]:
        """The frames as such a recording holds them; dictionaries stay as they are."""
        rng = np.random.default_rng([seed, 6])
        kept = {name: frame for name, frame in frames.items() if name not in self.absent}
        sampled = [name for name, frame in kept.items() if "mono_ns" in frame and BY_NAME[name].sampled]
        for name in sampled:
            kept[name] = self._of_table(name, kept[name], rate_hz, rng)
        return kept

    def _of_table(self, name: str, frame: pd.DataFrame, rate_hz: float, rng: np.random.Generator) -> pd.DataFrame:
        frame = frame.copy()
        times = frame["mono_ns"].to_numpy(np.float64)
        first, length = float(times.min(initial=0.0)), float(np.ptp(times)) if len(times) else 0.0
        place = (times - first) / max(length, 1.0)
        self._restart(name, frame, place)
        _thin(name, frame, times, rate_hz)
        period = SECOND_NS / rate_hz
        frame["mono_ns"] = (times + self.jitter * period * rng.standard_normal(len(times)).clip(-3, 3)).astype(np.int64)
        keep = rng.random(len(frame)) >= self.lost
        node = frame["node"].to_numpy()
        for where, start, end in self.holes:
            keep &= (node != where) | (place < start) | (place >= end)
        return frame[keep].reset_index(drop=True)

    def _restart(self, name: str, frame: pd.DataFrame, place: Floats) -> None:
        counters = [c.name for c in BY_NAME[name].columns if c.kind is Kind.COUNTER]
        keys = [key for key in KEYS if key in frame and key not in counters]
        for table, node, moment in self.resets:
            later = (frame["node"].to_numpy() == node) & (place >= moment)
            if table == name and later.any():
                since = frame.loc[later, counters].to_numpy(np.float64)
                at = frame[later].groupby(keys)[counters].transform("first").to_numpy(np.float64)
                frame.loc[later, counters] = since - at


def _thin(name: str, frame: pd.DataFrame, times: Floats, rate_hz: float) -> None:
    """NULL in the rows between those in which the dear columns are read."""
    columns = [column for column in SLOW_COLUMNS.get(name, ()) if column in frame]
    every = round(rate_hz)
    if every < 2 or not columns or not len(frame):
        return
    tick = np.rint((times - times.min()) / (SECOND_NS / rate_hz)).astype(np.int64)
    between = tick % every != 0
    for column in columns:
        frame[column] = np.where(between, np.nan, frame[column].to_numpy(np.float64))
