"""A whole job on few of its machine's CPUs: these are kept busy while the others are idle.

Libraries that bind threads (KMP_AFFINITY, GOMP_CPU_AFFINITY), launchers and container limits can put the training
process and all its loader workers on one core. No rank differs from its peers then, and the machine's mean CPU use is
low; what shows it are the masks, the CPUs that the processes were seen on, and how busy those are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.causes.base import span_ns
from starprof.analysis.causes.contrast import rate
from starprof.analysis.causes.processes import HasCounters, main_process
from starprof.analysis.counters import numbers

if TYPE_CHECKING:
    import pandas as pd

MOST_OF_NODE = 0.5
"""A job that may use more than this share of the machine's CPUs is not confined."""
BUSY = 0.85
IDLE = 0.4
"""CPUs that the job may not use are idle when they are busy for less than this."""


@dataclass(frozen=True)
class Confined:
    """The CPUs that a job keeps busy on one machine.

    Attributes:
        allowed: CPUs that its processes may run on.
        cores: CPUs of the machine.
        cpus: those that its processes were seen on, rising.
        busy: how busy it keeps the allowed ones, as a share of them.
        node_busy: how busy the whole machine is; NaN when not sampled.
        processes: number of its processes that were seen.
    """

    allowed: int
    cores: int
    cpus: tuple[int, ...]
    busy: float
    node_busy: float
    processes: int


def confined(of: HasCounters, node: int) -> Confined | None:
    """How the job is confined on a machine; None when it is not, or when that was not sampled."""
    rows = [row for row, info in enumerate(of.own.infos) if info.node == node]
    cores = of.counters.cores.get(node)
    mains = [main_process(of, row) for row in rows]
    if cores is None or not rows or any(main is None for main in mains):
        return None
    span = span_ns(of.own, rows[0], 0, of.own.shape[1])
    job = [s for (n, r), s in of.counters.series("process_sample", ("node", "rank")).items() if n == node and r >= 0]
    cpus = {int(cpu) for samples in job for cpu in _seen(samples)}
    allowed = _allowed([main for main in mains if main is not None])
    # One mask for all: ranks with cores of their own each are bound, not confined.
    if not cpus or not allowed > 0 or allowed > MOST_OF_NODE * cores or len(cpus) > allowed:
        return None
    used = sum(_used(of, samples, span) for samples in job)
    whole = of.counters.series("cpu_sample", ("node", "cpu")).get((float(node), -1.0))
    node_used = sum(rate(of.counters, whole, column, span) for column in ("user_us", "system_us")) / 1e6
    rest = (node_used - used) / max(1.0, cores - allowed)
    if used < BUSY * allowed or rest > IDLE:
        return None
    processes = sum(samples["pid"].nunique() for samples in job)
    return Confined(round(allowed), cores, tuple(sorted(cpus)), min(1.0, used / allowed), node_used / cores, processes)


def _seen(samples: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    where = numbers(samples, "last_cpu")
    return np.unique(where[~np.isnan(where) & (where >= 0)])


def _allowed(mains: list[pd.DataFrame]) -> float:
    """Largest of the ranks' masks, in CPUs; NaN when not known of one of them."""
    masks = [numbers(main, "allowed_cpus") for main in mains]
    if any(np.isnan(mask).all() for mask in masks):
        return float("nan")
    return max(float(np.nanmedian(mask)) for mask in masks)


def _used(of: HasCounters, samples: pd.DataFrame, span: tuple[float, float]) -> float:
    """CPUs' worth of time that the processes of a rank used."""
    rates = [rate(of.counters, rows, "cpu_us", span) for _, rows in samples.groupby("pid", sort=False)]
    return sum(r for r in rates if r == r) / 1e6
