"""Runs that lie beside each other: one without a stall tells that another's stalls are not the program's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starprof.analysis.baseline.compare import unlike
from starprof.analysis.baseline.profile import Profile
from starprof.analysis.causes.base import ms
from starprof.model.verdict import FindingKind, Verdict

SAME_STEP = 0.03
"""Step times of the same job on the same machines differ by less."""
ENOUGH = 0.5
"""A sibling must have run for this share of the steps to say that it would have stalled too."""
STALLS: tuple[FindingKind, ...] = ("one-off", "transient", "rotating")

Known = tuple[Verdict, Profile]


def clean_sibling(verdict: Verdict, profile: Profile, others: Sequence[Known]) -> Profile | None:
    """The longest other run with the same step time and ranks in which nothing was found.

    Args:
        verdict: of the run.
        profile: likewise.
        others: verdict and profile of the other runs.

    Returns:
        None when there is none, or the run has no stall that it could tell about.
    """
    if not any(f.kind in STALLS and not f.ranks for f in verdict.findings):
        return None
    clean = [
        other
        for told, other in others
        if told.verdict == "none"
        and not told.findings
        and not unlike(profile, other)
        and abs(other.step_us / profile.step_us - 1.0) <= SAME_STEP
        and other.steps >= ENOUGH * profile.steps
    ]
    return max(clean, key=lambda other: other.steps, default=None)


def with_sibling(verdict: Verdict, sibling: Profile, name: str) -> Verdict:
    """The verdict with what the clean sibling tells of its stalls, in the first of them and in the reason.

    Args:
        verdict: of the run with stalls.
        sibling: the clean one.
        name: what the sibling is called where it is shown.
    """
    pace = f"{ms(sibling.step_us)} a step over {sibling.steps} steps" if not sibling.unit else f"{sibling.steps} steps"
    line = (
        f"The sibling run {name} kept the same pace ({pace}) without any stall: the program itself does "
        "not need them. Look at what this run alone met: its machines, network and storage."
    )
    first = next(i for i, f in enumerate(verdict.findings) if f.kind in STALLS and not f.ranks)
    findings = list(verdict.findings)
    findings[first] = replace(findings[first], evidence=(*findings[first].evidence, line))
    return replace(verdict, findings=tuple(findings), reason=f"{verdict.reason} {line}".strip())
