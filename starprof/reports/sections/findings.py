"""Findings: evidence, cause, action, expected gain, and how to verify, one card each."""

from __future__ import annotations

from starprof.model.verdict import Finding
from starprof.reports import words
from starprof.reports.markup import Section, text
from starprof.reports.material import Material
from starprof.reports.told import Told, told


def render(material: Material) -> Section | None:
    """One card per finding; no section without findings."""
    findings = material.verdict.findings
    if not findings:
        return None
    may = told(material.run)
    cards = "".join(_card(number, finding, material.total_seconds, may) for number, finding in enumerate(findings, 1))
    return Section("findings", "Findings" if len(findings) > 1 else "Finding", cards)


def _card(number: int, finding: Finding, total: float, may: Told) -> str:
    cause = words.CAUSE_TITLES.get(finding.cause, finding.cause)
    title = f"{words.who(finding)}: {cause}" if finding.ranks or finding.nodes else cause
    blame = "" if finding.ranks or finding.nodes else "no rank to blame"
    tags = "".join(
        f'<span class="tag">{text(tag)}</span>'
        for tag in (finding.kind if may.course else "", words.since(finding), *_roles(finding), blame)
        if tag
    )
    rows = (
        ("Evidence", _evidence(finding)),
        ("Cause", _cause(finding)),
        ("Action", text(finding.action)),
        ("Expected gain", text(words.sentence(words.gain(finding, total, waits=may.waits)))),
        ("How to verify", text(finding.verify)),
        ("Next", text(finding.next)),
    )
    listed = "".join(f"<dt>{name}</dt><dd>{body}</dd>" for name, body in rows if body)
    return (
        f'<article class="card"><header><span class="number">{number}</span>'
        f"<h3>{text(words.sentence(title))}</h3>{tags}</header><dl>{listed}</dl></article>"
    )


def _roles(finding: Finding) -> list[str]:
    return [f"{name} {value}" for name, value in finding.role.items()]


def _evidence(finding: Finding) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in finding.evidence)
    return f"<ul>{items}</ul>" if items else ""


def _cause(finding: Finding) -> str:
    sure = f"{words.percent(finding.confidence)} confidence ({words.certainty(finding.confidence)})"
    told = f"<code>{text(finding.cause)}</code>"
    if finding.cause_share > 0:
        # A meter says the share at a glance, the words say it to everybody.
        told += (
            f" explains {text(words.percent(finding.cause_share))} of the slowdown"
            f'<span class="meter"><i style="width:{100 * min(finding.cause_share, 1):.0f}%"></i></span>'
        )
    if finding.onset_interval is not None:
        first, last = finding.onset_interval
        sure += f"; began at step {first}" if first == last else f"; began between steps {first} and {last}"
    return f"{told}<br>{text(sure)}"
