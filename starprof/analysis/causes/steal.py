"""The hypervisor runs somebody else on the rank's virtual CPU (steal time)."""

from __future__ import annotations

from starprof.analysis.causes.base import Case, Explanation, ms, pct
from starprof.analysis.causes.contrast import NAN, Span, of_most, over_span, rate, share_of
from starprof.analysis.causes.processes import cpus_of, gained_seconds
from starprof.model import causes

MIN_STOLEN = 0.01
"""Less than this share of a CPU stolen is on every virtual machine."""


def explain(case: Case) -> Explanation | None:
    """Steal on the CPUs of the late ranks grew by as much as they are late."""
    found = of_most(case, [_stolen(case, row) for row in case.rows])
    if not found:
        return None
    share = share_of(case, [seconds for seconds, _, _ in found])
    _, now, references = found[0]
    return Explanation(
        cause=causes.CPU_CONTENTION,
        share=share,
        evidence=(
            f"The hypervisor ran another virtual machine for {pct(now)} of the time on the CPUs of {case.who} "
            f"({references}).",
            f"That covers {pct(share)} of the {ms(case.excess_s * 1e6)} by which {case.who} was late.",
        ),
        action=f"The physical host below {_node(case)} is overbooked: move {case.who} to another host, or ask for "
        "dedicated cores.",
        verify=f"On a host without steal {case.who} must be as early as its peers; if it is late without any, "
        "steal was not the cause.",
        partly=f"time stolen by the hypervisor covers {pct(share)}",
        against=("No process on the node itself is needed to explain it: steal is counted outside of the node.",),
    )


def _stolen(case: Case, row: int) -> tuple[float, float, str] | None:
    """Stolen seconds beyond the usual, the stolen share of the time, and the references in words."""

    def measure(r: int, span: Span) -> float:
        series = case.counters.series("cpu_sample", ("node", "cpu"))
        node = float(case.own.infos[r].node)
        rates = [
            (share, rate(case.counters, series.get((node, float(cpu))), "steal_us", span))
            for cpu, share in cpus_of(case, r, span).items()
        ]
        known = [(share, value) for share, value in rates if value == value]
        return sum(s * v for s, v in known) / sum(s for s, _ in known) if known else NAN

    stolen = over_span(case, row, measure)
    if not stolen.known or stolen.gained / 1e6 < MIN_STOLEN:
        return None
    return gained_seconds(case, row, stolen), stolen.now / 1e6, stolen.words(lambda v: pct(v / 1e6))


def _node(case: Case) -> str:
    return case.counters.host(case.own.infos[case.rows[0]].node)
