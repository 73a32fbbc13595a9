"""Which GPU a late rank computes on, its samples, and the part of a step that a GPU computes. No rule of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import Case
from starprof.analysis.causes.contrast import NAN, Contrast, OverSteps, gauge, in_steps, over_steps
from starprof.analysis.counters import Gpu, numbers

if TYPE_CHECKING:
    import pandas as pd

BUSY_PCT = 50.0
"""SM activity from which on a sample was taken under load; clocks and links of an idle GPU say nothing."""

COMPUTE_PHASES = ("forward", "backward", "optimizer")


def gpu_of(case: Case, row: int) -> Gpu | None:
    """A rank's GPU; None when the UUID is not known: no card is guessed."""
    info = case.own.infos[row]
    return case.counters.gpus.get((info.node, info.gpu_uuid)) if info.gpu_uuid else None


def samples_of(case: Case, row: int) -> pd.DataFrame | None:
    """Samples of a rank's GPU; of a MIG instance those of its card, which has the clocks and the heat."""
    gpu = gpu_of(case, row)
    if gpu is None:
        return None
    node = case.own.infos[row].node
    card = case.counters.gpus.get((node, gpu.mig_parent), gpu)
    return case.counters.series("gpu_sample", ("node", "gpu")).get((float(node), float(card.id)))


def under_load(rows: pd.DataFrame) -> Bools:
    """Samples under load, shape (N,); all where the activity was not measured."""
    activity = numbers(rows, "util_pct")
    return np.asarray(np.isnan(activity) | (activity >= BUSY_PCT))


def loaded(case: Case, row: int, column: str) -> Contrast:
    """A gauge under load beside peers with the same product and the past."""
    return _among_alike(case, row, lambda r, steps: loaded_gauge(case, r, column, steps))


def reason(case: Case, row: int, bits: int) -> Contrast:
    """Share of the time in which reason bits of the clock were set, beside alike peers and the past."""
    return _among_alike(case, row, lambda r, steps: bit_share(case, r, bits, steps))


def _among_alike(case: Case, row: int, measure: OverSteps) -> Contrast:
    mine = _product(case, row)
    return over_steps(case, row, lambda r, steps: measure(r, steps) if _product(case, r) == mine else NAN)


def _product(case: Case, row: int) -> str:
    gpu = gpu_of(case, row)
    return "" if gpu is None else gpu.name


def loaded_gauge(case: Case, row: int, column: str, steps: Bools) -> float:
    """Mean of a gauge of a rank's GPU in some steps, under load only; NaN when not measured."""
    rows = samples_of(case, row)
    return NAN if rows is None else gauge(case, row, rows[under_load(rows)], column, steps)


def bit_share(case: Case, row: int, bits: int, steps: Bools) -> float:
    """Share of the loaded samples of some steps in which one of the clock's reason bits is set; NaN = not told."""
    rows = samples_of(case, row)
    if rows is None:
        return NAN
    reasons = numbers(rows, "clock_event_reasons")
    seen = in_steps(case, row, numbers(rows, "mono_ns"), steps) & under_load(rows) & ~np.isnan(reasons)
    return float(((reasons[seen].astype(np.int64) & bits) != 0).mean()) if seen.any() else NAN


def compute_phases(case: Case) -> tuple[str, ...]:
    """Phases that the GPU computes; the whole step where its parts were not recorded."""
    told = any(np.nansum(case.own.phases[name]) > 0 for name in ("forward", "backward"))
    return COMPUTE_PHASES if told else (*COMPUTE_PHASES, "unaccounted")


def compute_share(case: Case) -> float:
    """Share of the excess that lies in phases which the GPU computes."""
    return case.phases.share(*compute_phases(case))


def healthy_compute_us(case: Case, row: int) -> float:
    """What those phases take per step without the excess, microseconds."""
    names = compute_phases(case)
    spent: Floats = np.sum([case.own.phases[name][row] for name in names], axis=0)
    late = spent[case.steps]
    mean = float(np.nanmean(late)) if np.isfinite(late).any() else 0.0
    return max(0.0, mean - sum(max(0.0, case.phases.us.get(name, 0.0)) for name in names))
