"""The rank's memory comes back from disk: major page faults, swap, or reclaim at a cgroup limit."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.analysis.causes.base import Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import Contrast, of_most, over_span, share_of
from starprof.analysis.causes.processes import gained_seconds, node_contrast, node_rate, tree_rate
from starprof.model import causes

MIN_FAULTS_PER_S = 10.0
OUTSTANDING = 3.0
PAGE_BYTES = 4096


@dataclass(frozen=True)
class _Faulting:
    faults: Contrast
    seconds: float
    swapped_bytes_per_s: float


def explain(case: Case) -> Explanation | None:
    """Major faults of the rank rose, and the time that tasks stalled on memory rose by as much as the rank is late."""
    found = of_most(case, [_faulting(case, row) for row in case.rows])
    if not found:
        return None
    share = share_of(case, [part.seconds for part in found])
    part = found[0]
    swap = f"; {part.swapped_bytes_per_s / 1e6:.1f} MB/s came back from swap" if part.swapped_bytes_per_s > 0 else ""
    return Explanation(
        cause=causes.MEMORY_SWAP,
        share=share,
        evidence=(
            f"{case.who} had {part.faults.now:.0f} major page faults per second "
            f"({part.faults.words(lambda v: f'{v:.0f}')}){swap}.",
            f"Tasks of its node stalled on memory or its I/O for {ms(part.seconds * 1e6)} more than usual: "
            f"{pct(share)} of the {ms(case.excess_s * 1e6)} by which {case.who} was late.",
        ),
        action=f"Give {case.who} more memory or let it use less (loader workers, caches, pinned buffers); check the "
        "cgroup's memory limit and other processes on the node.",
        verify=f"Without major faults {case.who} must be as early as its peers; if it is late with the counters "
        "standing still, memory was not the cause.",
        partly=f"stalls on memory cover {pct(share)}",
    )


def _faulting(case: Case, row: int) -> _Faulting | None:
    faults = over_span(case, row, lambda r, span: tree_rate(case, r, "major_faults", span))
    if not faults.known or faults.gained < MIN_FAULTS_PER_S or faults.now < OUTSTANDING * faults.usual_high:
        return None
    pressure = node_contrast(case, row, lambda r, span: node_rate(case, r, "psi_memory_some_us", span))
    delay = over_span(case, row, lambda r, span: tree_rate(case, r, "blkio_delay_us", span))
    seconds = max(gained_seconds(case, row, pressure), gained_seconds(case, row, delay) if delay.known else 0.0)
    swapped = node_contrast(case, row, lambda r, span: node_rate(case, r, "swap_in_pages", span))
    return _Faulting(faults, seconds, max(0.0, swapped.now) * PAGE_BYTES if swapped.now == swapped.now else 0.0)
