"""What is known about an input, and how a verdict is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict

if TYPE_CHECKING:
    from label import Label

ONSET_SLACK_STEPS = 3


@dataclass(frozen=True)
class Truth:
    """The right answer.

    Attributes:
        verdicts: any of these is right.
        ranks: who must be named, nobody else.
        tolerated: who may be named too (somebody hit by the same fault a little).
        causes: right causes of a finding that names such a rank, or of the first finding when nobody is named;
            empty: not judged.
        nodes: who must be named where nodes, not ranks, are at fault.
        onset: first slow step, None: not judged.
        says: texts that the findings or the reason must hold.
        sure: the fault is large enough that missing it is wrong; a faint one may be missed, and counts for recall only.
    """

    verdicts: frozenset[str]
    ranks: frozenset[int] = frozenset()
    tolerated: frozenset[int] = frozenset()
    causes: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    onset: int | None = None
    says: tuple[str, ...] = ()
    sure: bool = True


def answer(*verdicts: str, ranks: tuple[int, ...] = (), causes: tuple[str, ...] = (), **rest: object) -> Truth:
    """A truth in short."""
    return Truth(frozenset(verdicts), frozenset(ranks), causes=frozenset(causes), **rest)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """One labelled input; `load` raises `FileNotFoundError` where its data are not there.

    Attributes:
        label: what a generated run is, for the figures per class.
    """

    name: str
    truth: Truth
    load: Callable[[], RunData]
    label: Label | None = None


@dataclass(frozen=True)
class Outcome:
    """A verdict held against the truth.

    Attributes:
        named: ranks that the verdict blames.
        hit, missed, wrong: of them and of the truth.
        cause_right: None where no cause is judged or nobody was found.
        onset_error: steps; None where it is not judged or nobody was found.
        faults: what is wrong, in words; empty when the answer is right.
    """

    case: str
    verdict: str
    named: frozenset[int]
    hit: frozenset[int]
    missed: frozenset[int]
    wrong: frozenset[int]
    cause_right: bool | None
    onset_error: int | None
    faults: tuple[str, ...]

    @property
    def abstained(self) -> bool:
        """It said that it can't tell."""
        return self.verdict == "inconclusive"


def judge(case: Case, verdict: Verdict) -> Outcome:
    """Hold a verdict against the truth."""
    truth = case.truth
    named = frozenset(rank for finding in verdict.findings for rank in finding.ranks)
    wrong = named - truth.ranks - truth.tolerated
    missed = truth.ranks - named
    cause = _cause_right(truth, verdict)
    onset = _onset_error(truth, verdict)
    text = " ".join([verdict.reason, *(" ".join((*f.evidence, f.next, f.action)) for f in verdict.findings)])
    nodes = {node for finding in verdict.findings for node in finding.nodes}
    faults = []
    if wrong:
        faults.append(f"wrong blame: {sorted(wrong)}")
    if truth.sure or named:
        if verdict.verdict not in truth.verdicts:
            faults.append(f"verdict {verdict.verdict}, not {' or '.join(sorted(truth.verdicts))}")
        if missed:
            faults.append(f"missed {sorted(missed)}")
        if cause is False:
            faults.append(f"cause {', '.join(sorted({f.cause for f in verdict.findings}))}")
        if onset is not None and onset > ONSET_SLACK_STEPS:
            faults.append(f"onset off by {onset}")
    faults += [f"does not say {words!r}" for words in truth.says if words not in text]
    faults += [f"node {node} not named" for node in sorted(truth.nodes - nodes)]
    return Outcome(case.name, verdict.verdict, named, named & truth.ranks, missed, wrong, cause, onset, tuple(faults))


def _cause_right(truth: Truth, verdict: Verdict) -> bool | None:
    if not truth.causes:
        return None
    about = [f for f in verdict.findings if truth.ranks & set(f.ranks)] or ([] if truth.ranks else verdict.findings[:1])
    return all(f.cause in truth.causes for f in about) if about else None


def _onset_error(truth: Truth, verdict: Verdict) -> int | None:
    if truth.onset is None:
        return None
    onsets = [f.onset_step for f in verdict.findings if truth.ranks <= set(f.ranks) and f.onset_step is not None]
    return min((abs(o - truth.onset) for o in onsets), default=None)
