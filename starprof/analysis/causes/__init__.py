"""Why a rank is late: one module per cause, tried in order.

A rule looks at one `Case` and returns an `Explanation` or None. The first rule that covers at least
`min_cause_share` of the slowness names the cause; a rule that covers less is quoted in the evidence of "unknown".
To add a cause, write a module with a rule and add it to `RULES`, before those that are less specific.
"""

from __future__ import annotations

from starprof.analysis.causes import cpu, phase, throttling
from starprof.analysis.causes.base import Case, Explanation, Rule, ms, pct
from starprof.analysis.causes.phase import split_in_words
from starprof.model import causes

HOST_RULES: tuple[Rule, ...] = (
    throttling.explain,
    cpu.explain_affinity,
    cpu.explain_contention,
)
"""Rules on host counters: they say why the phases take longer."""

RULES: tuple[Rule, ...] = (*HOST_RULES, phase.explain)


def explain(case: Case) -> Explanation:
    """The cause of a slowness, or `unknown` with what was partly covered."""
    found = [e for e in (rule(case) for rule in RULES) if e is not None]
    return _first_covering(case, found) or _unknown(case, found)


def explain_by_host(case: Case) -> Explanation | None:
    """The cause of everybody's slowness, when host counters show one."""
    return _first_covering(case, [e for e in (rule(case) for rule in HOST_RULES) if e is not None])


def _first_covering(case: Case, found: list[Explanation]) -> Explanation | None:
    enough = (e for e in found if e.share >= case.settings.min_cause_share and e.cause != causes.UNKNOWN)
    return next(enough, None)


def _unknown(case: Case, found: list[Explanation]) -> Explanation:
    partly = [e.partly for e in found if e.partly]
    split = split_in_words(case)
    evidence = [f"The excess of {case.who} is spread over the step: {split}."] if split else []
    if partly:
        evidence.append("No cause covers 80 % of it: " + "; ".join(partly) + ".")
    missing = [t for t in ("process_sample", "cgroup_sample") if not case.counters.has(t)]
    record = f"record {' and '.join(missing)} (host counters were not collected)" if missing else ""
    return Explanation(
        cause=causes.UNKNOWN,
        share=max((e.share for e in found), default=0.0),
        evidence=tuple(evidence),
        action=f"Swap {case.who} with another node or device and see whether the slowness moves with it.",
        verify=f"{case.who} should be ready as early as its peers ({ms(case.phases.total_us)} earlier per late step).",
        next=(record or f"Profile {case.who} with a sampling profiler during slow steps and compare with a peer")
        .strip()
        .capitalize()
        + ".",
    )


__all__ = ["RULES", "Case", "Explanation", "Rule", "explain", "explain_by_host", "ms", "pct"]
