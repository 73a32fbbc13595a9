"""The driver reported memory trouble of the late rank's GPU when it became slow, and none of its peers' GPUs."""

from __future__ import annotations

from starprof.analysis.causes.base import COINCIDES, MIN_IN_PHASES, Case, Explanation, pct
from starprof.analysis.causes.contrast import of_most
from starprof.analysis.causes.gpu import compute_share
from starprof.analysis.xids import Reported, listed, on_gpu_of, reported
from starprof.model import causes, xids

BEFORE_S = 10.0
"""The driver may report an error some time before the work is seen to be slower."""


def explain(case: Case) -> Explanation | None:
    """An XID of memory names the cause; one of another part of the GPU is mentioned; a program's own is neither."""
    found = reported(case.run)
    if not found or compute_share(case) < MIN_IN_PHASES:
        return None
    mine = of_most(case, [_during(case, found, row) for row in case.rows])
    if not mine or any(_during(case, found, peer) is not None for row in case.rows for peer in case.peers(row)):
        return None
    seen = [one for part in mine for one in part]
    memory = [one for one in seen if one.meaning.kind == xids.MEMORY]
    share = compute_share(case)
    return Explanation(
        cause=causes.GPU_ECC if memory else causes.UNKNOWN,
        share=share,
        evidence=(
            f"The driver reported {listed(memory or seen)} of the GPU of {case.who} when it became slow, and none of "
            "its peers' GPUs.",
            f"{pct(share)} of the excess lies in GPU compute meanwhile.",
        ),
        action=f"Drain the node of {case.who}, reset the GPU, run the vendor's diagnostics, and exchange the GPU if it "
        "comes back.",
        verify="After the reset no such XID may come and the rank must be as early as its peers; if it is late without "
        "one, memory was not the cause.",
        certainty=COINCIDES,
        partly=f"the driver reported {listed(seen)} of its GPU meanwhile",
        against=("An XID is evidence by coincidence in time only: what it cost is not counted.",),
    )


def _during(case: Case, found: tuple[Reported, ...], row: int) -> list[Reported] | None:
    """XIDs of hardware of a rank's GPU in the slow window that did not come before it; None without any."""
    start, end = case.span_ns(row)
    mine = [one for one in on_gpu_of(found, case.own.infos[row], case.counters) if one.meaning.of_hardware]
    first = start - BEFORE_S * 1e9
    early = {one.number for one in mine if one.mono_ns < first}
    here = [one for one in mine if first <= one.mono_ns <= end and one.number not in early]
    return here or None
