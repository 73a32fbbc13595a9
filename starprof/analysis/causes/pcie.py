"""The PCIe link of the rank's GPU runs with fewer lanes or an older generation than it could, under load.

An idle link falls back to the first generation by design, so only samples under load count, and the link is judged
against what GPU and slot can do, against the peers' links and against its own past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from starprof.analysis.arrays import Bools, Floats
from starprof.analysis.causes.base import MIN_IN_PHASES, Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import NAN, Contrast, in_steps, of_most, over_steps
from starprof.analysis.causes.gpu import BUSY_PCT, gpu_of, samples_of
from starprof.analysis.counters import numbers
from starprof.model import causes

GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
BUSY_LINK_BYTES_PER_S = 50e6
COPY_PHASES = ("h2d",)


@dataclass(frozen=True)
class _Narrow:
    row: int
    bandwidth: Contrast
    best: float
    now: str
    explained_us: float


def explain(case: Case) -> Explanation | None:
    """Copies take longer in proportion to the link's lost bandwidth."""
    if case.phases.share(*COPY_PHASES) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_narrow(case, row) for row in case.rows])
    if not found or case.phases.total_us <= 0:
        return None
    explained = sum(part.explained_us for part in found) / len(case.rows)
    share = min(case.phases.share(*COPY_PHASES), explained / case.phases.total_us, 1.0)
    part = found[0]
    return Explanation(
        cause=causes.PCIE_LINK,
        share=share,
        evidence=(
            f"Under load the PCIe link of the GPU of {case.who} ran at {part.now}, "
            f"{pct(part.bandwidth.now / part.best)} of what GPU and slot can do "
            f"({part.bandwidth.words(_of(part.best))} of it).",
            f"At that rate copies can take up to {ms(explained)} per step longer, {case.who} lost "
            f"{ms(case.phases.total_us)}; {pct(case.phases.share(*COPY_PHASES))} of the loss lies in copies.",
        ),
        action=f"Look at the link of the GPU of {case.who} (lspci -vv LnkSta against LnkCap, kernel log for AER "
        "errors), reseat card and riser, and compare the slot and BIOS settings with a peer's.",
        verify=f"At full width and generation the copies of {case.who} must take as long as its peers'; if they stay "
        "longer, the link was not the cause.",
        partly=f"the narrow PCIe link covers {pct(share)}",
        against=("Judged under load only: an idle link falls back to a low generation by design.",),
    )


def _narrow(case: Case, row: int) -> _Narrow | None:
    gpu = gpu_of(case, row)
    best = NAN if gpu is None else bandwidth(gpu.pcie_gen_max, gpu.pcie_width_max)
    link = over_steps(case, row, lambda r, steps: _under_load(case, r, steps))
    if not link.known:
        return None
    best = best if best == best else link.usual_high
    # Lower than the maximum AND than whatever healthy link is nearest.
    if not (link.now < 0.95 * best and link.now < 0.95 * link.usual_low):
        return None
    copies = case.own.phases["h2d"][row][case.steps]
    healthy = max(0.0, float(np.nanmean(copies)) - max(0.0, case.phases.us.get("h2d", 0.0)))
    return _Narrow(row, link, best, _state(case, row), healthy * (link.usual_low / link.now - 1.0))


def bandwidth(generation: float, lanes: float) -> float:
    """Raw rate of a link in gigatransfers per second, all lanes; NaN when not known."""
    if generation != generation or lanes != lanes or int(generation) not in GIGATRANSFERS:
        return NAN
    return GIGATRANSFERS[int(generation)] * lanes


def _loaded(case: Case, row: int, steps: Bools) -> tuple[Floats, Floats]:
    """(generation, lanes) of the samples of some steps taken under load."""
    rows = samples_of(case, row)
    if rows is None:
        return np.empty(0), np.empty(0)
    traffic = np.fmax(numbers(rows, "pcie_rx_bytes_per_s"), numbers(rows, "pcie_tx_bytes_per_s"))
    busy = (traffic >= BUSY_LINK_BYTES_PER_S) | (numbers(rows, "util_pct") >= BUSY_PCT)
    generation, lanes = numbers(rows, "pcie_gen"), numbers(rows, "pcie_width")
    seen = in_steps(case, row, numbers(rows, "mono_ns"), steps) & busy & ~np.isnan(generation) & ~np.isnan(lanes)
    return generation[seen], lanes[seen]


def _under_load(case: Case, row: int, steps: Bools) -> float:
    """Median bandwidth under load; NaN when no sample was taken under load."""
    generation, lanes = _loaded(case, row, steps)
    rates = [bandwidth(g, w) for g, w in zip(generation.tolist(), lanes.tolist(), strict=True)]
    known = [value for value in rates if value == value]
    return float(np.median(known)) if known else NAN


def _state(case: Case, row: int) -> str:
    generation, lanes = _loaded(case, row, case.steps)
    return f"generation {np.median(generation):.0f} with {np.median(lanes):.0f} lanes"


def _of(best: float) -> Callable[[float], str]:
    return lambda value: pct(value / best)
