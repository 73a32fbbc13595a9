"""Short words for what the tests of the diagnosis ask."""

from starprof.analysis import diagnose
from starprof.analysis.synthetic import SyntheticRun
from starprof.model.verdict import Finding, Verdict


def verdict_of(*faults, **recipe) -> Verdict:
    """Diagnosis of a synthetic run."""
    return diagnose(SyntheticRun(faults=faults, **recipe).data())


def only_finding(verdict: Verdict) -> Finding:
    """The single finding of a verdict."""
    assert len(verdict.findings) == 1, verdict.findings
    return verdict.findings[0]


def blamed(verdict: Verdict) -> set[int]:
    """All ranks that a verdict names."""
    return {rank for finding in verdict.findings for rank in finding.ranks}


def words(finding: Finding) -> str:
    """All of a finding's text."""
    return " ".join((*finding.evidence, finding.action, finding.verify, finding.next))
