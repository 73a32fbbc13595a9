"""Why a rank is late: one module per cause, tried in order.

A rule looks at one `Case` and returns an `Explanation` or None. The first rule that covers at least
`min_cause_share` of the slowness names the cause; a rule that covers less is quoted in the evidence of "unknown".
To add a cause, write a module with a rule and add it to `RULES`, before those that are less specific.
"""

from __future__ import annotations

from dataclasses import replace

from starprof.analysis.causes import (
    cpu,
    cpu_frequency,
    gpu_clock,
    gpu_errors,
    gpu_foreign,
    gpu_memory,
    memory,
    numa,
    pcie,
    phase,
    steal,
    storage,
    throttling,
    xid,
)
from starprof.analysis.causes.base import Case, Explanation, Rule, ms, pct
from starprof.analysis.causes.phase import split_in_words
from starprof.model import causes

COUNTER_RULES: tuple[Rule, ...] = (
    # Counters of lost time itself come first,
    throttling.explain,
    cpu.explain_affinity,
    gpu_memory.explain,
    memory.explain,
    storage.explain,
    steal.explain,
    cpu.explain_contention,
    # then states that bound what they can have cost,
    pcie.explain,
    gpu_clock.explain,
    cpu_frequency.explain,
    # then what only falls together with the slowness.
    numa.explain,
    gpu_foreign.explain,
    gpu_errors.explain,
    xid.explain,
)
"""Rules on sampled counters: they say why the phases take longer."""

RULES: tuple[Rule, ...] = (*COUNTER_RULES, phase.explain)

MIN_MENTIONED = 0.1


def explain(case: Case) -> Explanation:
    """The cause of a slowness, or `unknown` with what was partly covered."""
    case = case.thinned()
    named, found = _tried(case, RULES)
    if named is None:
        return _unknown(case, found)
    beside = [e.partly for e in found if e.partly and e.share >= MIN_MENTIONED and _counts(e)]
    if not beside:
        return named
    return replace(named, against=(*named.against, f"Seen as well: {'; '.join(beside)}."))


def explain_by_counters(case: Case) -> Explanation | None:
    """The cause of everybody's slowness, when counters show one."""
    return _tried(case.thinned(), COUNTER_RULES)[0]


def _tried(case: Case, rules: tuple[Rule, ...]) -> tuple[Explanation | None, list[Explanation]]:
    """The first cause that covers enough, and those before it that do not."""
    found: list[Explanation] = []
    for rule in rules:
        explanation = rule(case)
        if explanation is None:
            continue
        if explanation.share >= case.settings.min_cause_share and explanation.cause != causes.UNKNOWN:
            return explanation, found
        found.append(explanation)
    return None, found


def _counts(explanation: Explanation) -> bool:
    """A cause read from counters; that some phase carries the loss is no rival of them."""
    return explanation.cause not in phase.CAUSES


def to_record(case: Case) -> str:
    """Which counters would tell more, empty when all that matter were collected."""
    tables = ["process_sample", "cgroup_sample"]
    if any((case.own.infos[row].device or "").startswith("cuda") for row in case.rows):
        tables.append("gpu_sample")
    missing = [table for table in tables if not case.counters.has(table)]
    kinds = "host counters" if "gpu_sample" not in missing else "GPU counters" if len(missing) == 1 else "counters"
    return f"record {' and '.join(missing)} ({kinds} were not collected)" if missing else ""


def _unknown(case: Case, found: list[Explanation]) -> Explanation:
    partly = [e.partly for e in found if e.partly]
    split = split_in_words(case)
    evidence = [f"The excess of {case.who} is spread over the step: {split}."] if split else []
    if partly:
        evidence.append("No cause covers 80 % of it: " + "; ".join(partly) + ".")
    record = to_record(case)
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


__all__ = ["RULES", "Case", "Explanation", "Rule", "explain", "explain_by_counters", "ms", "pct", "to_record"]
