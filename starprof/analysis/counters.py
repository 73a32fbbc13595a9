"""Rates of cumulative counters over windows of a node's clock; resets and holes are gaps, never negative rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.arrays import Floats
from starprof.model import serverprocesses
from starprof.model.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from starprof.analysis.network.rails import Rails
    from starprof.model.rundata import RunData

LARGEST = 2.0**64
"""No 64-bit counter is larger: what is was not measured."""

MAX_HOLE_FACTOR = 5.0
MAX_HOLE_S = 12.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew in a window, and the seconds of it that were really observed."""

    amount: float
    seconds: float

    @property
    def per_second(self) -> float:
        """Rate; NaN when nothing was observed."""
        return self.amount / self.seconds if self.seconds > 0 else float("nan")


def growth(times_ns: Floats, values: Floats, start_ns: float, end_ns: float) -> Growth:
    """Growth of one counter between two moments.

    Args:
        times_ns: sample times, rising, shape (N,).
        values: cumulative values, NaN = not measured, shape (N,).
        start_ns: begin of the window.
        end_ns: end of the window.

    A falling counter was reset or wrapped, and a hole is much longer than the usual distance of samples: neither
    interval counts, in amount or in time.
    """
    seen = ~np.isnan(values)
    times, values = times_ns[seen], values[seen]
    if len(times) < 2 or end_ns <= start_ns:
        return Growth(0.0, 0.0)
    step, length = np.diff(values), np.diff(times)
    longest = max(MAX_HOLE_FACTOR * float(np.median(length)), MAX_HOLE_S * 1e9)
    good = (step >= 0) & (length <= longest) & (length > 0)
    overlap = np.minimum(times[1:], end_ns) - np.maximum(times[:-1], start_ns)
    overlap = np.where(good, np.maximum(overlap, 0.0), 0.0)
    amount = step * np.divide(overlap, length, out=np.zeros_like(overlap), where=length > 0)
    return Growth(float(amount.sum()), float(overlap.sum()) / 1e9)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG instance: its id in the samples, and its facts; NaN or "" = not told."""

    id: int
    name: str
    mig_parent: str
    numa_node: float
    pcie_gen_max: float
    pcie_width_max: float
    pci: str = ""


class Counters:
    """Look-ups in a run's sample frames, grouped once per table and key."""

    def __init__(self, run: RunData) -> None:
        self._run = run
        self._grouped: dict[tuple[str, tuple[str, ...]], Mapping[tuple[float, ...], pd.DataFrame]] = {}

    @property
    def run(self) -> RunData:
        """The run whose frames these are."""
        return self._run

    def has(self, table: str) -> bool:
        """Whether the run holds any row of a table."""
        return len(self.table(table)) > 0

    def table(self, table: str) -> pd.DataFrame:
        """The frame of a table; empty when it was not collected."""
        import pandas as pd

        frame = self._run.samples.get(table)
        columns = list(BY_NAME[table].names)
        if frame is None:
            return pd.DataFrame(columns=columns)
        # Imported frames may hold only what their format tells.
        frame = frame if set(columns) <= set(frame.columns) else frame.reindex(columns=columns)
        return self._without_servers(frame) if table == "process_sample" else frame

    def _without_servers(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A parameter server that a rank has started is in its tree, and no part of what the rank does."""
        if not self.server_processes:
            return frame
        keys = zip(frame["node"], frame["pid"], strict=True)
        theirs = np.fromiter((key in self.server_processes for key in keys), bool, len(frame))
        return frame[~(theirs & (numbers(frame, "rank") >= 0))]

    @cached_property
    def server_processes(self) -> Mapping[tuple[int, int], str]:
        """Processes of the job's parameter server: their names by node and pid.

        Those that a rank has started; where there are none, any that were seen, since `starprof ps serve` is no rank's.
        """
        known = self.table("process")
        known = known[known["name"].isin(serverprocesses.ALL)]
        started = known[known["rank"] >= 0]
        known = started if len(started) else known
        rows = zip(known["node"], known["pid"], known["name"], strict=True)
        return {(int(node), int(pid)): name for node, pid, name in rows}

    def server_samples(self, name: str) -> list[tuple[int, int, pd.DataFrame]]:
        """Node, pid and samples, in order of time, of each process of the server that goes by a name."""
        frame = self._run.samples.get("process_sample")
        if frame is None:
            return []
        found = []
        for (node, pid), called in sorted(self.server_processes.items()):
            if called == name:
                rows = frame[(frame["node"] == node) & (frame["pid"] == pid)]
                found.append((node, pid, rows.sort_values("mono_ns", kind="stable")))
        return found

    def series(self, table: str, keys: tuple[str, ...]) -> Mapping[tuple[float, ...], pd.DataFrame]:
        """Rows of a table by key values, each in order of time."""
        name = (table, keys)
        if name not in self._grouped:
            frame = self.table(table)
            if "mono_ns" in frame:
                frame = frame.sort_values("mono_ns", kind="stable")
            grouped = frame.groupby(list(keys), sort=False, dropna=True)
            self._grouped[name] = {_numbers(key): rows for key, rows in grouped}
        return self._grouped[name]

    def grew(self, rows: pd.DataFrame, column: str, start_ns: float, end_ns: float) -> Growth:
        """Growth of one column of a series within a window."""
        return growth(numbers(rows, "mono_ns"), numbers(rows, column), start_ns, end_ns)

    def mean(self, rows: pd.DataFrame, column: str, start_ns: float, end_ns: float) -> float:
        """Mean of a gauge within a window; NaN when not measured."""
        times, values = numbers(rows, "mono_ns"), numbers(rows, column)
        inside = values[(times >= start_ns) & (times <= end_ns) & ~np.isnan(values)]
        return float(inside.mean()) if len(inside) else float("nan")

    @cached_property
    def rails(self) -> Rails:
        """Which interface serves which rank."""
        from starprof.analysis.network.rails import rails  # it is made from these look-ups

        return rails(self._run, self)

    @cached_property
    def cores(self) -> Mapping[int, int]:
        """Logical CPUs per node, where known."""
        nodes = self._run.nodes
        if "cpus" not in nodes:
            return {}
        pairs = zip(nodes["node"], nodes["cpus"], strict=True)
        return {int(node): int(cpus) for node, cpus in pairs if cpus == cpus and cpus is not None}

    @cached_property
    def gpus(self) -> Mapping[tuple[int, str], Gpu]:
        """The GPUs by node and UUID; the last row of a GPU is valid."""
        table = self.table("gpu")
        facts = [numbers(table, name) for name in ("node", "gpu", "numa_node", "pcie_gen_max", "pcie_width_max")]
        texts = [
            [v if isinstance(v, str) else "" for v in table[name]] for name in ("uuid", "name", "mig_parent", "pci")
        ]
        return {
            (int(node), uuid): Gpu(int(gpu), name, parent, numa, generation, lanes, pci)
            for node, gpu, numa, generation, lanes, uuid, name, parent, pci in zip(*facts, *texts, strict=True)
            if uuid and np.isfinite((node, gpu)).all()
        }

    def host(self, node: int) -> str:
        """Name of a node."""
        return next((info.host for info in self._run.ranks if info.node == node and info.host), f"node {node}")


def numbers(rows: pd.DataFrame, column: str) -> Floats:
    """A column as floats; NaN where NULL or absurd, all NaN where the table has no such column."""
    if column not in rows:
        return np.full(len(rows), np.nan)
    values = np.asarray(rows[column].to_numpy(dtype=np.float64, na_value=np.nan))
    odd = np.abs(values) > LARGEST
    return np.where(odd, np.nan, values) if odd.any() else values


def _numbers(key: object) -> tuple[float, ...]:
    return tuple(float(k) for k in (key if isinstance(key, tuple) else (key,)))
