"""What is known about an input, and how a verdict is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starprof.model.rundata import RunData
from starprof.model.verdict import Finding, Verdict

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
        kinds: right kinds of the findings that `causes` judges; empty: not judged.
        onset: first slow step, None: not judged.
        onsets: first slow steps of several slownesses, each of which must be a finding of its own.
        seconds: least and most that the cost may be; None: not judged.
        says: texts that the findings or the reason must hold, in small or capital letters; `a|b` is a or b.
        never: texts that they must not hold.
        refused: texts that the one-line error must hold, where the input can't be judged at all.
        sure: the fault is large enough that missing it is wrong; a faint one may be missed, and counts for recall only.
    """

    verdicts: frozenset[str]
    ranks: frozenset[int] = frozenset()
    tolerated: frozenset[int] = frozenset()
    causes: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    onset: int | None = None
    onsets: tuple[int, ...] = ()
    seconds: tuple[float, float] | None = None
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    sure: bool = True


def answer(
    *verdicts: str,
    ranks: tuple[int, ...] = (),
    causes: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    **rest: object,
) -> Truth:
    """A truth in short."""
    sets = {"ranks": frozenset(ranks), "causes": frozenset(causes), "kinds": frozenset(kinds)}
    return Truth(frozenset(verdicts), nodes=frozenset(nodes), **sets, **rest)  # type: ignore[arg-type]


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
    faults = []
    if truth.refused:
        faults.append(f"verdict {verdict.verdict}, not refused")
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
    faults += _other_faults(truth, verdict)
    return Outcome(case.name, verdict.verdict, named, named & truth.ranks, missed, wrong, cause, onset, tuple(faults))


def refused(case: Case, error: str) -> Outcome:
    """Hold an error against the truth."""
    said = error.lower()
    missing = [words for words in case.truth.refused if all(w not in said for w in words.lower().split("|"))]
    faults = [f"does not say {words!r}: {error}" for words in missing] if case.truth.refused else [error]
    none: frozenset[int] = frozenset()
    return Outcome(case.name, "error", none, none, case.truth.ranks, none, None, None, tuple(faults))


def _other_faults(truth: Truth, verdict: Verdict) -> list[str]:
    """What is wrong with the words, nodes, kinds, several onsets, and the cost."""
    text = _text(verdict)
    nodes = {node for finding in verdict.findings for node in finding.nodes}
    kinds = {f.kind for f in _judged(truth, verdict)} if truth.kinds else set()
    starts = [f.onset_step for f in verdict.findings if f.onset_step is not None]
    faults = [f"does not say {words!r}" for words in truth.says if not any(w in text for w in words.lower().split("|"))]
    faults += [f"says {words!r}" for words in truth.never if words.lower() in text]
    faults += [f"node {node} not named" for node in sorted(truth.nodes - nodes)]
    faults += [f"kind {kind}" for kind in sorted(kinds - truth.kinds)]
    faults += [f"nothing from step {o}" for o in truth.onsets if all(abs(s - o) > ONSET_SLACK_STEPS for s in starts)]
    if truth.seconds is not None and not truth.seconds[0] <= verdict.cost.seconds <= truth.seconds[1]:
        faults.append(f"cost {verdict.cost.seconds:g} s, not {truth.seconds[0]:g} to {truth.seconds[1]:g}")
    return faults


def _text(verdict: Verdict) -> str:
    """All that is said, in small letters."""
    parts = [verdict.reason, *(f"{n.source} {n.reason}" for n in verdict.not_collected)]
    for finding in verdict.findings:
        parts += [*finding.evidence, finding.next, finding.action, finding.verify]
    return " ".join(parts).lower()


def _judged(truth: Truth, verdict: Verdict) -> list[Finding]:
    """The findings of the ranks that are right, or the first one where nobody is."""
    about = [f for f in verdict.findings if truth.ranks & set(f.ranks)]
    return about or ([] if truth.ranks else list(verdict.findings[:1]))


def _cause_right(truth: Truth, verdict: Verdict) -> bool | None:
    about = _judged(truth, verdict)
    return all(f.cause in truth.causes for f in about) if truth.causes and about else None


def _onset_error(truth: Truth, verdict: Verdict) -> int | None:
    if truth.onset is None:
        return None
    onsets = [f.onset_step for f in verdict.findings if truth.ranks <= set(f.ranks) and f.onset_step is not None]
    return min((abs(o - truth.onset) for o in onsets), default=None)
