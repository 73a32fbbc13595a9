"""What is known about a generated fault beyond the right answer, and how the named causes are held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from truth import Outcome, Truth

from starprof.model import causes
from starprof.model.verdict import Finding, Verdict


@dataclass(frozen=True)
class Label:
    """One generated run.

    Attributes:
        fault: its class in the table.
        shape: course of time, "" where there is none.
        steps: how many steps it hits; 0 where that is not known.
        slowdown: how many times as long the hit ranks (or the step) take; 1 for healthy runs.
        quiet: step-to-step variation, spread and steps are such that clear faults must be found.
        right: right causes per rank to blame.
        less: causes that are true and tell less: the part of the step that is longer.
    """

    fault: str
    shape: str = ""
    steps: int = 0
    slowdown: float = 1.0
    quiet: bool = False
    right: Mapping[int, frozenset[str]] = field(default_factory=dict)
    less: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Told:
    """How a run was told: its label and outcome, and of the judged findings how many causes were what.

    Attributes:
        right: named and right.
        less: true, but only where in the step.
        unknown: `unknown` where more could be known.
        wrong: named and not true.
    """

    label: Label
    outcome: Outcome
    faulty: bool
    right: int
    less: int
    unknown: int
    wrong: int

    @property
    def found(self) -> bool:
        """All who are to blame were named."""
        return not self.outcome.missed


def told(label: Label, truth: Truth, verdict: Verdict, outcome: Outcome) -> Told:
    """Count the causes of the findings that are about the fault."""
    counts = dict.fromkeys(("right", "less", "unknown", "wrong"), 0)
    for finding in _about(truth, verdict):
        counts[_kind(finding, label, truth)] += 1
    return Told(label, outcome, bool(truth.ranks), **counts)


def _about(truth: Truth, verdict: Verdict) -> list[Finding]:
    if truth.ranks | truth.tolerated:
        return [f for f in verdict.findings if (truth.ranks | truth.tolerated) & set(f.ranks)]
    return [f for f in verdict.findings[:1] if truth.causes]


def _kind(finding: Finding, label: Label, truth: Truth) -> str:
    known = [label.right[rank] for rank in finding.ranks if rank in label.right]
    right = frozenset().union(*known) if known else truth.causes
    if finding.cause in right:
        return "right"
    if finding.cause == causes.UNKNOWN:
        return "unknown"
    return "less" if finding.cause in label.less else "wrong"
