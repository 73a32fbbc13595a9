"""The rank's CPUs run at a lower frequency than its peers' and than before."""

from __future__ import annotations

import numpy as np

from starprof.analysis.arrays import Bools
from starprof.analysis.causes.base import MIN_IN_PHASES, Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import NAN, Contrast, gauge, of_most, over_steps
from starprof.analysis.causes.processes import cpus_of, host_phases
from starprof.model import causes

MIN_LOSS = 0.05
KHZ_PER_GHZ = 1e6


def explain(case: Case) -> Explanation | None:
    """A lower frequency stretches what the CPU does by at most usual/now: compared with what was really lost."""
    if case.phases.total_us <= 0:
        return None
    if case.phases.share(*host_phases(case)) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_slowed(case, row) for row in case.rows])
    if not found:
        return None
    explained = sum(us for us, _ in found) / len(case.rows)
    share = min(case.phases.share(*host_phases(case)), explained / case.phases.total_us, 1.0)
    frequency = found[0][1]
    return Explanation(
        cause=causes.CPU_FREQUENCY,
        share=share,
        evidence=(
            f"The CPUs of {case.who} ran at {_ghz(frequency.now)} ({frequency.words(_ghz)}); that can make "
            f"a step up to {ms(explained)} longer, {case.who} lost {ms(case.phases.total_us)}.",
        ),
        action=f"Check governor, power profile and temperature of the node of {case.who} (cpupower frequency-info, "
        "turbostat), and its power limits.",
        verify=f"At its peers' frequency {case.who} must be as early as they are; if not, it was not the cause.",
        partly=f"a lower CPU frequency covers at most {pct(share)}",
    )


def _slowed(case: Case, row: int) -> tuple[float, Contrast] | None:
    def measure(r: int, steps: Bools) -> float:
        series = case.counters.series("cpu_sample", ("node", "cpu"))
        node = float(case.own.infos[r].node)
        values = [
            gauge(case, r, series.get((node, float(cpu))), "freq_khz", steps)
            for cpu in cpus_of(case, r, case.span_ns(r))
        ]
        known = [value for value in values if value == value]
        return float(np.mean(known)) if known else NAN

    frequency = over_steps(case, row, measure)
    if not frequency.known or frequency.now <= 0 or frequency.usual_low / frequency.now - 1.0 < MIN_LOSS:
        return None
    spent = np.sum([case.own.phases[name][row] for name in host_phases(case)], axis=0)[case.steps]
    excess = sum(max(0.0, case.phases.us.get(name, 0.0)) for name in host_phases(case))
    return max(0.0, float(np.nanmean(spent)) - excess) * (frequency.usual_low / frequency.now - 1.0), frequency


def _ghz(khz: float) -> str:
    return f"{khz / KHZ_PER_GHZ:.2f} GHz"
