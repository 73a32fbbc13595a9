"""What predictions are made from: per worker and iteration its own time, its CPU use, and what its interface moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.own_time import own_time
from starprof.analysis.settings import DEFAULT

if TYPE_CHECKING:
    import pandas as pd

    from starprof.analysis.arrays import Floats
    from starprof.model.rundata import RunData

TIME, CPU, NIC_IN, NIC_OUT = range(4)
COLUMNS = 4
WINDOW = 30
"""Iterations that a prediction looks back on; STAR (arXiv 2512.09685) has 25 to 30."""
ROLLOUT = 30
"""Iterations that it looks ahead."""
CLOSEST, FARTHEST = 1e-2, 20.0
NOT_SENT_BY_RANKS = frozenset({"loopback", "virtual", "bond-member"})


@dataclass(frozen=True)
class Series:
    """One run, iteration by iteration.

    Attributes:
        workers: their ranks, shape (N,).
        values: shape (N, S, 4): own time in seconds, CPU seconds a second, bytes a second in and out; NaN: not known.
    """

    workers: tuple[int, ...]
    values: Floats

    def windows(self, every: int, window: int = WINDOW, rollout: int = ROLLOUT) -> tuple[Floats, Floats]:
        """All windows and what came after them.

        Returns:
            Histories, shape (K, N, window, 4), and times of the next iterations, shape (K, N, rollout).
        """
        length = self.values.shape[1]
        begins = range(0, length - window - rollout + 1, every)
        if not begins:
            return np.empty((0, len(self.workers), window, COLUMNS)), np.empty((0, len(self.workers), rollout))
        past = np.stack([self.values[:, at : at + window] for at in begins])
        after = np.stack([self.values[:, at + window : at + window + rollout, TIME] for at in begins])
        return past, after


def series_of(run: RunData) -> Series | None:
    """The run's own times with the counters of each iteration; None when there are no step times."""
    own = own_time(run, DEFAULT)
    if own is None:
        return None
    shape = own.shape
    values = np.full((*shape, COLUMNS), np.nan)
    values[:, :, TIME] = own.cycle / 1e6
    processes = _grouped(run.samples.get("process_sample"), "rank")
    interfaces = _grouped(_interfaces(run), "node")
    for row, info in enumerate(own.infos):
        bounds = _bounds(own.start_ns[row])
        values[row, :, CPU] = _rate(processes.get(info.rank), ("pid",), "cpu_us", bounds) / 1e6
        for column, name in ((NIC_IN, "rx_bytes"), (NIC_OUT, "tx_bytes")):
            values[row, :, column] = _rate(interfaces.get(info.node), ("nic",), name, bounds)
    return Series(tuple(info.rank for info in own.infos), values)


def filled(past: Floats) -> Floats:
    """The same without holes: what is not known is as the window's median, and 1 where nothing is known.

    Args:
        past: shape (..., W, 4).
    """
    known = np.isfinite(past)
    ordered = np.sort(np.where(known, past, np.inf), axis=-2)
    count = known.sum(axis=-2, keepdims=True)
    middle = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=-2)
    return np.where(known, past, np.where(count > 0, middle, 1.0))


def relative(past: Floats) -> Floats:
    """Each column against its median in the window, shape (..., W, 4), within a range that a network can take."""
    whole = filled(past)
    middle = np.median(whole, axis=-2, keepdims=True)
    ratio = np.where(middle > 0, whole / np.where(middle > 0, middle, 1.0), 1.0)
    return np.asarray(np.clip(ratio, CLOSEST, FARTHEST))


def _bounds(start_ns: Floats | object) -> Floats:
    """Begin of each step and the end of the last, shape (S + 1,); NaN = no record."""
    starts = np.asarray(start_ns, np.float64)
    starts = np.where(starts > 0, starts, np.nan)
    lengths = np.diff(starts)
    last = starts[-1:] + (np.nanmedian(lengths) if np.isfinite(lengths).any() else np.nan)
    return np.concatenate([starts, last])


def _grouped(frame: pd.DataFrame | None, by: str) -> Mapping[int, pd.DataFrame]:
    if frame is None or not len(frame):
        return {}
    keys = frame[by].to_numpy(np.int64)
    return {int(key): frame[keys == key] for key in np.unique(keys)}


def _interfaces(run: RunData) -> pd.DataFrame | None:
    """Samples of the interfaces that carry traffic between nodes, each byte once."""
    samples, names = run.samples.get("nic_sample"), run.samples.get("nic")
    if samples is None or names is None or not len(samples):
        return samples
    inner = names[names["type"].isin(NOT_SENT_BY_RANKS)]
    hidden = set(zip(inner["node"], inner["nic"], strict=True))
    keep = [key not in hidden for key in zip(samples["node"], samples["nic"], strict=True)]
    return samples[keep]


def _rate(rows: pd.DataFrame | None, keys: tuple[str, ...], column: str, bounds_ns: Floats) -> Floats:
    """Growth of a counter per second between the bounds, summed over its series, shape (S,)."""
    total = np.full(len(bounds_ns) - 1, np.nan)
    if rows is None:
        return total
    for _, one in rows.groupby(list(keys), sort=False):
        times, counts = one["mono_ns"].to_numpy(np.float64), one[column].to_numpy(np.float64)
        seen = np.isfinite(counts)
        if seen.sum() < 2:
            continue
        order = np.argsort(times[seen], kind="stable")
        known, counted = times[seen][order], counts[seen][order]
        grown = np.interp(bounds_ns, known, counted, left=np.nan, right=np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.diff(grown) / (np.diff(bounds_ns) / 1e9)
        rate = np.where(rate >= 0, rate, np.nan)  # a counter that fell was reset
        total = np.where(np.isnan(total), rate, total + np.nan_to_num(rate))
    return total
