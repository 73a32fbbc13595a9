"""GPU memory that is being corrected or repaired while the GPU computes more slowly: ECC errors and row remaps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from starprof.analysis.causes.base import COINCIDES, MIN_IN_PHASES, Case, Explanation, pct
from starprof.analysis.causes.contrast import Span, of_most, over_span, rate
from starprof.analysis.causes.gpu import compute_share, samples_of
from starprof.model import causes

MIN_CORRECTED_PER_S = 1.0
"""Corrected errors below this rate cost no noticeable time: single bits flip in healthy memory too."""

OUTSTANDING = 5.0
AT_THE_ONSET = 0.9
MIN_SPREAD = 0.5
PIECES = 10


@dataclass(frozen=True)
class _Repaired:
    """What grew on a rank's GPU in the slow window, in words, for how much of the window."""

    words: str
    spread: float


def explain(case: Case) -> Explanation | None:
    """Errors that come all through the slow window and neither before nor at the peers, or a row that was remapped."""
    if compute_share(case) < MIN_IN_PHASES:
        return None
    found = of_most(case, [_repaired(case, row) for row in case.rows])
    if not found:
        return None
    share = compute_share(case) * min(1.0, sum(part.spread for part in found) / len(case.rows))
    return Explanation(
        cause=causes.GPU_ECC,
        share=share,
        evidence=(
            f"The memory of the GPU of {case.who} {found[0].words}, its peers' and its own before did not.",
            f"{pct(share)} of the excess lies in GPU compute while that happened.",
        ),
        action=f"Drain the node of {case.who}, reset the GPU so that pending row remaps take effect, run the vendor's "
        "memory diagnostics, and exchange the GPU if errors come back.",
        verify="After the reset the error counters must stand still and the rank must be as early as its peers; if it "
        "is late without new errors, memory was not the cause.",
        certainty=COINCIDES,
        partly=f"memory errors fall together with {pct(share)}",
        against=("Errors are evidence by coincidence in time only: how long each one stopped the GPU is not counted.",),
    )


def _repaired(case: Case, row: int) -> _Repaired | None:
    def growth(column: str) -> tuple[float, float]:
        """Growth per second in the slow window, and the highest usual one."""

        def measure(r: int, span: Span) -> float:
            return rate(case.counters, samples_of(case, r), column, span)

        found = over_span(case, row, measure)
        return (found.now, found.usual_high) if found.known else (0.0, 0.0)

    corrected, usual = growth("ecc_corrected")
    if corrected >= max(MIN_CORRECTED_PER_S, OUTSTANDING * usual):
        spread = _spread(case, row, "ecc_corrected")
        if spread >= MIN_SPREAD:
            return _Repaired(f"had {corrected:.1f} corrected errors per second", spread)
    for column, words in (("remapped_rows", "had rows remapped"), ("ecc_uncorrected", "had uncorrectable errors")):
        if _only_at_the_onset(case, row, column):
            return _Repaired(f"{words} when it became slow", 1.0)
    return None


def _spread(case: Case, row: int, column: str) -> float:
    """Share of the slow window's pieces in which a counter grew."""
    rows = samples_of(case, row)
    start, end = case.span_ns(row)
    edges = [start + (end - start) * i / PIECES for i in range(PIECES + 1)]
    pieces = [rate(case.counters, rows, column, (a, b)) for a, b in pairwise(edges)]
    seen = [value > 0 for value in pieces if value == value]
    return sum(seen) / len(seen) if seen else 0.0


def _only_at_the_onset(case: Case, row: int, column: str) -> bool:
    """All of the growth lies about the begin of the slow window, and neither before it nor at the peers."""
    rows = samples_of(case, row)
    start, end = case.span_ns(row)
    past = case.past_span_ns(row)
    if rows is None or case.window[0] == 0:
        return False
    # The sample before the onset may lie well before it: that interval is not yet the healthy past.
    margin = (end - start) / PIECES
    whole = case.counters.grew(rows, column, start - margin, end).amount
    first = case.counters.grew(rows, column, start - margin, start + margin).amount
    others = [rate(case.counters, samples_of(case, peer), column, case.span_ns(peer)) for peer in case.peers(row)]
    if past is not None:
        others.append(rate(case.counters, rows, column, (past[0], min(past[1], start - margin))))
    known = [value for value in others if value == value]
    if not known or not whole > 0 or first < AT_THE_ONSET * whole:
        return False
    return max(known) * (end - start) / 1e9 < (1.0 - AT_THE_ONSET) * whole
